"""Starts the terminal program `tl` from a source checkout; the rest comes from compiled modules."""

import sys

from timeline_cli import main

if __name__ == "__main__":
    sys.exit(main())
