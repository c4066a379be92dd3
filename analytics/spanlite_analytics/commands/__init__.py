"""One module a subcommand of `spanlite`."""
