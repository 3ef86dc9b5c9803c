"""Executables that a worker keeps, since other candidates are the same but for their run-time knobs."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

from autotune.evaluate.digest import digest_with
from autotune.evaluate.fault import charged_to
from autotune.evaluate.slot import KEPT_BINARIES
from autotune.seam import Candidate, Lowered


@dataclass(frozen=True, slots=True)
class Binary:
    """A lowered module, and what it was compiled to."""

    module: Any
    executable: Callable[..., Any]


@dataclass(slots=True)
class Binaries:
    """The executables of the problem at hand that were used last, by the names that jobs give them."""

    _kept: OrderedDict[str, Binary] = field(default_factory=OrderedDict)

    def get(self, name: str | None) -> Binary | None:
        if name not in self._kept:
            return None
        self._kept.move_to_end(name)
        return self._kept[name]

    def keep(self, name: str, binary: Binary) -> None:
        """Keeps an executable; the one that was used longest ago makes room for it."""
        self._kept[name] = binary
        self._kept.move_to_end(name)
        while len(self._kept) > KEPT_BINARIES:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        self._kept.clear()


def runtime_knobs(target: Any, candidate: Candidate) -> Any:
    """Returns the run-time knobs of a candidate as the operand that its binary takes, a numpy array.

    Raises:
        CandidateError: "lower".
    """
    with charged_to("lower"):
        return target.shared_operand(candidate.problem, candidate.config, candidate.device)


def shared(lowered: Lowered, knobs: Any, *, is_new: bool) -> Lowered:
    """Returns what is reported of a candidate whose run-time knobs are an operand of its module.

    The digest tells candidates of one binary apart, but not those that do the same.

    Args:
        lowered: What is known of the module.
        is_new: It was lowered for this candidate.
    """
    return dataclasses.replace(
        lowered,
        digest=digest_with(lowered.digest, knobs),
        lower_s=lowered.lower_s if is_new else 0.0,
        shares_binary=True,
    )


def given(executable: Callable[..., Any], knobs: Any) -> Callable[..., Any]:
    """Returns an executable with run-time knobs on their way to the card, and before its last argument, the room.

    Raises:
        CandidateError: "launch", or "memory".
    """
    with charged_to("launch"):
        operand = jax.device_put(knobs)

    def call(*arguments: Any) -> Any:
        return executable(*arguments[:-1], operand, arguments[-1])

    return call
