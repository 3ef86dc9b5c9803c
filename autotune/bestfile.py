"""Best files: results/best/<device slug>.json, the winners of one device.

Read lazily, written whole or not at all. The file is JSON with one line a field and one block an entry,
sorted, so that a diff shows what changed. Entries are keyed by target and problem. This module loads neither
jax, numpy nor pandas.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from autotune.bestmigration import migrated
from autotune.errors import InputError
from autotune.target import load_target

SCHEMA = 2
OPTIONAL = ("formulation", "plain_us", "joules", "xla_joules", "rerun_chance")  # written where known
Backend = Literal["kernel", "xla"]


class BestFileWarning(UserWarning):
    """An entry, or a whole file, that is left out because it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """XLA's time over the kernel's, from one interleaved race: above 1 the kernel wins."""

    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BestEntry:
    """The winner of one problem on one device, and what its times hold for.

    Attributes:
        backend: "kernel", or "xla" where XLA won or tied.
        config: The fastest kernel configuration, also where XLA beat it; None where no kernel survived.
        kernel_us: None where no kernel survived.
        xla_us: None where XLA could not be measured.
        ratio: None where one of the two times is missing.
        digest: Of the lowered module of `config`; a change of it makes the entry stale.
        protocol: How the times were taken: timer, l2, rounds, warmup.
        numerics: Accumulation class, such as "float32".
        formulation: Of XLA's product, such as "plain" or "padded"; `xla_us` is its time. None in older entries.
        plain_us: Of the plain formulation.
        joules, xla_joules: Energy of one call at settled clocks; None where it was not measured.
        rerun_chance: Estimated chance that a second race would crown another.
        date: Day of the race, ISO 8601.
        card, power_limit_w: UUID of the card it was last verified on, and its limit; None where not recorded.
    """

    target: str
    problem: Any
    backend: Backend
    config: Any | None
    kernel_us: float | None
    xla_us: float | None
    ratio: Ratio | None
    digest: str | None
    driver: str
    jax: str
    jaxlib: str
    protocol: Mapping[str, Any]
    numerics: str
    date: str
    formulation: str | None = None
    plain_us: float | None = None
    joules: float | None = None
    xla_joules: float | None = None
    rerun_chance: float | None = None
    card: str | None = None
    power_limit_w: float | None = None

    @property
    def gain(self) -> float:
        """What the answer of this entry gains over XLA; 1.0 where the answer is XLA."""
        return self.ratio.median if self.backend == "kernel" and self.ratio else 1.0


class BestFile:
    """A best file that was read. Its entries are checked when asked for, since most lookups want one."""

    def __init__(
        self, path: Path, device: Mapping[str, Any], raw: dict[str, Any], load: Callable[[str], Any]
    ):
        self.path = path
        self.device = device
        self.raw = raw
        self._load = load
        self._checked: dict[str, BestEntry | None] = {}

    def entry(self, key: str) -> BestEntry | None:
        """Returns the entry of that key; None, with a warning that names it, where it is broken."""
        if key not in self._checked and key in self.raw:
            try:
                self._checked[key] = _entry_from_json(key, self.raw[key], self._load)
            except (ValueError, TypeError, KeyError, InputError) as error:
                self._checked[key] = None
                text = f"{self.path}: entry {key!r} is left out: {_reason(error)}"
                warnings.warn(BestFileWarning(text), stacklevel=2)
        return self._checked.get(key)

    def entries(self) -> Iterator[tuple[str, BestEntry]]:
        """Yields the sound entries with their keys, in the order of the file."""
        for key in self.raw:
            entry = self.entry(key)
            if entry is not None:
                yield key, entry


def entry_key(target: str, problem: Any) -> str:
    """Returns the key of a problem's entry: the target, then the problem's fields in the order of a suite."""
    return f"{target} " + ",".join(str(value) for value in problem.to_fields().values())


