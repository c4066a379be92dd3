"""Registers, live ranges and instruction mix of machine code, and a model of its issue rate."""
