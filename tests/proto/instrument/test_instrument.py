"""What an application writes, through the real agent library into a real ring."""

import os
import subprocess
import sys

import pytest
from applications import FAKE_TORCH, FAKE_TRITON, SPAN, TRACE, TRACEPARENT, by_name, run
from spanlite.kinds import SpanKind


def test_the_trace_id_of_a_request_is_that_of_everything_in_it(spans):
    rows = by_name(
        spans(
            f"""
with instrument.request({TRACEPARENT!r}, name="chat", model="m") as request:
    with instrument.step([request], number=3):
        with instrument.stage("layer_0"), instrument.stage("attention"):
            pass
"""
        )
    )
    assert {row["trace"] for row in rows.values()} == {TRACE}
    chat, step, layer = rows["chat"], rows["step"], rows["layer_0"]
    assert chat["kind"] == SpanKind.REQUEST
    assert f"{chat['parent_span_id']:016x}" == SPAN
    assert (step["kind"], step["said"]["step"]) == (SpanKind.STEP, 3)
    assert rows["attention"]["parent_span_id"] == layer["span_id"]
    assert layer["parent_span_id"] == step["span_id"]
    assert chat["said"]["model"] == "m"


def test_a_step_of_several_requests_links_to_each(spans):
    rows = spans(
        f"""
first = instrument.request({TRACEPARENT!r}, name="first")
second = instrument.request(name="second")
first.begin(); second.begin()
with instrument.step([first, second]):
    with instrument.stage("mlp"): pass
second.end(); first.end()
"""
    )
    named = by_name(rows)
    step, second = named["step"], named["second"]
    links = {
        (f"{x['trace_id_high']:016x}{x['trace_id_low']:016x}", x["span_id"]) for x in step["links"]
    }
    assert links == {(TRACE, int(SPAN, 16)), (second["trace"], second["span_id"])}
    assert named["mlp"]["trace"] == step["trace"]
    assert step["trace"] not in (TRACE, second["trace"])
    assert named["first"]["trace"] == TRACE


def test_steps_one_after_the_other_serve_whom_they_say(spans):
    """The text of a step is kept for the next: by threads, requests and attributes."""
    rows = spans(
        f"""
import threading
one = instrument.request({TRACEPARENT!r}, name="one")
again = instrument.request(name="again")
one.begin(); again.begin()
served = [one]
decode = instrument.step(served)
with decode: pass
with decode: pass
served.append(again)
with decode: pass
again.end(); again.begin()
with decode: pass
with instrument.step([one, again], phase="prefill"): pass
with instrument.step([one, again], phase="decode", number=77): pass
thread = threading.Thread(target=lambda: decode.__enter__() and decode.__exit__(None, None, None))
thread.start(); thread.join()
with instrument.step(): pass
again.end(); one.end()
"""
    )
    steps = sorted((row for row in rows if row["name"] == "step"), key=lambda row: row["start_ns"])
    assert [len(step["links"] or ()) for step in steps] == [0, 0, 2, 2, 2, 2, 2, 0]
    assert [step["trace"] == TRACE for step in steps] == [True, True] + [False] * 6
    assert [step["said"]["step"] for step in steps] == [0, 1, 2, 3, 4, 77, 5, 6]
    assert [step["said"].get("phase") for step in steps[4:6]] == ["prefill", "decode"]
    requests = sorted((row for row in rows if row["name"] == "again"), key=lambda r: r["start_ns"])
    first, second = (row["span_id"] for row in requests)
    linked = [{link["span_id"] for link in step["links"] or ()} for step in steps]
    assert second not in linked[2] and first in linked[2]
    assert second in linked[3] and first not in linked[3]


def test_decorators_and_errors_keep_ranges_nested(spans):
    rows = by_name(
        spans(
            """
@instrument.stage("outer")
def outer(fail):
    with instrument.stage("inner"):
        if fail: raise KeyError
try: outer(True)
except KeyError: pass
with instrument.stage("after"): pass
"""
        )
    )
    assert rows["inner"]["parent_span_id"] == rows["outer"]["span_id"]
    assert rows["after"]["parent_span_id"] == 0


def test_metrics_become_attributes_and_series(spans):
    seen = []
    rows = by_name(
        spans(
            """
from spanlite.instrument import metrics
hits = metrics.counter("cache.hits", per="layer")
with instrument.stage("attention"):
    hits.add(2, layer=1); hits.add(3, layer=1)
    metrics.ROPE_FREQ_INV_MAX.set(0.25, sequence="a,b")
    with metrics.ROPE_COSINE_COMPUTE_MS.time_ms(): pass
""",
            lambda resource, sample: seen.append(sample),
        )
    )
    said = rows["attention"]["said"]
    assert said["cache.hits{layer=1}"] == 5
    assert said["rope.freq_inv_max{sequence=a_b}"] == 0.25
    assert said["rope.cosine_compute_ms"] > 0
    assert [sample.metric.kind for sample in seen] == ["counter", "counter", "gauge", "histogram"]
    assert len(rows) == 1  # the marks themselves are no spans


