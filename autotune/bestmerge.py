"""Best files of one kind of device put together, by a stated rule.

Rule, problem by problem: an entry measured by the preferred protocol beats one that was not; among equals, the one
whose gain over XLA is surely larger (its interval lies above the other's); where the intervals overlap, the newer
one; on the same day, the narrower interval; else the first file's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.bestfile import BestEntry, BestFile, entry_to_json, read_best
from autotune.errors import InputError

# Cold caches, normal inputs and settled clocks are nearer to a model's life than their contraries.
PREFERRED = (("l2", ("clean", "activations_warm", "warm")), ("inputs", ("normal", "integers")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The entries of all files, and which file each came from and why.

    Attributes:
        raw: Entries as a best file holds them, by key.
        origin: File and reason, by key.
    """

    device: Mapping[str, Any]
    raw: Mapping[str, Any]
    origin: Mapping[str, tuple[Path, str]]


def merge(paths: Sequence[Path]) -> Merged:
    """Returns the best files merged; broken entries are left out with a warning that names them.

    Raises:
        InputError: A file is missing or no best file, or they are of different kinds of device.
    """
    files = [_read(path) for path in paths]
    kind = files[0].device["kind"]
    for file in files[1:]:
        if file.device["kind"] != kind:
            raise InputError(
                f"{file.path}: is of {file.device['kind']}, {files[0].path} of {kind}; merge one kind"
            )
    best: dict[str, BestEntry] = {}
    raw: dict[str, Any] = {}
    origin: dict[str, tuple[Path, str]] = {}
    for file in files:
        for key, entry in file.entries():
            reason = "the only one" if key not in best else why_better(entry, best[key])
            if reason:
                best[key], origin[key] = entry, (file.path, reason)
                previous = file.raw[key].get("previous")
                raw[key] = entry_to_json(entry) | ({"previous": previous} if previous else {})
            else:
                origin[key] = origin[key][0], f"that of {file.path} is not better"
    return Merged(device=files[0].device, raw=raw, origin=origin)


def why_better(entry: BestEntry, than: BestEntry) -> str | None:
    """Returns why `entry` takes the place of `than`, which comes from an earlier file; None where it does not."""
    ranks = [[_rank(one.protocol, name, order) for name, order in PREFERRED] for one in (entry, than)]
    if ranks[0] != ranks[1]:
        return "the preferred protocol" if ranks[0] < ranks[1] else None
    (low, high), (other_low, other_high) = _interval(entry), _interval(than)
    if low > other_high:
        return "its gain over XLA is surely larger"
    if other_low > high:
        return None
    if entry.date != than.date:
        return "newer, and its interval overlaps" if entry.date > than.date else None
    return "of the same day, with the narrower interval" if high - low < other_high - other_low else None


def _interval(entry: BestEntry) -> tuple[float, float]:
    """Returns the interval of the gain; an answer of XLA gains nothing, for certain."""
    if entry.backend == "xla" or entry.ratio is None:
        return 1.0, 1.0
    return entry.ratio.low, entry.ratio.high


def _rank(protocol: Mapping[str, Any], name: str, order: Sequence[str]) -> int:
    value = protocol.get(name, order[0])
    return order.index(value) if value in order else len(order)


def _read(path: Path) -> BestFile:
    found = read_best(path)
    if found is None:
        raise InputError(f"{path}: no such file")
    return found
