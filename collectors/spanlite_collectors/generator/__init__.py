"""Seeded traces of LLM decoding, several million spans a second, without a GPU."""

from spanlite_collectors.generator.config import DecodeConfig
from spanlite_collectors.generator.generate import generate

__all__ = ["DecodeConfig", "generate"]
