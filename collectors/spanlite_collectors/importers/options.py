"""What a user may choose about an import."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from spanlite.errors import UsageError
from spanlite.kinds import SpanKind

from spanlite_collectors.importers._json_text import without_surrogates

#: Names of ranges that are one engine step: torch.profiler's own, vLLM's, and the usual.
STEP_PATTERNS = (
    r"ProfilerStep#\d+",
    r"(?:graph |decode |prefill |engine |train(?:ing)? )?(?:step|iteration)\b.*",
    r"execute_\d*_?context_.*",
    r"execute_model\b.*",
)
#: Names of ranges that are one request.
REQUEST_PATTERNS = (r"request\b.*", r"req[:_ #-]\S+.*")


@dataclass(frozen=True)
class ImportOptions:
    """Names, and which ranges open a trace. Patterns match a whole name, in any case."""

    service: str | None = None
    host: str | None = None
    step_patterns: Sequence[str] = STEP_PATTERNS
    request_patterns: Sequence[str] = REQUEST_PATTERNS
    #: Resource attributes to add to those of the file.
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], SpanKind]]:
        return [
            (_compile(self.request_patterns), SpanKind.REQUEST),
            (_compile(self.step_patterns), SpanKind.STEP),
        ]

    @cached_property
    def _known(self) -> dict[str, SpanKind]:
        return {}

    def kind_of_range(self, name: str) -> SpanKind:
        """REQUEST, STEP or NVTX_RANGE, by the range's name."""
        kind = self._known.get(name)
        if kind is None:
            found = (kind for pattern, kind in self._patterns if pattern.fullmatch(name))
            kind = self._known.setdefault(name, next(found, SpanKind.NVTX_RANGE))
        return kind

    def resource(self, path: Path, source_format: str) -> dict[str, Any]:
        """Resource attributes that all spans of a file share."""
        return {"spanlite.import.file": path.name, "spanlite.import.format": source_format}

    def named(self, resource: Mapping[str, Any]) -> dict[str, Any]:
        """The resource with the user's names; `service.name` is always there."""
        out = {**resource, **self.attributes}
        if self.service or "service.name" not in out:
            fallback = out.get("process.executable.name", out.get("spanlite.import.format"))
            out["service.name"] = self.service or str(fallback)
        if self.host:
            out["host.name"] = self.host
        # Names of files and words of a command line are any bytes, not always text.
        whole: dict[str, Any] = without_surrogates(out)
        return whole


def _compile(patterns: Sequence[str]) -> re.Pattern[str]:
    try:
        return re.compile("|".join(f"(?:{p})" for p in patterns) or r"(?!)", re.IGNORECASE | re.S)
    except re.error as error:
        raise UsageError(f"pattern {error.pattern!r} cannot be read: {error}") from None
