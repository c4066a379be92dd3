"""Lets the lab in where our packages are not installed: import this before `spanlite_analytics`.

The front door of `spanlite_analytics` needs duckdb, which the machine with the GPU may lack; the
lab's tools that work without an archive do not.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

ROOT = Path(__file__).parents[2]

try:
    import spanlite_analytics
except ImportError:
    sys.path[:0] = [str(ROOT / "proto"), str(ROOT / "analytics")]
    spanlite_analytics = types.ModuleType("spanlite_analytics")
    spanlite_analytics.__path__ = [str(ROOT / "analytics" / "spanlite_analytics")]
    sys.modules["spanlite_analytics"] = spanlite_analytics


def main(argv: list[str]) -> int:
    """`spanlite lab scan ARGV` where no `spanlite` is installed."""
    import argparse

    from spanlite.errors import SpanLiteError
    from spanlite_analytics.lab.commands.scan import command

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    try:
        return command.run(parser.parse_args(argv))
    except SpanLiteError as error:
        print(f"spanlite: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
