"""Findings for people, as JSON, and as SARIF 2.1.0 for code review tools."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from spanlite_analytics.lab.audit.findings import RULES, Finding

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_json(finding: Finding) -> dict[str, Any]:
    """One finding in plain types."""
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "kernel": finding.kernel,
        "file": finding.file,
        "line": finding.line,
        "ptx_line": finding.ptx_line,
        "instruction": finding.instruction,
        "evidence": finding.evidence,
        "advice": finding.advice,
    }


def sarif(findings: Sequence[Finding]) -> dict[str, Any]:
    """A SARIF log with one run; files in the working folder are named relative to it."""
    names = sorted({f.rule for f in findings} | set(RULES))
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "spanlite lab audit",
                        "semanticVersion": version("spanlite-analytics"),
                        "rules": [_sarif_rule(name) for name in names],
                    }
                },
                "columnKind": "utf16CodeUnits",
                "results": [_sarif_result(f, names.index(f.rule)) for f in findings],
            }
        ],
    }


def _sarif_rule(name: str) -> dict[str, Any]:
    rule = RULES[name]
    return {
        "id": name,
        "shortDescription": {"text": f"{rule.summary}."},
        "help": {"text": rule.advice},
        "defaultConfiguration": {"level": rule.severity},
    }


def _sarif_result(finding: Finding, index: int) -> dict[str, Any]:
    place: dict[str, Any] = {"logicalLocations": [{"name": finding.kernel, "kind": "function"}]}
    if finding.file:
        place["physicalLocation"] = {"artifactLocation": {"uri": _uri(finding.file)}}
        if finding.line:
            place["physicalLocation"]["region"] = {"startLine": finding.line}
    words = f"{finding.rule} {finding.kernel} {finding.file} {finding.instruction}"
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": f"In {finding.kernel}: {finding.evidence}. {finding.advice}"},
        "locations": [place],
        "partialFingerprints": {"code/v1": hashlib.sha256(words.encode()).hexdigest()[:32]},
    }


def _uri(file: str) -> str:
    path = Path(file)
    if not path.is_absolute():
        return path.as_posix()
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_uri()


def as_text(findings: Iterable[Finding]) -> str:
    """For a terminal: place, rule, what was seen, what to do."""
    parts = []
    for f in findings:
        where = f"{_uri(f.file) if f.file else '?'}:{f.line}" if f.line else f.file or "?"
        parts.append(f"{where}: {f.severity}: {f.rule} in {f.kernel}\n    {f.evidence}\n")
        if f.instruction:
            parts.append(f"    {f.instruction}\n")
        parts.append(f"    -> {f.advice}\n")
    return "".join(parts)
