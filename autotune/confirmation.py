"""A race's winner is run again on fresh inputs; one that is wrong is demoted, and the others race without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from autotune.result import Winner
from autotune.screening import Screened
from autotune.seam import Confirmed, Failed, Measured


def confirmed_winner(
    screened: Screened,
    race: Callable[[Screened], Winner],
    confirm: Callable[[Mapping[str, Any]], Confirmed | Failed],
) -> tuple[Winner, Screened]:
    """Returns the first winner that is confirmed, and what was screened with the demoted ones as failures.

    Args:
        screened: Candidates with what became of them.
        race: Finds the winner among them; raises where nobody is left.
        confirm: Runs a configuration on fresh inputs.
    """
    while True:
        winner = race(screened)
        verdict = confirm(winner.knobs)
        if isinstance(verdict, Confirmed):
            return winner, screened
        screened = demoted(screened, winner, verdict)


def demoted(screened: Screened, winner: Winner, failed: Failed) -> Screened:
    """Returns `screened` with the winner, and whatever has the same lowered module, failed as it did."""
    return [
        (knobs, dataclasses.replace(failed, lowered=result.lowered))
        if isinstance(result, Measured)
        and (result.lowered.digest == winner.digest or dict(knobs) == dict(winner.knobs))
        else (knobs, result)
        for knobs, result in screened
    ]
