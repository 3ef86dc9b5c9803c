"""The one seam between a night and what it measures with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from autotune.bestfile import BestEntry
from autotune.errors import AutotuneError
from autotune.machine import Toolchain
from autotune.nightly.profile import Profile
from autotune.nightly.values import Machine, Seen
from autotune.result import ProblemResult


class UnfitError(AutotuneError):
    """The machine is not fit to be measured on tonight."""

    exit_code = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One stored winner to verify."""

    key: str
    entry: BestEntry


class NightMeter(Protocol):
    """Measures for a night. `gpu_s` counts the seconds in which the card was ours, workers' start included.

    Attributes:
        device: The target's device, with the card's own limits.
        profile: Where these seconds went.
    """

    machine: Machine
    toolchain: Toolchain
    device: Any
    gpu_s: float
    profile: Profile

    def unfit(self) -> str | None:
        """Returns why the card is not to be measured on, or None."""

    def sentinels(self) -> Mapping[str, float]:
        """Returns the times of things that never change, in us: "copy", "fixed_kernel" and "xla_dot"."""

    def verify(self, checks: Sequence[Check], rounds: int) -> Iterator[tuple[str, Seen]]:
        """Yields each winner's verification as it ends; closing the iterator drops the rest."""

    def retune(
        self,
        problem: Any,
        weight: float,
        incumbent: Mapping[str, Any] | None,
        space: Mapping[str, tuple[Any, ...]],
        *,
        fresh: bool,
        seconds: float,
    ) -> ProblemResult:
        """Tunes one problem, the incumbent's configuration among the candidates."""

    def close(self) -> None:
        """Ends what runs."""
