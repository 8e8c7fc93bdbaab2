"""`python -m collbench`: the same program as `collbench`."""

from __future__ import annotations

import sys

from collbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
