"""`python -m spanlite`, where the command is not on PATH."""

import sys

from spanlite.cli import main

sys.exit(main())
