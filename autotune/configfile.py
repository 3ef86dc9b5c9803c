"""Reading YAML and CSV files that a user wrote; each way to be broken is an InputError of one line."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import yaml

from autotune.errors import InputError
from autotune.fields import Place, listed, near, shown

MAX_BYTES = 4_000_000


def read_text(path: Path) -> str:
    """Returns the text of a file of at most MAX_BYTES in UTF-8.

    Raises:
        InputError: No such file, not a file, not readable, too large or not text.
    """
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder; allowed: a file")
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is not a regular file")
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path}: has {path.stat().st_size} bytes; allowed: at most {MAX_BYTES}")
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file{_near_file(path)}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{shown(str(path))}: cannot be read: {reason}") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not text in UTF-8 (byte {error.start})") from None
    if "\0" in text:
        raise InputError(f"{path}: is not text (byte {text.index(chr(0))} is zero)")
    return text


def read_yaml(path: Path) -> object:
    """Returns the one document of a YAML file as plain Python values.

    Raises:
        InputError: Not readable, not YAML, a key that stands twice in one mapping, or a number that YAML would
            read as another than it looks.
    """
    try:
        return yaml.load(read_text(path), Loader=_StrictLoader)
    except _UnclearNumberError as error:
        mark = error.problem_mark
        raise Place(file=str(path)).says(
            f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise Place(file=str(path)).says(f"is not valid YAML:{where} {error.problem}") from None
    except yaml.YAMLError as error:
        raise Place(file=str(path)).says(f"is not valid YAML: {error}") from None
    except RecursionError:
        raise InputError(f"{path}: is not valid YAML: nested too deeply") from None
    except ValueError as error:  # an impossible date, or an integer of more than 4,300 digits
        raise Place(file=str(path)).says(f"holds a value that cannot be read: {error}") from None


def read_csv(path: Path, columns: tuple[str, ...]) -> list[tuple[int, dict[str, str]]]:
    """Returns the rows of a CSV file with their line numbers; empty cells are left out.

    Raises:
        InputError: Not readable, a column that is unknown or stands twice, or a row of the wrong length.
    """
    file = Place(file=str(path))
    try:
        lines = list(csv.reader(read_text(path).splitlines(), strict=True))
    except csv.Error as error:
        raise file.says(f"is not valid CSV: {error}") from None
    if len(lines) < 2:
        raise file.says("holds no rows; allowed: a line of column names, then at least one row")
    header = [name.strip() for name in lines[0]]
    for name in header:
        if name not in columns:
            raise file.says(f"unknown column {shown(name)}{near(name, columns)}; allowed: {listed(columns)}")
        if header.count(name) > 1:
            raise file.says(f"column {shown(name)} stands twice")
    rows = []
    for number, cells in enumerate(lines[1:], start=2):
        if not cells:
            continue
        if len(cells) != len(header):
            raise file.says(
                f"line {number} has {len(cells)} cells; allowed: {len(header)}, one for each column"
            )
        named = zip(header, cells, strict=True)
        rows.append((number, {name: cell.strip() for name, cell in named if cell.strip()}))
    return rows


def _near_file(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return ""
    return near(path.name, names)


class _UnclearNumberError(yaml.MarkedYAMLError):
    """A number that YAML 1.1 reads as another than it looks: 010 as 8, 1:30 as 90."""


_UNCLEAR = "!unclear"
_UNCLEAR_NUMBER = re.compile(r"[-+]?0[0-9_]+|[-+]?[0-9][0-9_]*(?::[0-9]+)+(?:\.[0-9_]*)?")
# YAML 1.1 takes 1e3 and 1.5e3 for text.
_EXPONENT = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+")


class _StrictLoader(yaml.SafeLoader):
    """yaml.SafeLoader without its silent surprises.

    It refuses a key that stands twice, of which YAML would keep the last, and numbers that do not mean what they
    look like; 1e3 is a number.
    """

    def resolve(self, kind, value, implicit):
        if kind is yaml.ScalarNode and implicit[0]:  # without quotes
            if _UNCLEAR_NUMBER.fullmatch(value):
                return _UNCLEAR
            if _EXPONENT.fullmatch(value):
                return "tag:yaml.org,2002:float"
        return super().resolve(kind, value, implicit)

    def construct_unclear(self, node):
        meant = "base 60" if ":" in node.value else "octal"
        raise _UnclearNumberError(
            problem=f"{shown(node.value)} could be meant as {meant}; write the decimal number without a leading "
            "zero or colon, or quotes around a text",
            problem_mark=node.start_mark,
        )

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (str, int, float, bool)):
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {shown(key)} stands twice", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


_StrictLoader.add_constructor(_UNCLEAR, _StrictLoader.construct_unclear)
