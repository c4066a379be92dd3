"""Subcommands of `spanlite` that this package brings."""
