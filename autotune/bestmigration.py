"""Best files of earlier versions, brought up to the present schema when they are read.

Each step takes the entries from one schema to the next. A knob that is missing needs no step: it takes its neutral
default. Entries that are broken pass through, so that reading them names what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Entries = dict[str, Any]

# Before schema 2 an entry might carry the names that Pallas's own Hopper example gives these knobs.
RENAMED_IN_2 = {
    "hopper_matmul": {
        "max_concurrent_steps": "stages",
        "epi_tile_m": "epi_m",
        "epi_tile_n": "epi_n",
        "grid_minor_dim": "grid_minor",
        "grid_tile_width": "raster_width",
        "wg_dimension": "wg_split",
    }
}


def migrated(raw: Mapping[str, Any], schema: int) -> Entries:
    """Returns a file's entries as the present schema has them.

    Args:
        raw: Entries by key, as the file of version `schema` holds them; left as they are.
    """
    entries = dict(raw)
    for version, step in sorted(STEPS.items()):
        if version >= schema:
            entries = step(entries)
    return entries


def _to_2(entries: Entries) -> Entries:
    """Schema 2: knobs under one name each; the card that an entry was verified on."""
    return {key: _entry_to_2(key, entry) for key, entry in entries.items()}


def _entry_to_2(key: str, entry: Any) -> Any:
    if not isinstance(entry, dict) or not entry:
        return entry
    renamed = RENAMED_IN_2.get(key.partition(" ")[0], {})
    knobs = entry.get("config")
    if isinstance(knobs, dict):
        entry = {**entry, "config": {renamed.get(name, name): value for name, value in knobs.items()}}
    return {**entry, "card": entry.get("card"), "power_limit_w": entry.get("power_limit_w")}


STEPS: dict[int, Callable[[Entries], Entries]] = {1: _to_2}
