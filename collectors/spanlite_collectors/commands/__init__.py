"""Subcommands that this package adds to `spanlite`."""
