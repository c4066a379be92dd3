"""Receivers: spans that other programs send."""

from spanlite_collectors.receiver.otlp_http import OtlpHttpServer
from spanlite_collectors.receiver.request import Refusal, read_request

__all__ = ["OtlpHttpServer", "Refusal", "read_request"]
