"""The legal set as a table: which row holds given knobs, which rows are spent, which unspent row is nearest."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

# Added to the distance of a spent row. Hamming distances stay below it and the sum stays below 256.
_SPENT = 128


class LegalRows:
    """Rows of a legal set, each spent at most once.

    Attributes:
        names: Knob names, in the order of the code columns.
        choices: Values of each knob; a code is an index into them.
        size: Number of legal configurations.
        runtime_knobs: Those that one executable of the target can take as an operand.
        remaining: Rows that are not spent yet.
    """

    def __init__(self, space: Any) -> None:
        self._legal = space.legal()
        self._predicted_us = getattr(space, "predicted_us", None)
        self._twins = getattr(space, "twins", None)
        self.runtime_knobs: tuple[str, ...] = tuple(getattr(space, "runtime_knobs", ()))
        self.names = tuple(space.knobs)
        self.choices = tuple(tuple(values) for values in space.knobs.values())
        self.size = int(self._legal.size)
        self.remaining = self.size
        if len(self.names) >= _SPENT:
            raise ValueError(f"{len(self.names)} knobs; at most {_SPENT - 1} are supported")
        codes = np.asarray(self._legal.codes, dtype=np.uint8).reshape(self.size, len(self.names))
        # A column at a time is contiguous, so that comparing 300,000 rows is one pass of SIMD a knob.
        self._columns = np.ascontiguousarray(codes.T)
        self._spent = np.zeros(self.size, dtype=np.uint8)
        self._code_of = tuple({value: code for code, value in enumerate(values)} for values in self.choices)
        self._ordered = tuple(_is_ordered(values) for values in self.choices)
        self._free = tuple(j for j, values in enumerate(self.choices) if len(values) > 1)
        self._radix = _radix([len(values) for values in self.choices])
        keys = np.zeros(self.size, dtype=np.uint64)
        for column, weight in zip(self._columns, self._radix):  # all at once would take 16 times the memory
            keys += column.astype(np.uint64) * weight
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    @property
    def has_model(self) -> bool:
        """Whether the target predicts times."""
        return self._predicted_us is not None

    def predicted_us(self, rows: np.ndarray) -> np.ndarray:
        """Returns the times that the target predicts of rows, (count,) of us; only where `has_model`."""
        return np.asarray(self._predicted_us(self.codes_of(rows)), dtype=np.float64)

    def codes_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the codes of rows, (count, knobs) of uint8."""
        return np.ascontiguousarray(self._columns[:, rows].T)

    def are_spent(self, rows: np.ndarray) -> np.ndarray:
        """Returns which of `rows` were proposed, (count,) of bool."""
        return self._spent[rows] != 0

    def encode(self, knobs: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Returns the codes of `knobs`; None where a knob or its value is not in the space."""
        if knobs.keys() != set(self.names):
            return None
        codes = tuple(table.get(knobs[name]) for name, table in zip(self.names, self._code_of))
        return None if None in codes else codes

    def decode(self, codes: tuple[int, ...]) -> dict[str, Any]:
        """Returns the knobs that `codes` stand for."""
        return {name: values[code] for name, values, code in zip(self.names, self.choices, codes)}

    def is_ordered(self, knob: int) -> bool:
        """Whether the values of a knob are numbers in order, so that a step between them means something."""
        return self._ordered[knob]

    def codes(self, row: int) -> tuple[int, ...]:
        return tuple(self._columns[:, row].tolist())

    def find(self, codes: tuple[int, ...]) -> int | None:
        """Returns the row that holds `codes`; None where they are not legal."""
        wanted = np.array(codes, dtype=np.uint8)
        key = (wanted.astype(np.uint64) * self._radix).sum(dtype=np.uint64)
        position = int(np.searchsorted(self._keys, key))
        # Keys of spaces beyond 2**64 points wrap around, so equal keys are compared code by code.
        while position < self.size and self._keys[position] == key:
            row = int(self._order[position])
            if np.array_equal(self._columns[:, row], wanted):
                return row
            position += 1
        return None

    def is_spent(self, row: int) -> bool:
        return bool(self._spent[row])

    def spend(self, row: int) -> None:
        """Marks `row` as proposed; a second time changes nothing."""
        if not self._spent[row]:
            self._spent[row] = _SPENT
            self.remaining -= 1

    def spend_twins(self, row: int) -> None:
        """Spends the rows that do the same as `row`."""
        for codes in self._twins(self.codes(row)) if self._twins else ():
            twin = self.find(codes)
            if twin is not None:
                self.spend(twin)

    def siblings(self, row: int) -> np.ndarray:
        """Returns the unspent rows that differ from `row` in run-time knobs alone, (count,) of int64."""
        free = [self.names.index(name) for name in self.runtime_knobs]
        codes = list(self.codes(row))
        found = []
        for values in itertools.product(*(range(len(self.choices[j])) for j in free)):
            for j, code in zip(free, values, strict=True):
                codes[j] = code
            sibling = self.find(tuple(codes))
            if sibling is not None and sibling != row and not self.is_spent(sibling):
                found.append(sibling)
        return np.array(found, dtype=np.int64)

    def nearest(self, codes: tuple[int, ...], rng: np.random.Generator) -> int | None:
        """Returns the unspent row nearest to `codes`; None where all are spent.

        What is equally near is drawn by `rng`, since the first row would favour a corner.
        """
        if not self.remaining:
            return None
        closest = self._closest(codes, self._spent)
        return int(closest[rng.integers(closest.size)])

    def nearest_legal(self, knobs: Mapping[str, Any]) -> int:
        """Returns the first of the rows nearest to `knobs`, spent or not.

        A value that the space lacks stands for the nearest it has where both are numbers, else for its first; a knob
        that is not named, for its first value.
        """
        codes = tuple(
            _closest_code(values, knobs.get(name, values[0]))
            for name, values in zip(self.names, self.choices)
        )
        row = self.find(codes)
        return int(self._closest(codes, np.zeros_like(self._spent))[0]) if row is None else row

    def _closest(self, codes: tuple[int, ...], handicap: np.ndarray) -> np.ndarray:
        """Returns the rows nearest to `codes`.

        Fewest differing knobs come first, with a row's handicap added; among those, the smallest sum of rank steps of
        the ordered knobs, each as a share of the knob's range.
        """
        hamming = handicap.copy()
        for j in self._free:
            hamming += self._columns[j] != codes[j]
        rows = np.flatnonzero(hamming == hamming.min())
        steps = np.zeros(rows.size)
        for j in self._free:
            if self._ordered[j]:
                difference = np.abs(self._columns[j][rows].astype(np.int16) - codes[j])
                steps += difference / (len(self.choices[j]) - 1)
        return rows[steps <= steps.min() + 1e-9]

    def knobs(self, row: int) -> dict[str, Any]:
        return dict(self._legal.knobs(row))


def _closest_code(values: tuple[Any, ...], value: Any) -> int:
    same = [code for code, one in enumerate(values) if one == value and type(one) is type(value)]
    if same:
        return same[0]
    if not _is_ordered((value,)) or not all(_is_ordered((one,)) for one in values):
        return 0
    return min(range(len(values)), key=lambda code: abs(values[code] - value))


def _is_ordered(values: tuple[Any, ...]) -> bool:
    """Whether distance in rank means something: strictly increasing or decreasing numbers, not booleans."""
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return False
    pairs = list(itertools.pairwise(values))
    return all(a < b for a, b in pairs) or all(a > b for a, b in pairs)


def _radix(sizes: list[int]) -> np.ndarray:
    """Returns the mixed-radix weight of each knob, modulo 2**64."""
    weights, product = [], 1
    for size in sizes:
        weights.append(product % 2**64)
        product *= size
    return np.array(weights, dtype=np.uint64)
