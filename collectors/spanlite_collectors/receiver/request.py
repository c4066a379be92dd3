"""The body of an OTLP/HTTP request, checked and read; and the body of the answer."""

from __future__ import annotations

import gzip
import io
import json
import zlib

from google.protobuf.json_format import MessageToJson
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from spanlite_collectors.importers._json_text import load_json
from spanlite_collectors.importers.otlp_json import parse_resource_spans

PROTOBUF = "application/x-protobuf"
JSON = "application/json"


class Refusal(Exception):  # noqa: N818  it is an answer, and often not an error of ours
    """An HTTP answer other than 200; `retry_after_s` where trying again may help."""

    def __init__(self, status: int, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


def unpack(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """The body without its content encoding, never more than the limit in memory."""
    if encoding in ("", "identity"):
        return body
    if encoding != "gzip":
        raise Refusal(415, f"content encoding '{encoding}': send gzip or none")
    try:
        # A gzip body may be several members one after the other, and all of it must be gzip.
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            plain = file.read(limit_bytes + 1)
    except EOFError:
        raise Refusal(400, "the gzip body is cut off") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise Refusal(400, f"the body is not gzip to its end: {error}") from None
    if len(plain) > limit_bytes:
        raise Refusal(413, f"more than {limit_bytes} bytes when unpacked")
    return plain


def read_request(body: bytes, content_type: str) -> ExportTraceServiceRequest:
    """The request in a plain body; its media type decides how. Raises Refusal."""
    kind = media_type(content_type)
    if kind == PROTOBUF:
        try:
            return ExportTraceServiceRequest.FromString(body)
        except DecodeError as error:
            raise Refusal(400, f"not an ExportTraceServiceRequest: {error}") from None
    if kind == JSON:
        return _from_json(body)
    raise Refusal(415, f"content type '{content_type}': send {PROTOBUF} or {JSON}")


def media_type(content_type: str) -> str:
    """The content type without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def _from_json(body: bytes) -> ExportTraceServiceRequest:
    try:
        document = load_json(body)
        groups = document.get("resourceSpans") or document.get("resource_spans") or []
        spans = [parse_resource_spans(item) for item in groups]
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise Refusal(400, f"not OTLP/JSON: {error}") from None
    return ExportTraceServiceRequest(resource_spans=spans)


def encode(message: Message, content_type: str) -> tuple[bytes, str]:
    """(body, content type) of an answer, in the form that the request came in."""
    if media_type(content_type) == JSON:
        return MessageToJson(message, indent=None).encode(), JSON
    return message.SerializeToString(), PROTOBUF


def partial_success(refused: dict[str, int]) -> ExportTraceServiceResponse:
    """The answer to a request of which some spans were refused, by reason; or none."""
    answer = ExportTraceServiceResponse()
    if any(refused.values()):
        answer.partial_success.rejected_spans = sum(refused.values())
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items()))
        answer.partial_success.error_message = f"refused spans: {reasons}"
    return answer


def encode_status(message: str, content_type: str) -> tuple[bytes, str]:
    """(body, content type) of a google.rpc.Status, which OTLP asks for with every error.

    It has a number and a text; the text is field 2, and that is all we send.
    """
    if media_type(content_type) == JSON:
        return json.dumps({"message": message}).encode(), JSON
    text = message.encode()[:1000]
    size = bytes([len(text)]) if len(text) < 128 else bytes([len(text) & 127 | 128, len(text) >> 7])
    return b"\x12" + size + text, PROTOBUF
