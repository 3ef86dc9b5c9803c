"""Results of the seam as user attributes of an Optuna trial, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.seam import Failed, Lowered, LoweredOnly, Measured, Race, RaceEntry, Timing, to_json

Result = Measured | LoweredOnly | Failed | Race

_TYPES: dict[str, type] = {"measured": Measured, "lowered": LoweredOnly, "failed": Failed, "race": Race}


def pack(result: Result) -> dict[str, Any]:
    """Returns `result` as JSON-able data that names its type."""
    name = next(name for name, kind in _TYPES.items() if isinstance(result, kind))
    if isinstance(result, Race):
        lanes = [
            {"finalist": lane.finalist, "formulation": lane.formulation, "result": pack(lane.result)}
            for lane in result.entries
        ]
        return {"type": name, "entries": lanes}
    return {"type": name, **to_json(result)}


def unpack(packed: Mapping[str, Any]) -> Result:
    """Returns the result that `pack` was given. Fields that a newer version added are left out.

    Raises:
        ValueError: The data names no type of result.
    """
    match packed.get("type"):
        case "measured":
            return Measured(
                lowered=_lowered(packed["lowered"]),
                timing=Timing(samples_us=tuple(packed["timing"]["samples_us"]), l2=packed["timing"]["l2"]),
                error=packed.get("error"),
                poisoned=packed.get("poisoned", False),
                duplicate_of=packed.get("duplicate_of"),
            )
        case "lowered":
            return LoweredOnly(lowered=_lowered(packed["lowered"]), duplicate_of=packed.get("duplicate_of"))
        case "failed":
            lowered = packed.get("lowered")
            return Failed(
                reason=packed["reason"],
                detail=packed["detail"],
                lowered=_lowered(lowered) if lowered else None,
            )
        case "race":
            return Race(
                entries=tuple(
                    RaceEntry(
                        finalist=lane["finalist"],
                        result=unpack(lane["result"]),
                        formulation=lane.get("formulation"),
                    )
                    for lane in packed["entries"]
                )
            )
        case other:
            raise ValueError(f"a stored result has the type {other!r}; known are {', '.join(_TYPES)}")


def digest_of(result: Result) -> str | None:
    """Returns the digest of the lowered module; None where it was not lowered, and for a race."""
    lowered = getattr(result, "lowered", None)
    return lowered.digest if lowered else None


def _lowered(packed: Mapping[str, Any]) -> Lowered:
    return Lowered(
        digest=packed["digest"],
        smem_bytes=packed.get("smem_bytes"),
        lower_s=packed["lower_s"],
        compile_s=packed.get("compile_s"),
    )
