"""Run a command with `python -m attnaudit`."""

from __future__ import annotations

import sys

from attnaudit.cli import main

if __name__ == "__main__":
    sys.exit(main())
