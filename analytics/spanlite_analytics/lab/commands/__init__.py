"""One module a subcommand of `spanlite lab`; its name is the module's.

A module here has `command`, an object as `spanlite.cli.Command` says. All of them are
imported to show `spanlite lab --help`, so what is slow to import is imported in `run`.
"""
