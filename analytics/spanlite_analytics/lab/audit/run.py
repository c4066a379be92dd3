"""From a path to findings, and to the table of source, PTX and SASS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from spanlite_analytics.lab.audit.engine import Block, audit
from spanlite_analytics.lab.audit.findings import Finding, in_order
from spanlite_analytics.lab.audit.inputs import Unit, target_of, units_of
from spanlite_analytics.lab.audit.ptx import parse
from spanlite_analytics.lab.audit.sass import (
    Change,
    SassFunction,
    changes,
    lines_by_ptx,
    parse_sass,
    sass_findings,
)
from spanlite_analytics.lab.toolchain import Compiler, disassemble


@dataclass(slots=True)
class Audit:
    """What was found in a file."""

    findings: list[Finding] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    #: Modules without PTX: the rules that follow values have not seen them.
    machine_code_only: list[str] = field(default_factory=list)
    #: Kernels that hold PTX which the audit does not understand.
    unjudged: list[str] = field(default_factory=list)


def audit_path(
    path: Path,
    compiler: Compiler,
    blocks: Mapping[str, Block] | None = None,
    told: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> Audit:
    """Audit all kernels in a file or folder. Raises InputError and ServiceError as `units_of`.

    `told` hears how many of the file's modules are done, and which comes next.
    """
    result = Audit()
    units = list(units_of(path, compiler))
    for number, unit in enumerate(units):
        told(number, len(units), unit.name)
        _audit_unit(unit, blocks or {}, result)
    result.findings = in_order(result.findings)
    return result


def _audit_unit(unit: Unit, blocks: Mapping[str, Block], result: Audit) -> None:
    functions: list[SassFunction] = []
    if unit.embedded or not unit.ptx:
        functions = parse_sass(disassemble(unit.cubin))
        result.findings += sass_findings(functions)
    if not unit.ptx:
        result.kernels += [f.name for f in functions]
        result.machine_code_only.append(unit.name)
        return
    module = parse(unit.ptx, unit.name)
    found = audit(module, unit.counts, {**unit.blocks, **blocks}, result.unjudged)
    result.kernels += [entry.name for entry in module.entries]
    result.findings += _placed(found, functions, unit.name)


def _placed(found: list[Finding], functions: list[SassFunction], name: str) -> list[Finding]:
    """PTX out of a cubin has no `.loc`: its lines come from the machine code's table."""
    lines = lines_by_ptx(functions)
    placed = []
    for finding in found:
        place = lines.get(finding.ptx_line)
        if finding.line == 0 and place is not None:
            finding = replace(finding, file=place.file, line=place.line)
        elif finding.line == 0:
            finding = replace(finding, file=name)
        placed.append(finding)
    return placed


@dataclass(frozen=True, slots=True)
class Row:
    """A machine instruction beside the PTX and the source line it comes from."""

    kernel: str
    file: str
    line: int
    ptx_line: int
    ptx: str
    offset: int
    sass: str


def table(path: Path, compiler: Compiler) -> list[Row]:
    """Source line, PTX and SASS of all kernels."""
    rows = []
    for unit in units_of(path, compiler):
        if not unit.cubin:
            continue
        lines = unit.ptx.replace("\0", "\n").split("\n")
        for function in parse_sass(disassemble(unit.cubin)):
            for code in function.code:
                text = lines[code.ptx_line - 1].strip() if 0 < code.ptx_line <= len(lines) else ""
                rows.append(
                    Row(
                        function.name,
                        code.place.file,
                        code.place.line,
                        code.ptx_line,
                        text,
                        code.offset,
                        str(code),
                    )
                )
    return rows


def optimised(path: Path, compiler: Compiler) -> list[Change]:
    """What -O3 removed or merged against -O0, by line; needs PTX."""
    made: list[Change] = []
    for unit in units_of(path, compiler):
        if unit.ptx and not unit.embedded:
            as_is = Compiler(target_of(unit.ptx, compiler.arch))
            plain, full = (
                parse_sass(disassemble(as_is.cubin(unit.ptx, level).data)) for level in (0, 3)
            )
            made += changes(plain, full)
    return made