def test_series_of_custom_metrics(spans):
    module = pytest.importorskip("spanlite_collectors.agent.metrics")
    from prometheus_client import CollectorRegistry, generate_latest

    custom = module.CustomMetrics()
    spans(
        """
from spanlite.instrument import metrics
for layer in (0, 0, 1): metrics.FLASH_ATTN_RECOMPUTE_COUNT.add(layer=layer)
took = metrics.histogram("took.ms")
took.record(3); took.record(700)
""",
        custom.take,
    )
    registry = CollectorRegistry()
    registry.register(custom)
    text = generate_latest(registry).decode()
    assert 'flash_attn_recompute_count_total{layer="0",service="' in text
    assert [line.split()[-1] for line in text.splitlines() if "recompute_count_total{" in line] == [
        "2.0",
        "1.0",
    ]
    assert 'took_ms_bucket{le="5.0",' in text
    assert next(line for line in text.splitlines() if "took_ms_sum" in line).endswith("703.0")


def test_opentelemetry_server_spans_become_requests(spans):
    pytest.importorskip("opentelemetry.sdk")
    rows = by_name(
        spans(
            """
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind
from spanlite.instrument.otel import SpanLiteSpanProcessor
provider = TracerProvider()
provider.add_span_processor(SpanLiteSpanProcessor())
tracer = provider.get_tracer("t")
with tracer.start_as_current_span("POST /v1/chat", kind=SpanKind.SERVER) as span:
    with tracer.start_as_current_span("inside"):
        with instrument.step([span], expected=format(span.get_span_context().trace_id, "032x")):
            pass
"""
        )
    )
    assert set(rows) == {"POST /v1/chat", "step"}
    assert rows["step"]["trace"] == rows["step"]["said"]["expected"]
    assert rows["POST /v1/chat"]["trace"] == rows["step"]["trace"]


def test_hooks_name_stages_after_modules(spans):
    rows = by_name(
        spans(
            """
from spanlite.instrument import hook_modules
class Module:
    def __init__(self, **parts): self.parts, self.before, self.after = parts, [], []
    def named_modules(self, at=""):
        yield at, self
        for name, part in self.parts.items():
            yield from part.named_modules(f"{at}.{name}" if at else name)
    def register_forward_pre_hook(self, hook, prepend=False):
        self.before.append(hook)
    def register_forward_hook(self, hook, always_call=False):
        self.after.append(hook)
    def __call__(self):
        for hook in self.before: hook(self, ())
        for part in self.parts.values(): part()
        for hook in self.after: hook(self, (), None)
class LlamaAttention(Module): pass
class LlamaDecoderLayer(Module): pass
class Linear(Module): pass
layers = {f"layers_{i}": LlamaDecoderLayer(self_attn=LlamaAttention(q=Linear())) for i in range(2)}
model = Module(**layers)
print(hook_modules(model).names)
model()
"""
        )
    )
    assert set(rows) == {"layers_0", "layers_1", "self_attn"}
    assert rows["self_attn"]["parent_span_id"] == rows["layers_1"]["span_id"]


def test_ready_made_probes_measure_by_themselves(spans):
    """A model whose attention is run anew in the backward pass, and whose table changes once."""
    seen = []
    spans(
        FAKE_TORCH
        + """
class LlamaRotaryEmbedding(Module): inv_freq = Table(1.0)
class LlamaAttention(Module): pass
rope, attention = LlamaRotaryEmbedding(), LlamaAttention()
model = Model({"": None, "rope": rope, "layers.3.attn": attention})
probes = instrument.probe_modules(model, sequence=lambda: 17)
assert probes.names == ["rope", "layers.3.attn"]
with instrument.stage("forward"):
    rope(); rope(); attention()
    rope.inv_freq = Table(0.5)
    rope()
fake_torch.in_backward = 5
attention(); attention()
probes.remove()
attention(); rope()
""",
        lambda resource, sample: seen.append((sample.metric.key, sample.value)),
    )
    times = [value for key, value in seen if key == "rope.cosine_compute_ms"]
    assert len(times) == 3 and all(value >= 0 for value in times)
    assert [(key, value) for key, value in seen if key != "rope.cosine_compute_ms"] == [
        ("rope.freq_inv_max{sequence=17}", 1.0),
        ("rope.freq_inv_max{sequence=17}", 0.5),
        ("flash_attn.recompute_count{layer=3}", 1.0),
        ("flash_attn.recompute_count{layer=3}", 1.0),
    ]


