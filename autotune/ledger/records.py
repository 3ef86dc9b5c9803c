"""Results of the seam as user attributes of an Optuna trial, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.seam import (
    Conditions,
    Confirmed,
    Failed,
    Lowered,
    LoweredOnly,
    Measured,
    Race,
    RaceEntry,
    Timing,
    to_json,
)

Result = Measured | LoweredOnly | Failed | Race | Confirmed

_TYPES: dict[str, type] = {
    "measured": Measured,
    "lowered": LoweredOnly,
    "failed": Failed,
    "race": Race,
    "confirmed": Confirmed,
}


def pack(result: Result) -> dict[str, Any]:
    """Returns `result` as JSON-able data that names its type."""
    name = next(name for name, kind in _TYPES.items() if isinstance(result, kind))
    if isinstance(result, Race):
        lanes = [
            {
                "finalist": lane.finalist,
                "formulation": lane.formulation,
                "session": lane.session,
                "result": pack(lane.result),
            }
            for lane in result.entries
        ]
        conditions = to_json(result.conditions) if result.conditions else None
        ceilings = dict(result.ceilings) if result.ceilings else None
        return {"type": name, "entries": lanes, "ceilings": ceilings, "conditions": conditions}
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
                timing=_timing(packed["timing"]),
                error=packed.get("error"),
                poisoned=packed.get("poisoned", False),
                guarded=packed.get("guarded", False),
                exact=packed.get("exact"),
                conditions=_conditions(packed),
                duplicate_of=packed.get("duplicate_of"),
                locked_s=packed.get("locked_s"),
                held_s=packed.get("held_s"),
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
                        session=lane.get("session", 0),
                    )
                    for lane in packed["entries"]
                ),
                ceilings=packed.get("ceilings"),
                conditions=_conditions(packed),
            )
        case "confirmed":
            return Confirmed(
                runs=packed["runs"], error=packed["error"], exact_runs=packed.get("exact_runs", 0)
            )
        case other:
            raise ValueError(f"a stored result has the type {other!r}; known are {', '.join(_TYPES)}")


def digest_of(result: Result) -> str | None:
    """Returns the digest of the lowered module; None where it was not lowered, and for a race."""
    lowered = getattr(result, "lowered", None)
    return lowered.digest if lowered else None


def _conditions(packed: Mapping[str, Any]) -> Conditions | None:
    found = packed.get("conditions")
    if not found:
        return None
    known = {name: found[name] for name in Conditions.__dataclass_fields__ if name in found}
    return Conditions(**{name: tuple(one) if isinstance(one, list) else one for name, one in known.items()})


def _timing(packed: Mapping[str, Any]) -> Timing:
    return Timing(
        samples_us=tuple(packed["samples_us"]),
        l2=packed["l2"],
        reference_us=tuple(packed.get("reference_us", ())),
        reference_nominal_us=packed.get("reference_nominal_us", 1.0),
        joules=packed.get("joules"),
    )


def _lowered(packed: Mapping[str, Any]) -> Lowered:
    return Lowered(
        digest=packed["digest"],
        smem_bytes=packed.get("smem_bytes"),
        lower_s=packed["lower_s"],
        compile_s=packed.get("compile_s"),
        shares_binary=packed.get("shares_binary", False),
    )
