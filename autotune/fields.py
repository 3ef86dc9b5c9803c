"""Reading values that a user wrote, with errors that say where, what, what is allowed and what was meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from autotune.errors import InputError

SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a value stands: a file (or an option of the command line) and the path of keys in it."""

    file: str = ""
    path: str = ""

    def key(self, name: object) -> Place:
        return replace(self, path=f"{self.path}.{name}" if self.path else f"{name}")

    def item(self, index: int) -> Place:
        return replace(self, path=f"{self.path}[{index}]")

    def says(self, text: str) -> InputError:
        """Returns an error about this place, on one line."""
        where = f"{self.file}: {self.path}" if self.file and self.path else self.file or self.path
        return InputError(" ".join(f"{where}: {text}".split()))

    def refuses(self, value: object, allowed: str) -> InputError:
        """Returns the error that `value` may not stand here."""
        if not self.path:
            return self.says(f"holds {shown(value)}; allowed: {allowed}")
        where = f"{self.file}: {self.path}" if self.file else self.path
        return InputError(" ".join(f"{where}={shown(value)}: allowed: {allowed}".split()))


def shown(value: object) -> str:
    """Returns a value as an error message shows it: one line, cut to a readable length."""
    if isinstance(value, (list, tuple, set)):
        return "[]" if not value else f"a list of {len(value)}"
    if isinstance(value, dict):
        return "{}" if not value else f"a mapping of {len(value)} keys"
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def near(name: object, names: Iterable[str]) -> str:
    """Returns " (did you mean 'x'?)" for the name that `name` most resembles, or nothing."""
    import difflib  # only where something is wrong

    meant, names = str(name)[:SHOWN_CHARACTERS].lower(), list(names)
    ending = [one for one in names if one.endswith(f"_{meant}")]  # of dtype, lhs_dtype comes first
    close = ending or difflib.get_close_matches(meant, names, n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def listed(names: Iterable[object]) -> str:
    return ", ".join(str(name) for name in names)


def mapping(value: object, place: Place, keys: Iterable[str]) -> dict[str, object]:
    """Returns `value` if it is a mapping without keys other than `keys`."""
    keys = tuple(keys)
    if not isinstance(value, Mapping):
        raise place.refuses(value, f"a mapping with the keys {listed(keys)}")
    for key in value:
        if key not in keys:
            name = key if isinstance(key, str) else shown(key)
            raise place.key(name[:SHOWN_CHARACTERS]).says(
                f"unknown key{near(name, keys)}; allowed: {listed(keys)}"
            )
    return dict(value)


def items(value: object, place: Place, what: str) -> list[object]:
    """Returns `value` if it is a list with at least one item."""
    if not isinstance(value, list) or not value:
        raise place.refuses(value, f"a list of at least one {what}")
    return value


def choice(value: object, place: Place, names: tuple[str, ...]) -> str:
    """Returns `value` if it is one of `names`."""
    if not isinstance(value, str) or value not in names:
        raise place.refuses(value, listed(names) + near(value, names))
    return value


def whole(value: object, place: Place, low: int, high: int) -> int:
    """Returns `value` if it is a whole number from `low` to `high`; true and false are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise place.refuses(value, f"a whole number from {low} to {high}")
    return value


def truth(value: object, place: Place) -> bool:
    """Returns true or false as they stand there."""
    if not isinstance(value, bool):
        raise place.refuses(value, "true, false")
    return value


def positive(value: object, place: Place, high: float) -> float:
    """Returns `value` if it is a number above 0 and up to `high`."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if (
        not is_number or not 0 < value <= high
    ):  # NaN compares false; whole numbers may be too large for a float
        raise place.refuses(value, f"a number above 0, up to {high:g}")
    return float(value)


def text(value: object, place: Place, what: str) -> str:
    """Returns `value` if it is a string that is not empty and has no control characters."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise place.refuses(value, what)
    return value
