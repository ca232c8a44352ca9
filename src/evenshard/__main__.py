"""``python -m evenshard``, and ``torchrun -m evenshard``."""

import sys

from evenshard.cli import main

if __name__ == "__main__":
    sys.exit(main())
