"""How many of the corpus's faults the audit finds, and how often it cries wolf.

python -m bench.lab_audit [--quick]

Each file of tests/corpus/audit names in its head the verdict of each of its kernels. The files
under held_back/ were written before the rules and first run after them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from spanlite_analytics.lab.audit.run import audit_path
from spanlite_analytics.lab.toolchain import Compiler

from bench._report import emit

CORPUS = Path(__file__).parent.parent / "tests" / "corpus" / "audit"
CLEAN = "clean"
_VERDICT = re.compile(r"^// (\w+): ([a-z-]+)(?:, block ([\d ]+))?$", re.MULTILINE)
_FLAGS = re.compile(r"^// flags: (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of the corpus: what must be said of it, and what was said."""

    file: str
    name: str
    verdict: str
    rules: frozenset[str]

    @property
    def is_missed(self) -> bool:
        """Faulty, and its rule said nothing."""
        return self.verdict not in (CLEAN, *self.rules)

    @property
    def is_false_alarm(self) -> bool:
        """Clean, and some rule spoke."""
        return self.verdict == CLEAN and bool(self.rules)


def judged(path: Path) -> Iterator[Kernel]:
    """Audit one file of the corpus."""
    text = path.read_text()
    verdicts = {name: verdict for name, verdict, _ in _VERDICT.findall(text) if name != "flags"}
    blocks = {name: _block(sizes) for name, _, sizes in _VERDICT.findall(text) if sizes}
    flags = _FLAGS.search(text)
    compiler = Compiler(flags=tuple(flags.group(1).split()) if flags else ())
    audit = audit_path(path, compiler, blocks)
    assert set(audit.kernels) == set(verdicts), f"{path}: the head does not name each kernel"
    for name, verdict in verdicts.items():
        said = frozenset(f.rule for f in audit.findings if f.kernel == name)
        yield Kernel(f"{path.parent.name}/{path.name}", name, verdict, said)


def _block(sizes: str) -> tuple[int, int, int]:
    x, y, z = (*map(int, sizes.split()), 1, 1)[:3]
    return x, y, z


def run() -> list[Kernel]:
    """Audit the whole corpus; nvcc runs beside the audit."""
    with ThreadPoolExecutor(2) as pool:
        files = pool.map(lambda path: list(judged(path)), sorted(CORPUS.glob("*/*.cu")))
        return [kernel for kernels in files for kernel in kernels]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the same; it is quick")
    parser.parse_args()
    kernels = run()
    faulty = [k for k in kernels if k.verdict != CLEAN]
    found = [k for k in faulty if not k.is_missed]
    alarms = sum(k.is_false_alarm for k in kernels)
    emit("lab.audit_kernels", len(kernels), "kernels", 60, clean=len(kernels) - len(faulty))
    emit("lab.audit_recall_pct", 100 * len(found) / len(faulty), "%", 95)
    emit("lab.audit_false_alarms", alarms, "kernels", 2)
    for kernel in kernels:
        if kernel.is_missed or kernel.is_false_alarm:
            print(f"{kernel.file}: {kernel.name}: {kernel.verdict}, said {sorted(kernel.rules)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
