"""Which configurations are legal, known before lowering: pure arithmetic, no jax."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

from hopper_matmul.compiler_rules import COMPILER_RULES
from hopper_matmul.config import Config
from hopper_matmul.facts import Facts
from hopper_matmul.hardware import Device
from hopper_matmul.hardware_rules import HARDWARE_RULES
from hopper_matmul.problem import Problem
from hopper_matmul.rules import Rule, Stage

RULES = COMPILER_RULES + HARDWARE_RULES


class Rejection(NamedTuple):
    """One broken rule of one configuration. Its words are made when they are asked for."""

    definition: Rule
    facts: Facts

    @property
    def rule(self) -> str:
        """The rule's id."""
        return self.definition.id

    @property
    def message(self) -> str:
        """The compiler's own words where it has some, otherwise what happens."""
        return self.definition.message(self.facts)

    @property
    def value(self) -> object:
        """What the configuration has."""
        return self.definition.value(self.facts)

    @property
    def limit(self) -> object:
        """What is allowed."""
        return self.definition.limit(self.facts)

    @property
    def stage(self) -> Stage:
        """Where it shows without this check. "run" means a hang or a wrong result."""
        return self.definition.stage

    @property
    def exception(self) -> str | None:
        """Name of the exception's type that tracing or lowering raises; None where they raise none."""
        return self.definition.exception(self.facts)

    def line(self) -> str:
        """Returns the rejection as one line."""
        return f"{self.rule}: {self.message} (is {self.value}, allowed: {self.limit})"


def check(problem: Problem, config: Config, device: Device) -> tuple[Rejection, ...]:
    """Returns every rule that a configuration breaks, in the compiler's order; empty where it is legal.

    Args:
        problem: lhs (m, k), rhs (k, n), out (m, n).
        config: Tile sizes in elements, and the other knobs.
        device: Gives the limit of SMEM, in bytes.
    """
    facts = Facts(problem, config, device)
    asked = _ASKED[facts.cluster_ctas > 1, config.edges != "pad"]
    broken = [i for i, breaks in asked if breaks(facts)]
    return tuple([Rejection(RULES[i], facts) for i in broken]) if broken else ()


def _asked(has_clusters: bool, has_edges: bool) -> tuple[tuple[int, Callable[[Facts], Any]], ...]:
    """Returns the rules that such a configuration can break, each with its place among all."""
    asked_of = {"all", *(["clusters"] if has_clusters else ()), *(["edges"] if has_edges else ())}
    return tuple((place, rule.breaks) for place, rule in enumerate(RULES) if rule.asked_of in asked_of)


# Made once: a check takes 9 us, of which the rules themselves are 4.
_ASKED = {key: _asked(*key) for key in itertools.product((False, True), repeat=2)}
