"""Scans a kernel's parameters: which configuration is fastest on this GPU, and what each takes."""
