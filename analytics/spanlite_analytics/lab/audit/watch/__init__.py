"""The rules that look on while a kernel runs."""