def read_best(path: Path, load: Callable[[str], Any] = load_target) -> BestFile | None:
    """Reads a best file; None where there is none.

    Args:
        load: Returns the target of a name; tests pass their own.

    Raises:
        InputError: The file is not a best file, is torn, or has a schema newer than this version knows.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return parse_best(path, content, load)


def parse_best(path: Path, text: bytes, load: Callable[[str], Any] = load_target) -> BestFile:
    """Returns the best file that `text` is; `path` names it in messages.

    Raises:
        InputError: As `read_best`.
    """
    try:
        content = json.loads(text, parse_constant=lambda name: None)  # NaN: that entry is broken
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON ({error}); restore it, or move it away") from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise InputError(f"{path}: is not a best file: no schema number; restore it, or move it away")
    if schema > SCHEMA:
        raise InputError(
            f"{path}: has schema {schema}; this version reads up to {SCHEMA}: update hopper-autotune"
        )
    device, raw = content.get("device"), content.get("entries")
    if not isinstance(device, dict) or not isinstance(device.get("kind"), str) or not isinstance(raw, dict):
        raise InputError(f"{path}: is not a best file: `device` or `entries` is missing")
    return BestFile(path, device, migrated(raw, schema), load)


def write_best(path: Path, device: Mapping[str, Any], raw: Mapping[str, Any]) -> None:
    """Replaces the file in one step: a reader, or a crash at any instruction, sees the old one or the new one.

    Call it under `locked(path.parent)`.

    Args:
        device: kind, sm_count, memory_bytes and power_limit_w of the device.
        raw: Entries as `entry_to_json` gives them, by key.
    """
    for torn in path.parent.glob(f".{path.name}.*.tmp"):  # of a writer that was killed; the lock is ours
        torn.unlink(missing_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # "x" refuses what stands there, so that a link is never written through.
        with temporary.open("x", encoding="utf-8") as stream:
            stream.write(best_text(device, raw))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock, so that of two runs at once each sees what the other wrote."""
    # On the folder itself: a lock file would stay behind among the results. flock ends with its holder, even
    # one that was killed.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def entry_to_json(entry: BestEntry) -> dict[str, Any]:
    """Returns an entry as the file holds it; times to the nanosecond."""
    ratio = entry.ratio
    return {
        "problem": entry.problem.to_fields(),
        "backend": entry.backend,
        "config": entry.config.to_knobs() if entry.config is not None else None,
        "kernel_us": _rounded(entry.kernel_us, 3),
        "xla_us": _rounded(entry.xla_us, 3),
        "ratio": [_rounded(value, 4) for value in (ratio.low, ratio.median, ratio.high)] if ratio else None,
        **{
            name: _rounded(value, 4) if isinstance(value, float) else value
            for name in OPTIONAL
            if (value := getattr(entry, name)) is not None
        },
        "numerics": entry.numerics,
        "protocol": dict(entry.protocol),
        "digest": entry.digest,
        "driver": entry.driver,
        "jax": entry.jax,
        "jaxlib": entry.jaxlib,
        "date": entry.date,
        "card": entry.card,
        "power_limit_w": entry.power_limit_w,
    }


def _entry_from_json(key: str, raw: Any, load: Callable[[str], Any]) -> BestEntry:
    if not isinstance(raw, dict):
        raise ValueError("is not a mapping")
    target = load(key.partition(" ")[0])
    problem = target.problem_from_fields(raw["problem"])
    if entry_key(target.name, problem) != key:
        raise ValueError(f"its problem is that of {entry_key(target.name, problem)!r}")
    backend, knobs = raw["backend"], raw["config"]
    if backend not in ("kernel", "xla") or (backend == "kernel" and knobs is None):
        raise ValueError(f"backend={backend!r} with config={knobs!r}")
    if not isinstance(raw["protocol"], dict):
        raise ValueError(f"protocol={raw['protocol']!r}: allowed: a mapping")
    return BestEntry(
        target=target.name,
        problem=problem,
        backend=backend,
        config=target.config_from_knobs(knobs) if knobs is not None else None,
        kernel_us=_number("kernel_us", raw["kernel_us"]) if knobs is not None else None,
        xla_us=_number("xla_us", raw["xla_us"]) if backend == "xla" or raw["xla_us"] is not None else None,
        ratio=_ratio(raw["ratio"]) if raw["ratio"] is not None else None,
        digest=_text("digest", raw["digest"]) if knobs is not None else None,
        driver=_text("driver", raw["driver"]),
        jax=_text("jax", raw["jax"]),
        jaxlib=_text("jaxlib", raw["jaxlib"]),
        protocol=raw["protocol"],
        numerics=_text("numerics", raw["numerics"]),
        date=_text("date", raw["date"]),
        **{name: raw.get(name) for name in OPTIONAL},
        card=_text("card", raw["card"]) if raw["card"] is not None else None,
        power_limit_w=_number("power_limit_w", raw["power_limit_w"])
        if raw["power_limit_w"] is not None
        else None,
    )


def _ratio(value: Any) -> Ratio:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError(f"ratio={value!r}: allowed: [low, median, high]")
    low, median, high = (_number("ratio", one) for one in value)
    if not low <= median <= high:
        raise ValueError(f"ratio={value!r}: allowed: low <= median <= high")
    return Ratio(low=low, median=median, high=high)


def _number(name: str, value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name}={value!r}: allowed: a finite number above 0")
    return float(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}={value!r}: allowed: a string")
    return value


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _reason(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())


def _natural(key: str) -> list[tuple[int, int | str]]:
    """Sorts m=64 before m=128."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", key) if part]


def best_text(device: Mapping[str, Any], raw: Mapping[str, Any]) -> str:
    """Returns a best file's text."""
    lines = ["{", f' "schema": {SCHEMA},', f' "device": {_line(device)},', ' "entries": {']
    lines.append(",\n".join(_block(key, raw[key]) for key in sorted(raw, key=_natural)))
    return "\n".join([*lines, " }", "}", ""])


def _block(key: str, value: Any) -> str:
    if not isinstance(value, dict) or not value:  # a broken entry stays for a person to look at
        return f"  {_line(key)}: {_line(value)}"
    body = ",\n".join(f"   {_line(name)}: {_line(field)}" for name, field in value.items())
    return f"  {_line(key)}: {{\n{body}\n  }}"


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
