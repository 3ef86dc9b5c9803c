"""Recorded spaces: the measured times of all legal configurations of one problem on one device.

A file is gzip of JSON lines. The first line is the header, the second the rival's samples (or null), and each
further line one configuration: `[[code, ...], [time_us, ...], digest]`, or `[[code, ...], "reason: detail",
digest]` where it failed. A code indexes the header's values of its knob.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from autotune.errors import InputError
from autotune.seam import Failed, FailureReason, L2State

SCHEMA = 1
SUFFIX = ".json.gz"
DECIMALS = 3  # of microseconds: CUPTI counts nanoseconds
HEADER_TYPES: dict[str, type] = {
    "target": str,
    "problem": dict,
    "device": dict,
    "date": str,
    "versions": dict,
    "source_digest": str,
    "protocol": dict,
    "command": str,
    "knobs": dict,
    "rows": int,
}

Codes = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRow:
    """What became of one configuration: samples in us, or why it failed.

    Attributes:
        digest: Of its lowered module when it was recorded; None where it did not lower.
    """

    samples_us: tuple[float, ...] = ()
    failed: Failed | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSpace:
    """One recorded space.

    Attributes:
        problem: Its fields, as `problem.to_fields()` gives them.
        device: Fields of the device, with its `kind`.
        date: ISO date of the recording.
        versions: Of jax, jaxlib, driver and the like.
        source_digest: Of the kernel's sources, as `target.source_digest()` gave it.
        protocol: Fields of the `seam.MeasureProtocol`.
        command: What recorded it.
        knobs: The values of each knob, in the order of the codes.
        rows: By codes.
        rival_us: Samples of the target's rival in us; empty where it was not measured.
        shares_binaries: Rows were measured with run-time knobs, and their digests count those.
    """

    target: str
    problem: Mapping[str, Any]
    device: Mapping[str, Any]
    date: str
    versions: Mapping[str, Any]
    source_digest: str
    protocol: Mapping[str, Any]
    command: str
    knobs: Mapping[str, tuple[Any, ...]]
    rows: Mapping[Codes, RecordedRow]
    rival_us: tuple[float, ...] = ()
    shares_binaries: bool = False
    _code_of: dict[str, dict[Any, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        codes = {
            name: {value: code for code, value in enumerate(values)} for name, values in self.knobs.items()
        }
        object.__setattr__(self, "_code_of", codes)

    @property
    def l2(self) -> L2State:
        return self.protocol["l2"]

    @property
    def digest(self) -> str:
        """Names the content: 16 hex digits, equal for equal recordings."""
        return hashlib.sha256(_text(self).encode()).hexdigest()[:16]

    def codes(self, knobs: Mapping[str, Any]) -> Codes | None:
        """Returns the codes of a configuration; None where one of its values is not in the recorded space."""
        try:
            return tuple(self._code_of[name][knobs[name]] for name in self.knobs)
        except KeyError:
            return None

    def row(self, knobs: Mapping[str, Any]) -> RecordedRow | None:
        codes = self.codes(knobs)
        return None if codes is None else self.rows.get(codes)


def write_recorded(path: Path, space: RecordedSpace) -> None:
    """Writes a recorded space, whole or not at all; equal spaces give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            file.write(gzip.compress(_text(space).encode(), mtime=0))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_recorded(path: Path) -> RecordedSpace:
    """Reads a recorded space.

    Raises:
        InputError: The file is missing, torn, of another schema, or its rows do not fit its header.
    """
    header, lines = _parse(path)
    knobs = {name: tuple(values) for name, values in header["knobs"].items()}
    rows: dict[Codes, RecordedRow] = {}
    for number, line in enumerate(lines[2:], start=3):
        codes, row = _row(path, number, line, knobs)
        if codes in rows:
            raise InputError(f"{path}: line {number}: the configuration {list(codes)} stands there twice")
        rows[codes] = row
    if len(rows) != header["rows"]:
        raise InputError(
            f"{path}: {len(rows)} rows, but its header counts {header['rows']}: the file is torn. Restore it"
        )
    fields = {name: header[name] for name in HEADER_TYPES if name not in ("knobs", "rows")}
    rival_us = lines[1] if len(lines) > 1 and lines[1] else ()
    return RecordedSpace(
        **fields,
        knobs=knobs,
        rows=rows,
        rival_us=tuple(rival_us),
        shares_binaries=bool(header.get("shares_binaries", False)),
    )


