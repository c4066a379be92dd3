"""A local Kafka broker: real, small, in a folder of its own."""

from spanlite_stack.stack import Stack, StackInfo

__all__ = ["Stack", "StackInfo"]
