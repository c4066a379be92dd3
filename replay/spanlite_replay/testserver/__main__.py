"""`python -m spanlite_replay.testserver`: `spanlite testserver` without an installed command."""

from __future__ import annotations

import argparse

from spanlite_replay.commands.testserver import command

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=command.summary)
    command.add_arguments(parser)
    raise SystemExit(command.run(parser.parse_args()))
