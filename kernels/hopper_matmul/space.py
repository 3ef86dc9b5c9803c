"""The space of variants of a problem: its knobs, and the set of its legal configurations, enumerated with numpy.

Knobs are assigned one after the other, and each rule is applied as soon as the knobs that it reads are assigned, so
that the illegal majority is dropped early. The rules are those of `legality`; none is stated here again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hopper_matmul.config import KNOB_NAMES, Config
from hopper_matmul.cost import DRAINED, terms, total_us
from hopper_matmul.dependence import knobs_read
from hopper_matmul.direct import is_result_unfilled
from hopper_matmul.facts import Facts
from hopper_matmul.hardware import Device
from hopper_matmul.heuristic import LEAST_K, SKINNY_M, heuristic_configs, square_tiles
from hopper_matmul.legality import RULES
from hopper_matmul.matrix import odd_matrices
from hopper_matmul.problem import FieldError, Problem, one_of
from hopper_matmul.rates import rates_of
from hopper_matmul.rules import Rule
from hopper_matmul.scopes import PLANS

# The order is that of enumeration: knobs that decide most rules come first.
_KNOBS: dict[str, tuple[Any, ...]] = {
    "compute_wgs": (1, 2, 3),
    "wg_split": ("m", "n"),
    "swap_ab": (False,),
    "edges": ("pad",),
    "tile_m": (64, 128, 192, 256),
    "tile_n": (32, 64, 96, 128, 160, 192, 224, 256),
    "memory_registers": (40,),
    "tile_k": (32, 64, 128),
    "split_k": (1,),
    "combine": ("kernel",),
    "epi_m": (64, 128),
    "epi_n": (32, 64, 128),
    "cluster_m": (1, 2),
    "cluster_n": (1, 2),
    "scopes": tuple(PLANS),
    "stages": (2, 3, 4, 5, 6, 8),
    "delay_release": (0, 1),
    "persistent": (True, False),
    "max_sms": (0,),
    # It moves no chain by more than 0.3% (20 problems of 5 to 60 us), and CUPTI's durations of a kernel that waits for
    # the one before it say nothing: 54 us for a 64x4096x14336 that takes 33.5 us in a chain (H200, 2026-11-30).
    "pdl": (False,),
    "grid_minor": ("m", "n"),
    "raster_width": (1, 4, 8, 16),
}
assert set(_KNOBS) == set(KNOB_NAMES)
_SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48)
_MOST_WAVES = 4  # of CTAs that splitting k may give
_ASKED = tuple(rule for rule in RULES if not rule.implies)  # enough to know what is legal
# Rows that rules look at; more would take a gigabyte for spaces of millions, and no less time.
_AT_ONCE = 2**16


def default_knobs(problem: Problem, device: Device) -> dict[str, tuple[Any, ...]]:
    """Returns the values of each knob that are worth a try for a problem: tiles that it fills, parts it has."""
    knobs = dict(_KNOBS)
    if problem.layout[1] == "t":
        # A K-major rhs takes any columns; a row-major one takes whole swizzles, and narrow ones are slow.
        knobs["tile_n"] = (32, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)
    if odd_matrices(problem):
        # Swapped, a row-major rhs is the accumulator's rows, of which a warpgroup reads a panel of 64 at a time.
        knobs |= {"edges": ("view", "pad"), "swap_ab": (False, True)}
        if is_result_unfilled(problem):
            knobs["edges"] = ("view", "pad", "direct")
    # In turns warpgroups have tiles of 128x128, as many sums as one can hold.
    if square_tiles(problem) > device.sm_count:
        knobs["wg_split"] = ("m", "n", "tile")
    if problem.m <= SKINNY_M:
        narrow = [size for size in (8, 16, 32) if size < 2 * max(problem.m, 8)]
        knobs |= {
            "swap_ab": (False, True),
            "tile_m": (*narrow, 64),
            "epi_m": (*narrow, 64),
            "tile_k": (32, 64, 128, 256),
            "stages": (2, 3, 4, 5, 6, 8, 10, 12),
            "raster_width": (8,),
        }
    knobs["tile_m"] = tuple(size for size in knobs["tile_m"] if size < 2 * problem.m or size <= 64)
    knobs["tile_n"] = tuple(size for size in knobs["tile_n"] if size < 2 * problem.n or size <= 64)
    knobs["split_k"] = _splits(problem, device)
    if len(knobs["split_k"]) > 1:
        knobs |= {"grid_minor": ("m",), "raster_width": (8,)}  # any: so few tiles are all walked at once
        knobs["combine"] = ("kernel", "cluster")
    for config in heuristic_configs(
        problem, device
    ):  # the untuned choices are tried first, so they are in it
        for name, value in config.to_knobs().items():
            if value not in knobs[name]:
                knobs[name] = tuple(sorted((*knobs[name], value)))
    return knobs


def _splits(problem: Problem, device: Device) -> tuple[int, ...]:
    """Returns the parts of k worth a try: one where the tiles fill the device anyway."""
    most = min(_MOST_WAVES * device.sm_count // square_tiles(problem), problem.k // LEAST_K)
    return tuple(parts for parts in _SPLITS if parts <= max(1, most))


_PLAN_FACTS = (
    "fault",
    "is_union",
    "shares_bytes",
    "follows_ring",
    "opens_in_loop",
    "is_divergent",
    "acc_in_memory_role",
)


class PlanColumn:
    """A column of allocation plans, with the facts of `ScopePlan` that rules read as arrays."""

    def __init__(self, names: Sequence[str], codes: np.ndarray):
        for fact in _PLAN_FACTS:
            setattr(self, fact, np.array([getattr(PLANS[name], fact) for name in names])[codes])


class Columns:
    """Many configurations: an array for each knob, under the names of `Config`."""

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        for name in KNOB_NAMES:
            value = arrays.get(name)
            setattr(self, name, getattr(Config(), name) if value is None else value)
        if "scopes" in arrays and not isinstance(arrays["scopes"], PlanColumn):
            names, codes = np.unique(arrays["scopes"], return_inverse=True)
            self.scopes = PlanColumn([str(name) for name in names], codes)


def legal_mask(problem: Problem, arrays: Mapping[str, np.ndarray], device: Device) -> np.ndarray:
    """Returns which of many configurations are legal, (count,) of bool.

    Args:
        problem: The problem they are for.
        arrays: A (count,) array for each knob, numbers as int64, names as strings; missing knobs are neutral.
        device: Gives the limits.
    """
    facts = Facts(problem, Columns(arrays), device)
    broken = np.zeros(len(next(iter(arrays.values()))), dtype=bool)
    for rule in _ASKED:
        broken |= np.asarray(rule.breaks(facts), dtype=bool)
    return ~broken


@dataclass(frozen=True, slots=True, kw_only=True)
class LegalSet:
    """The legal configurations of a space.

    Attributes:
        names: Knobs, in the order of the columns of `codes`.
        values: The values of each knob.
        codes: (size, knobs) of uint8; codes[i, j] indexes values[j].
        rejected: Raw configurations by the first rule that dropped them; with `size` they sum up to the raw size.
        examples: For each of these rules the knobs of one configuration that breaks it.
    """

    names: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    codes: np.ndarray
    rejected: dict[str, int]
    examples: dict[str, dict[str, Any]]

    @property
    def size(self) -> int:
        return len(self.codes)

    def knobs(self, row: int) -> dict[str, Any]:
        """Returns one legal configuration as plain values."""
        return {name: self.values[j][code] for j, (name, code) in enumerate(zip(self.names, self.codes[row]))}


class Space:
    """The variants of one problem on one device."""

    def __init__(self, problem: Problem, device: Device, knobs: Mapping[str, tuple[Any, ...]]):
        self.problem = problem
        self.device = device
        self.knobs = dict(knobs)

    @property
    def raw_size(self) -> int:
        """Configurations, legal or not."""
        return math.prod(len(values) for values in self.knobs.values())

    def legal(self) -> LegalSet:
        """Returns the legal set; it is enumerated once."""
        return self._legal

    def predicted_us(self, codes: np.ndarray) -> np.ndarray:
        """Returns what the cost model predicts of configurations, (count,) of float64.

        Args:
            codes: (count, knobs) of indices into the values of each knob.
        """
        arrays = {name: np.array(values)[codes[:, j]] for j, (name, values) in enumerate(self.knobs.items())}
        del arrays["scopes"]
        drained = np.array([DRAINED[plan] for plan in self.knobs["scopes"]])[
            codes[:, list(self.knobs).index("scopes")]
        ]
        rates = rates_of(self.device)
        found = terms(self.problem, Columns(arrays), drained, self.device, rates)
        return np.broadcast_to(total_us(found, rates), len(codes)).astype(np.float64)

    @property
    def runtime_knobs(self) -> tuple[str, ...]:
        """The knobs that a kernel can read from memory: the order of the tiles, where there is a choice of bands."""
        return ("grid_minor", "raster_width") if len(self.knobs["raster_width"]) > 1 else ()

    def twins(self, codes: Sequence[int]) -> list[tuple[int, ...]]:
        """Returns the codes of the other configurations that do the same.

        One computing warpgroup has nothing to share out, so that `wg_split` changes nothing, and the modules are the
        same: in two recorded spaces 28 of 100 configurations have such a twin. Bands as wide as the tiles are many, or
        only one row or column of tiles, give the same order of the tiles.
        """
        names = list(self.knobs)
        own = {name: self.knobs[name][code] for name, code in zip(names, codes, strict=True)}
        splits = (
            range(len(self.knobs["wg_split"]))
            if own["compute_wgs"] == 1
            else [codes[names.index("wg_split")]]
        )
        orders = itertools.product(
            range(len(self.knobs["grid_minor"])), range(len(self.knobs["raster_width"]))
        )
        order = self._order(own, own["grid_minor"], own["raster_width"])
        alike = [
            (minor, width)
            for minor, width in orders
            if self._order(own, self.knobs["grid_minor"][minor], self.knobs["raster_width"][width]) == order
        ]
        found = []
        for split, (minor, width) in itertools.product(splits, alike):
            changed = {"wg_split": split, "grid_minor": minor, "raster_width": width}
            twin = tuple(changed.get(name, code) for name, code in zip(names, codes, strict=True))
            if twin != tuple(codes):
                found.append(twin)
        return found

    def _order(self, own: Mapping[str, Any], minor: str, width: int) -> tuple[str, int]:
        """Returns what names an order of the tiles: equal orders, equal names."""
        tiles = {
            "m": -(-self.problem.m // (own["tile_m"] * own["cluster_m"])),
            "n": -(-self.problem.n // (own["tile_n"] * own["cluster_n"])),
        }
        if min(tiles.values()) == 1:
            return "m", 1
        return minor, min(width, tiles[minor])

    @cached_property
    def _legal(self) -> LegalSet:
        names = tuple(self.knobs)
        codes = np.zeros((1, 0), dtype=np.uint8)
        rejected: dict[str, int] = {}
        examples: dict[str, dict[str, Any]] = {}
        unassigned = self.raw_size
        for position, rules in enumerate(self._rules_by_position(names)):
            if position > 0:
                count = len(self.knobs[names[position - 1]])
                unassigned //= count
                column = np.tile(np.arange(count, dtype=np.uint8), len(codes))
                codes = np.column_stack([np.repeat(codes, count, axis=0), column])
            codes = self._drop_illegal(names[:position], codes, rules, rejected, examples, unassigned)
        return LegalSet(
            names=names, values=tuple(self.knobs.values()), codes=codes, rejected=rejected, examples=examples
        )

    def _rules_by_position(self, names: Sequence[str]) -> list[list[Rule]]:
        """Returns for each number of assigned knobs the rules that can be applied from there on."""
        by_position: list[list[Rule]] = [[] for _ in range(len(names) + 1)]
        for rule in _ASKED:
            read = knobs_read(rule, self.problem, self.device)
            by_position[max((names.index(knob) + 1 for knob in read), default=0)].append(rule)
        return by_position

    def _drop_illegal(
        self,
        names: Sequence[str],
        codes: np.ndarray,
        rules: list[Rule],
        rejected: dict[str, int],
        examples: dict[str, dict[str, Any]],
        weight: int,
    ) -> np.ndarray:
        """Returns the rows that no rule drops; each row stands for `weight` raw configurations."""
        if not rules or not len(codes):
            return codes
        pieces = []
        for start in range(0, len(codes), _AT_ONCE):
            piece = codes[start : start + _AT_ONCE]
            facts = Facts(self.problem, Columns(self._arrays(names, piece, rules)), self.device)
            kept = np.ones(len(piece), dtype=bool)
            for rule in rules:
                broken = kept & np.asarray(rule.breaks(facts), dtype=bool)
                if dropped := int(broken.sum()):
                    rejected[rule.id] = rejected.get(rule.id, 0) + dropped * weight
                    row = piece[np.argmax(broken)]
                    assigned = {name: self.knobs[name][code] for name, code in zip(names, row, strict=True)}
                    example = {name: assigned.get(name, values[0]) for name, values in self.knobs.items()}
                    examples.setdefault(rule.id, example)
                    kept &= ~broken
            pieces.append(piece[kept])
        return np.concatenate(pieces)

    def _arrays(self, names: Sequence[str], codes: np.ndarray, rules: list[Rule]) -> dict[str, Any]:
        """Returns a column for each knob that the rules read; what they do not read may be anything."""
        read = frozenset().union(*(knobs_read(rule, self.problem, self.device) for rule in rules))
        return {
            name: PlanColumn(self.knobs[name], codes[:, j])
            if name == "scopes"
            else np.array(self.knobs[name])[codes[:, j]]
            for j, name in enumerate(names)
            if name in read
        }


def space_of(problem: Problem, device: Device, narrowing: Mapping[str, Sequence[Any]]) -> Space:
    """Returns the default space of a problem, narrowed knob by knob.

    Args:
        problem: The problem.
        device: The device it will run on.
        narrowing: Values for some knobs, instead of their default ones. They need not be among those.

    Raises:
        FieldError: An unknown knob, no values, a value twice, or one that the knob cannot have.
    """
    knobs = default_knobs(problem, device)
    for name, values in narrowing.items():
        one_of("knob", name, KNOB_NAMES)
        if isinstance(values, str) or not isinstance(values, Sequence) or not 0 < len(values) < 256:
            raise FieldError(name, values, "a list of 1 to 255 values")
        for value in values:
            Config.from_knobs({name: value})
        if len(set(values)) < len(values):
            raise FieldError(name, list(values), "each value once")
        knobs[name] = tuple(values)
    return Space(problem, device, knobs)