def test_a_metric_says_what_is_wrong_with_its_use(spans):
    """Labels and granularity are declared once and then held."""
    rows = spans(
        """
from spanlite.errors import UsageError
from spanlite.instrument import metrics
def refused(function, *args, **kwargs):
    try: function(*args, **kwargs)
    except UsageError as error: return str(error)
    raise AssertionError("taken")
hits = metrics.counter("hits", per="layer", labels=["pool"])
assert "use a gauge" in refused(hits.add, -1, layer=1, pool="a")
assert "already a counter" in refused(metrics.gauge, "hits")
assert metrics.counter("hits", per="layer", labels=["pool"]).labels == ("layer", "pool")
assert {m.name for m in metrics.registered()} >= {
    "hits", "queue.length", "rope.cosine_compute_ms", "rope.freq_inv_max",
    "flash_attn.recompute_count",
}
"""
    )
    assert rows == []


def test_a_triton_launch_says_its_kernel_file_and_constants(spans):
    """Two specialisations of one kernel, compiled ahead of their launches as autotuning does."""
    rows = spans(
        FAKE_TRITON
        + """
hooks = instrument.hook_triton()
kernel.warm_up(BLOCK=128, dtype=float); kernel.warm_up(BLOCK=256, dtype=float)
with instrument.stage("attention"):
    kernel.launch(BLOCK=128, dtype=float)
    kernel.launch(BLOCK=256, dtype=float)
    kernel.launch(BLOCK=128, dtype=float)
hooks.remove()
kernel.launch(BLOCK=128, dtype=float)
assert not triton.knobs.runtime.launch_enter_hook.calls
"""
    )
    (stage,) = [row for row in rows if row["name"] == "attention"]
    launches = sorted(
        (row for row in rows if row["name"] == "softmax_kernel"), key=lambda row: row["start_ns"]
    )
    assert [row["said"]["triton.BLOCK"] for row in launches] == ["128", "256", "128"]
    assert {row["parent_span_id"] for row in launches} == {stage["span_id"]}
    said = launches[0]["said"]
    assert said["triton.file"].endswith("<string>:6") and said["triton.dtype"] == "float"
    assert (said["triton.num_warps"], said["triton.num_stages"]) == ("4", "3")


def test_a_triton_launch_that_fails_leaves_ranges_nested(spans):
    rows = spans(
        FAKE_TRITON
        + """
hooks = instrument.hook_triton()
with instrument.stage("attention"):
    try: kernel.launch(fail=True, BLOCK=1)
    except RuntimeError: pass
    kernel.launch(BLOCK=2)
with instrument.stage("mlp"): pass
"""
    )
    by = by_name(rows)
    assert by["mlp"]["parent_span_id"] == 0
    launches = [row for row in rows if row["name"] == "softmax_kernel"]
    assert [row["parent_span_id"] for row in launches] == [by["attention"]["span_id"]] * 2


def test_hooks_of_others_stay_and_older_triton_is_served(spans):
    rows = spans(
        FAKE_TRITON
        + """
import types
seen = []
class CompiledKernel:
    launch_enter_hook = None
    launch_exit_hook = staticmethod(lambda *_: seen.append("exit"))
class Function:
    compiled_hook = None
old = types.SimpleNamespace(
    compiler=types.SimpleNamespace(CompiledKernel=CompiledKernel), JITFunction=Function
)
sys.modules["triton"] = old
with instrument.hook_triton():
    said = {"name": "old_kernel", "function": 1}
    CompiledKernel.launch_enter_hook(said); CompiledKernel.launch_exit_hook(said)
assert seen == ["exit"] and CompiledKernel.launch_enter_hook is None
sys.modules["triton"] = types.SimpleNamespace()
assert instrument.hook_triton() is None
"""
    )
    assert [row["name"] for row in rows] == ["old_kernel"]


def test_the_real_triton_has_the_hooks(spans):
    pytest.importorskip("triton")
    spans("import triton\nassert instrument.hook_triton() is not None")


def test_without_a_tool_nothing_happens_and_functions_stay_themselves():
    out = run(
        """
import sys
from spanlite import instrument
def f(): pass
assert not instrument.enabled()
assert instrument.stage("x")(f) is f and instrument.step()(f) is f and instrument.request()(f) is f
with instrument.request() as r, instrument.step([r]), instrument.stage("y"): pass
instrument.metrics.ROPE_FREQ_INV_MAX.set(1)
heavy = ("numpy", "pyarrow", "google", "opentelemetry", "torch")
print([name for name in heavy if name in sys.modules])
"""
    )
    assert out == "[]\n"


@pytest.mark.parametrize("path", ["/nowhere/tool.so", "/bin/true"])
def test_a_tool_that_cannot_be_loaded_is_no_tool(path):
    env = dict(os.environ, NVTX_INJECTION64_PATH=path)
    code = "from spanlite import instrument; print(instrument.enabled())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
