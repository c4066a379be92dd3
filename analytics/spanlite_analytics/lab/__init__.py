"""The lab: why is this kernel slow, and what would change it?

Each tool is a module here (or a folder) with the rules, and one of the same name in
`commands/` with its command line. `frame` finds the commands by themselves: a module in
`commands/` is a subcommand of `spanlite lab`.
"""
