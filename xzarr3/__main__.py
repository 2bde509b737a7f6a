"""``python -m xzarr3``, the same as the command ``xzarr3``."""

from __future__ import annotations

import sys

from xzarr3.cli import main

if __name__ == "__main__":
    sys.exit(main())
