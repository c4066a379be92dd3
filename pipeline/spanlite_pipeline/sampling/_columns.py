"""Built-in columns that a rule may name as if they were attributes.

OpenTelemetry has no attribute for a kernel's name or its stream; here they have these.
"""

from __future__ import annotations

from dataclasses import dataclass

from spanlite.kinds import COPY_KIND_WORDS, KIND_WORDS, STATUS_WORDS
from spanlite.schema import LAUNCH_COLUMNS


@dataclass(frozen=True)
class BuiltIn:
    """A column as an attribute; `words` where its numbers stand for words."""

    column: str
    words: tuple[str, ...] | None = None
    text: bool = False

    @property
    def is_text(self) -> bool:
        """Whether string_attribute is the policy for it, else numeric_attribute."""
        return self.text or self.words is not None


BUILT_INS: dict[str, BuiltIn] = {
    "spanlite.name": BuiltIn("name", text=True),
    "spanlite.kind": BuiltIn("kind", KIND_WORDS),
    "spanlite.status": BuiltIn("status", STATUS_WORDS),
    "spanlite.duration_ns": BuiltIn("duration_ns"),
    "spanlite.flags": BuiltIn("flags"),
    "thread.id": BuiltIn("thread_id"),
    "gpu.device": BuiltIn("device"),
    "gpu.context": BuiltIn("context"),
    "gpu.stream": BuiltIn("stream"),
    "gpu.graph_id": BuiltIn("graph_id"),
    "gpu.graph_node_id": BuiltIn("graph_node_id"),
    "gpu.bytes": BuiltIn("bytes"),
    "gpu.copy_kind": BuiltIn("copy_kind", COPY_KIND_WORDS),
    **{f"gpu.{name}": BuiltIn(name) for name in LAUNCH_COLUMNS},
}
