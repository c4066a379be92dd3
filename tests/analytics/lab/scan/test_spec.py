from collections.abc import Callable
from pathlib import Path

import pytest
from spanlite.errors import InputError
from spanlite_analytics.lab.scan.expression import parse
from spanlite_analytics.lab.scan.space import configurations, encoded
from spanlite_analytics.lab.scan.spec import OPERATORS, Spec, load

Write = Callable[..., Path]


def test_what_a_file_says(spec: Spec) -> None:
    assert spec.parameters["tile"] == (8, 16, 32, 64, 128, 256, 512)
    assert spec.search.method == "grid" and spec.repeats == 7
    allowed = configurations(spec)
    assert len(allowed) == 2 * (7 * 5 - 3)
    assert all(c["tile"] * c["threads"] <= 65536 for c in allowed)  # type: ignore[operator]
    assert spec.kernel.grid[0].whole(spec.names(allowed[0])) == 512


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("entry: k", "entri: k", 4, "kernel.entri: unknown key; did you mean 'entry'?"),
        ("  entry: k\n", "", 2, "kernel: the key 'entry' is missing"),
        ("cuda: k.cu", "cuda: none.cu", 3, "kernel.cuda: there is no file"),
        ("[n // tile]", "[n // tiles]", 5, "kernel.grid[0]: 'tiles' is no size and no parameter"),
        ("[n // tile]", "7", 5, "kernel.grid: must be a list"),
        ("buffer: f32", "buffer: f33", 8, "kernel.arguments[0].buffer: is 'f33'; must be one of"),
        ("value: n}", "valu: n}", 9, "unknown key; did you mean 'value'"),
        ("times: 2", "times: 1", 14, "parameters.tile.times: is 1; must be 2 to 1000"),
        ("[32, 64, 128, 256, 512]", "[32, 32]", 15, "parameters.threads: must list"),
        ("[row, column]", "[row, 2]", 16, "parameters.order: numbers and strings"),
        ("sizes: {n: 4096}", "sizes: {n: 4096, tile: 3}", 13, "'tile' is a size as well"),
        ("tile * threads <=", "tile ** threads <=", 18, "constraints[0]: Pow is not allowed"),
        ("tile * threads <=", "__import__('os') <=", 18, "no such function: __import__"),
        ("tile * threads <=", "tile.real <=", 18, "Attribute is not allowed"),
        ("entry: k", "entry: k\n  entry: k", 5, "kernel.entry: is there twice"),
    ],
)
def test_an_error_names_line_and_key(
    write: Write, old: str, new: str, line: int, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        load(write((old, new)))
    assert f"scan.yaml:{line}: " in str(caught.value) and words in str(caught.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("search: random", "search: needs a budget"),
        ("search: {method: annealing, budget: 3}", "search.method: is 'annealing'"),
        ("search: {method: bayesian}", "the key 'budget' is missing"),
        ("repeats: 0", "repeats: is 0; must be 1 to 1000"),
        ("heatmap: [tile]", "heatmap: must name two different parameters"),
        ("heatmap: [tile, colour]", "heatmap[1]: is 'colour'"),
        ("operator: matmul", "needs either 'operator'"),
        ("top: [1", "not YAML"),
        ("top: yes", "top: must be a whole number, not true or false"),
    ],
)
def test_wrong_keys_beside_the_kernel(write: Write, more: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        load(write(more=more))
    assert words in str(caught.value)


def test_constraints_that_allow_nothing(write: Write) -> None:
    spec = load(write(("<= 65536", "<= 1")))
    with pytest.raises(InputError, match="allow none of 70 configurations"):
        configurations(spec)
    spec = load(write(("tile * threads <=", "tile // (threads - 32) <=")))
    with pytest.raises(InputError, match="constraint 'tile // "):
        configurations(spec)


def test_a_fingerprint_is_of_what_times_depend_on(write: Write) -> None:
    one = load(write()).fingerprint
    assert load(write(("[row, column]", "[row]"), ("<= 65536", "<= 4096"))).fingerprint == one
    assert load(write(("n: 4096", "n: 8192"))).fingerprint != one
    path = write()
    (path.parent / "k.cu").write_text("another")
    assert load(path).fingerprint != one


def test_points_of_the_unit_cube(spec: Spec) -> None:
    allowed = configurations(spec)
    points = encoded(spec, allowed)
    assert points.shape == (len(allowed), 3)
    assert points.min() == 0 and points.max() == 1
    assert len({tuple(point) for point in points}) == len(allowed)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ceil_div(n, 3) + (n << 2)", 4 + 40),
        ("min(n, 4) if order == 'row' else 0", 4),
        ("1 <= n < 11 and not n % 2", True),
        ("order in ('row', 'column')", True),
        ("-n / 4", -2.5),
    ],
)
def test_expressions(text: str, value: object) -> None:
    assert parse(text).value({"n": 10, "order": "row"}) == value


@pytest.mark.parametrize(
    "text", ["lambda: 1", "n[0]", "[i for i in n]", "f'{n}'", "n := 3", "", "1 +"]
)
def test_what_is_no_expression(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


@pytest.mark.parametrize("text", ["1 // (n - 10)", "1 << 63", "n * (1 << 61)", "order + 1"])
def test_what_has_no_value(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text).value({"n": 10, "order": "row"})


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators(tmp_path: Path, operator: str) -> None:
    path = tmp_path / "scan.yaml"
    path.write_text(f"operator: {operator}\nparameters: {{}}\n")
    assert len(configurations(load(path))) == 1
    path.write_text(f"operator: {operator}\nparameters: {{colour: [1]}}\n")
    with pytest.raises(InputError, match=r"scan\.yaml:2: parameters\.colour: unknown key"):
        load(path)


def test_examples_of_the_docs_load() -> None:
    examples = sorted((Path(__file__).parents[4] / "docs/examples/scan").glob("*.yaml"))
    assert len(examples) >= 4
    for path in examples:
        assert configurations(load(path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x: &a [*a]", "holds itself"),
        ("x: " + "[" * 3000, "nested too deeply"),
        ("x: 2026-13-45", "quote it"),
    ],
)
def test_yaml_that_has_no_value_is_an_error_of_the_file(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "scan.yaml"
    path.write_text(text + "\n")
    with pytest.raises(InputError, match=f"scan.yaml.*{words}"):
        load(path)
