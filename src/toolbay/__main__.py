"""`python -m toolbay`."""

from __future__ import annotations

import sys

from toolbay.cli import main

if __name__ == "__main__":
    sys.exit(main())