def find_recorded(
    folder: Path, problem: Any, target_name: str, device_kind: str | None = None
) -> RecordedSpace | None:
    """Returns the newest recorded space of a problem under `folder`; None where there is none.

    Args:
        problem: With `to_fields()`, which must equal the recorded fields.
        device_kind: Device it must have been recorded on; None: any.

    Raises:
        InputError: A file there is no recorded space.
    """
    wanted = problem.to_fields()
    fitting = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        header = _header(path)
        fits = header["target"] == target_name and header["problem"] == wanted
        if fits and device_kind in (None, header["device"].get("kind")):
            fitting.append((header["date"], path))
    return read_recorded(max(fitting)[1]) if fitting else None


def _text(space: RecordedSpace) -> str:
    header = {"schema": SCHEMA} | {
        name: dict(value) if isinstance(value := getattr(space, name), Mapping) else value
        for name in HEADER_TYPES
        if name != "rows"
    }
    header["knobs"] = {name: list(values) for name, values in space.knobs.items()}
    header["rows"] = len(space.rows)
    if space.shares_binaries:
        header["shares_binaries"] = True
    lines: list[Any] = [header, _rounded(space.rival_us) or None]
    for codes, row in sorted(space.rows.items()):
        failed = row.failed
        outcome = _rounded(row.samples_us) if failed is None else f"{failed.reason}: {failed.detail}"
        lines.append([list(codes), outcome, row.digest])
    return "".join(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n" for line in lines)


def _rounded(samples_us: Sequence[float]) -> list[float]:
    return [round(sample, DECIMALS) for sample in samples_us]


def _parse(path: Path) -> tuple[dict[str, Any], list[Any]]:
    """Returns the checked header and all lines."""
    try:
        text = gzip.decompress(path.read_bytes()).decode()
        lines = [json.loads(line) for line in text.splitlines()]
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path}: not a recorded space (gzip of JSON lines): {error}") from None
    if not lines:
        raise InputError(f"{path}: the file is empty; a recorded space begins with a header line")
    return _checked_header(path, lines[0]), lines


def _header(path: Path) -> dict[str, Any]:
    try:
        with gzip.open(path, "rt") as file:
            header = json.loads(file.readline())
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path}: not a recorded space (gzip of JSON lines): {error}") from None
    return _checked_header(path, header)


def _checked_header(path: Path, header: Any) -> dict[str, Any]:
    schema = header.get("schema") if isinstance(header, dict) else None
    if schema != SCHEMA:
        raise InputError(f"{path}: schema {schema!r}; this version reads {SCHEMA}. Record the space again")
    for name, expected in HEADER_TYPES.items():
        if not isinstance(header.get(name), expected):
            raise InputError(
                f"{path}: header: {name} is {header.get(name)!r}; it must be of the type {expected.__name__}"
            )
    if header["protocol"].get("l2") not in get_args(L2State):
        allowed = ", ".join(get_args(L2State))
        raise InputError(
            f"{path}: header: protocol.l2 is {header['protocol'].get('l2')!r}; allowed: {allowed}"
        )
    for name, values in header["knobs"].items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{path}: header: knobs.{name} is {values!r}; it must be a list of values")
    return header


def _row(
    path: Path, number: int, line: Any, knobs: Mapping[str, tuple[Any, ...]]
) -> tuple[Codes, RecordedRow]:
    place = f"{path}: line {number}"
    if not (isinstance(line, list) and len(line) == 3 and isinstance(line[0], list)):
        raise InputError(
            f"{place}: a row is [codes, samples or failure, digest], not {json.dumps(line)[:80]}"
        )
    codes, outcome, digest = line
    if len(codes) != len(knobs):
        raise InputError(f"{place}: {len(codes)} codes for the header's {len(knobs)} knobs")
    for (name, values), code in zip(knobs.items(), codes, strict=True):
        if not (isinstance(code, int) and 0 <= code < len(values)):
            raise InputError(f"{place}: code {code!r} of {name}; the header has {len(values)} values for it")
    if isinstance(outcome, list) and outcome:
        return tuple(codes), RecordedRow(samples_us=tuple(outcome), digest=digest)
    reason, _, detail = outcome.partition(": ") if isinstance(outcome, str) else ("", "", "")
    if reason not in get_args(FailureReason):
        raise InputError(f"{place}: {outcome!r} is neither a list of samples in us nor 'reason: detail'")
    return tuple(codes), RecordedRow(failed=Failed(reason=reason, detail=detail), digest=digest)
