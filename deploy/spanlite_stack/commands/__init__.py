"""Subcommands of `spanlite` that the stack adds."""
