"""`python -m autotune`, from a bare source tree too."""

import sys

from autotune.cli import main

if __name__ == "__main__":
    sys.exit(main())
