"""Subcommands of `spanlite` that replay adds, one file each."""
