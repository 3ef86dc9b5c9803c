"""Tables as aligned text: never cut, one row a line in a pipe and in a log, and narrower on a terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

INDENT = "  "


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Returns `header`, a rule and `rows` in columns two spaces apart; columns in `right` end flush."""
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]

    def render(line: Sequence[str]) -> str:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths))
        ]
        return "  ".join(cells).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([render(lines[0]), rule, *(render(line) for line in lines[1:])])


def fitted(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[int] = (),
    *,
    below: int,
    width: int | None,
) -> str:
    """Returns `aligned` where that fits; else the column `below` under each row; else each row as a block of lines.

    Args:
        below: The column of free text, which makes the table wide.
        width: Columns of the terminal; None where nobody reads it on one: then every row is one line.
    """
    text = aligned(header, rows, right)
    if width is None or _widest(text) <= width:
        return text
    kept = [column for column in range(len(header)) if column != below]
    narrow = aligned(
        [header[column] for column in kept],
        [[row[column] for column in kept] for row in rows],
        [kept.index(column) for column in right if column != below],
    )
    if _widest(narrow) > width:
        return "\n".join(_block(header, row, width) for row in rows)
    first, rule, *lines = narrow.splitlines()
    notes = [wrapped(row[below], width) if row[below] not in ("", "-") else None for row in rows]
    parts = [part for pair in zip(lines, notes, strict=True) for part in pair if part is not None]
    return "\n".join([first, rule, *parts])


def wrapped(text: str, width: int, indent: str = INDENT) -> str:
    """Returns a text in lines of `width`, all of them indented; a word that is longer stays whole."""
    return textwrap.fill(
        text,
        max(width, 20),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def terminal_width() -> int | None:
    """Returns the columns of the terminal that standard output is; None where it is a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _widest(text: str) -> int:
    return max(map(len, text.splitlines()))


def _block(header: Sequence[str], row: Sequence[str], width: int) -> str:
    names = max(map(len, header[1:]))
    lines = [row[0]]
    for name, cell in zip(header[1:], row[1:], strict=True):
        hanging = " " * (len(INDENT) + names + 2)
        lines.append(f"{INDENT}{name.ljust(names)}  {wrapped(cell, width, hanging).lstrip()}".rstrip())
    return "\n".join(lines)
