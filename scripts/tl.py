"""Starts the terminal program `tl` from a source checkout; the rest comes from compiled modules."""

import sys

try:
    from timeline_cli import main
except KeyboardInterrupt:
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
