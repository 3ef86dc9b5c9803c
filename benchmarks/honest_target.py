"""The real kernels, with XLA's plain product entered a second time: a lane of its own that must tie with the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hopper_matmul.target import HopperMatmul

NAME = "honest"
AGAIN = "again"


class HonestTarget(HopperMatmul):
    name = NAME

    def rivals(self, problem: Any) -> dict[str, tuple[Callable[..., Any], dict[str, bool]]]:
        """Returns the plain product twice; as a rival the second is compiled under the card's lock, like the first."""
        plain = self.rival(problem)
        return {"plain": (plain, {}), AGAIN: (lambda lhs, rhs: plain(lhs, rhs), {})}


def load_honest(name: str) -> HonestTarget:
    """Returns the target; called in the workers."""
    if name != NAME:
        raise ValueError(f"{name!r}: allowed: {NAME}")
    return HonestTarget()
