"""`spanlite lab`: tools that say why a kernel is slow."""

from __future__ import annotations

import argparse

from spanlite_analytics.lab.frame import add_tools

_HELP = """`spanlite lab TOOL --help` says what a tool does and shows an example.

example:
  spanlite lab occupancy --registers 128 --block 256 --shared 98304
"""


class LabCommand:
    """Hands over to one of the lab's tools."""

    summary = "Find out why a kernel is slow: occupancy, shared-memory banks, and more"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the tools."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _HELP
        add_tools(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Returns what the tool returns."""
        return int(args.lab_run(args))


command = LabCommand()
