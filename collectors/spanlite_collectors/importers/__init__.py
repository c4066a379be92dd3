"""Recorded traces of other tools, as spans."""
