"""`python -m lmprog.cli`, for when the command is not on the path."""

from __future__ import annotations

import sys

from lmprog.cli import main

if __name__ == "__main__":
    sys.exit(main())
