"""Starts the terminal program `tl` from a source checkout; the rest comes from compiled modules."""

import gc
import sys

if __name__ == "__main__":
    gc.disable()  # before anything is imported: one command leaves nothing worth collecting

try:
    from timeline_cli import leave, main
except KeyboardInterrupt:
    sys.exit(130)

if __name__ == "__main__":
    leave(main())
