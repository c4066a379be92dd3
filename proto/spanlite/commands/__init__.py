"""Subcommands of `spanlite` that every installation has."""
