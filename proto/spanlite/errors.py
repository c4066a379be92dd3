"""Every error a user can meet, as one tree.

SpanLiteError
├── UsageError      flags that conflict, a value that cannot be read
├── InputError      a file or message that is not what it claims to be
│   └── WireError   a Kafka message that cannot be decoded (has a `reason`)
├── ArchiveError    an archive that is missing, foreign or damaged
└── ServiceError    a broker, a port or a tool that is not there

The `spanlite` command prints the message and exits with `exit_code`.
"""

from __future__ import annotations


class SpanLiteError(Exception):
    """Says what is wrong, where, and what to do next."""

    exit_code = 2


class UsageError(SpanLiteError):
    """The command's words are off: conflicting flags, an unreadable value."""


class InputError(SpanLiteError):
    """A file or message is not what it claims to be."""


class WireError(InputError):
    """A message cannot be decoded.

    `reason` is a short fixed word for the ledger and the dead-letter topic:
    `malformed`, `unsupported_version`, `too_large`, `wrong_bucket`, `empty`.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class ArchiveError(SpanLiteError):
    """An archive is missing, was not made by SpanLite, or is damaged."""


class ServiceError(SpanLiteError):
    """Something that must be running or installed is not."""
