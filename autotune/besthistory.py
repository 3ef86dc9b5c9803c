"""What won one problem when, on which card and toolchain: from the nights' history and the best file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.bestfile import entry_key, read_best
from autotune.errors import InputError
from autotune.target import load_target
from autotune.textable import fitted, terminal_width

HEADER = ("date", "verdict", "winner", "kernel us", "XLA us", "config", "card", "driver", "jax", "jaxlib")


def history(
    fields: Mapping[str, Any], *, results: Path, device: str | None = None, target: str = "hopper_matmul"
) -> list[dict[str, Any]]:
    """Returns the nights of a problem, oldest first, then what stands in the best file and what it replaced.

    Args:
        fields: Of the problem, as `problem_from_fields` takes them.
        device: Kind of the device; None: every kind that there is a history of.

    Raises:
        InputError: There is no such problem or device.
    """
    family = load_target(target)
    try:
        problem = family.problem_from_fields(fields)
        slug = family.device_named(device).slug if device is not None else None
    except ValueError as error:
        raise InputError(str(error)) from None
    key = entry_key(family.name, problem)
    rows: list[dict[str, Any]] = []
    for path in _named(results / "nightly" / "history", slug, "jsonl"):
        from autotune.nightly.files import LineFile
        from autotune.nightly.history import read_history

        rows += [dict(record) for record in read_history(LineFile(path)).problems.get(key, ())]
    for path in _named(results / "best", slug, "json"):
        found = read_best(path)
        entry = found.raw.get(key) if found else None
        if isinstance(entry, dict):
            previous = entry.get("previous")
            rows += [{**previous, "verdict": "replaced"}] if isinstance(previous, dict) else []
            rows.append(
                {name: value for name, value in entry.items() if name != "previous"} | {"verdict": "stored"}
            )
    return sorted(rows, key=lambda row: str(row.get("date", "")))


def text(rows: list[dict[str, Any]]) -> str:
    """Returns the history as a table."""
    if not rows:
        return "no history of this problem"
    return fitted(HEADER, [_row(row) for row in rows], right=(3, 4), below=5, width=terminal_width())


def _named(folder: Path, slug: str | None, ending: str) -> list[Path]:
    return [p for p in sorted(folder.glob(f"*.{ending}")) if slug is None or p.stem == slug]


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    config = row.get("config")
    if isinstance(config, dict):
        from autotune.nightly.values import fingerprint

        config = fingerprint(config)
    times = [row.get(name) for name in ("kernel_us", "xla_us")]
    card = str(row.get("card") or "-")
    return (
        str(row.get("date", "-")),
        str(row.get("verdict", "-")),
        str(row.get("backend") or "-"),
        *("-" if time_us is None else f"{time_us:.2f}" for time_us in times),
        str(config or "-"),
        card if len(card) <= 12 else f"{card[:12]}...",
        *(str(row.get(name, "-")) for name in ("driver", "jax", "jaxlib")),
    )
