"""The seam that the autotuner drives this kernel family through."""

from __future__ import annotations

import functools
import math
import operator
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopper_matmul import hardware, legality
from hopper_matmul.config import KNOB_NAMES, Config
from hopper_matmul.facts import Facts
from hopper_matmul.hardware import Device
from hopper_matmul.problem import ITEMSIZE_BYTES, Problem
from hopper_matmul.repair import repaired

if TYPE_CHECKING:
    from hopper_matmul.space import Space


# What tells kinds of products apart: what was found for one says nothing of another.
_kind = operator.attrgetter(
    "lhs_dtype", "rhs_dtype", "out_dtype", "layout", "accumulation", "scales", "epilogue", "broadcast"
)


class HopperMatmul:
    """Everything that the autotuner asks of a kernel family; jax and numpy are imported only where they are used."""

    name = "hopper_matmul"
    problem_fields = tuple(Problem.__dataclass_fields__)
    knob_names = KNOB_NAMES

    def problem_from_fields(self, fields: Mapping[str, object]) -> Problem:
        """See `Problem.from_fields`."""
        return Problem.from_fields(fields)

    def device_named(self, name: str) -> Device:
        """See `hardware.device_named`."""
        return hardware.device_named(name)

    def config_from_knobs(self, knobs: Mapping[str, object]) -> Config:
        """See `Config.from_knobs`."""
        return Config.from_knobs(knobs)

    def space(self, problem: Problem, device: Device, narrowing: Mapping[str, Sequence[Any]]) -> Space:
        """See `space.space_of`."""
        from hopper_matmul.space import space_of

        return space_of(problem, device, narrowing)

    def check(self, problem: Problem, config: Config, device: Device) -> tuple[legality.Rejection, ...]:
        """See `legality.check`."""
        return legality.check(problem, config, device)

    def mended_knobs(self, knobs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the knobs with an illegal allocation plan replaced by its nearest legal one, see `repair`."""
        plan = repaired(Config.from_knobs(knobs).scopes)
        return {**knobs, "scopes": plan.name}

    def smem_bytes(self, problem: Problem, config: Config, device: Device) -> int:
        """Returns the shared memory of one CTA in bytes, equal to what lowering counts."""
        return Facts(problem, config, device).smem_bytes

    def random_variant(self, rng: random.Random) -> tuple[Problem, Config]:
        """See `random_variants.random_variant`."""
        from hopper_matmul.random_variants import random_variant

        return random_variant(rng)

    def default_configs(self, problem: Problem, device: Device) -> list[dict[str, Any]]:
        """Returns the knobs of the untuned choices, the likeliest first; each is legal for the problem."""
        from hopper_matmul.heuristic import heuristic_configs

        return [config.to_knobs() for config in heuristic_configs(problem, device)]

    def heuristic_config(self, problem: Problem, device: Device) -> dict[str, Any] | None:
        """Returns the knobs of the likeliest untuned choice; None where the kernel cannot compute the problem."""
        from hopper_matmul.heuristic import heuristic_configs

        config = next(heuristic_configs(problem, device), None)
        return config.to_knobs() if config else None

    def predicted_us(self, problem: Problem, config: Config, device: Device) -> float:
        """See `cost.predicted_us`."""
        from hopper_matmul.cost import predicted_us

        return predicted_us(problem, config, device)

    def explain(self, problem: Problem, config: Config, device: Device) -> str:
        """Returns in one line what the cost model predicts of a configuration, and which term binds."""
        from hopper_matmul.cost import explain

        return explain(problem, config, device).text()

    def distance(self, a: Problem, b: Problem) -> float:
        """Returns how far apart two problems are in the logarithm of their sizes; inf between kinds of products."""
        if _kind(a) != _kind(b) or (a.groups == 1) != (b.groups == 1):
            return math.inf
        sizes = ((a.m, b.m), (a.n, b.n), (a.k, b.k), (a.batch, b.batch))
        return math.sqrt(sum(math.log2(x / y) ** 2 for x, y in sizes))

    def source_digest(self) -> str:
        """Returns the SHA-256 of this package's sources, first 16 hex digits."""
        return _source_digest()

    def operand_roles(self, problem: Problem) -> dict[str, int]:
        """Returns the bytes of the operands by role: lhs are the activations, rhs the weights."""
        return {
            "activations": problem.lhs_batch * problem.m * problem.k * ITEMSIZE_BYTES[problem.lhs_dtype],
            "weights": problem.rhs_batch
            * problem.groups
            * problem.k
            * problem.n
            * ITEMSIZE_BYTES[problem.rhs_dtype],
        }

    def activation_operands(self, problem: Problem) -> tuple[int, ...]:
        """Returns the places of the activations among the operands."""
        return (0,)

    def build(self, problem: Problem, config: Config, device: Device) -> Callable[..., Any]:
        """See `kernel.build`."""
        from hopper_matmul import kernel

        return kernel.build(problem, config, device)

    def build_shared(self, problem: Problem, config: Config, device: Device) -> Callable[..., Any]:
        """See `kernel.build`: the order of the tiles is its last operand."""
        from hopper_matmul import kernel

        return kernel.build(problem, config, device, by_table=True)

    def shared_operand(self, problem: Problem, config: Config, device: Device) -> Any:
        """See `walk.tile_table`."""
        from hopper_matmul.geometry import Geometry
        from hopper_matmul.walk import tile_table

        return tile_table(Geometry(problem=problem, config=config, device=device))

    def operand_types(self, problem: Problem) -> tuple[Any, ...]:
        """See `reference.operand_types`."""
        from hopper_matmul import reference

        return reference.operand_types(problem)

    def operands(self, problem: Problem, seed: int) -> tuple[Any, ...]:
        """See `reference.operands`."""
        from hopper_matmul import reference

        return reference.operands(problem, seed)

    def exact_operands(self, problem: Problem, seed: int) -> tuple[Any, ...] | None:
        """See `reference.exact_operands`."""
        from hopper_matmul import reference

        return reference.exact_operands(problem, seed)

    def rival(self, problem: Problem) -> Callable[..., Any]:
        """See `reference.rival`."""
        from hopper_matmul import reference

        return reference.rival(problem)

    def rivals(self, problem: Problem) -> dict[str, tuple[Callable[..., Any], dict[str, bool]]]:
        """See `reference.rivals`."""
        from hopper_matmul import reference

        return reference.rivals(problem)

    def reference(self, problem: Problem) -> Callable[..., Any]:
        """See `reference.reference`."""
        from hopper_matmul import reference

        return reference.reference(problem)

    def tolerance(self, problem: Problem) -> float:
        """See `reference.tolerance`."""
        from hopper_matmul import reference

        return reference.tolerance(problem)


@functools.cache
def _source_digest() -> str:
    import hashlib  # milliseconds, which a lookup need not spend

    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


TARGET = HopperMatmul()
