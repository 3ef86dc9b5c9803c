"""The process of a command: `autotune`, and `python -m autotune` from a bare source tree too."""

import sys

from autotune import interrupt


def main() -> int:
    """Runs the command of this process's arguments and returns its exit code.

    Ctrl-C ends it in one line from here on: what is imported next takes longer than it takes to change one's mind.
    """
    interrupt.end_at_once()
    from autotune import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
