"""The seam between the autotuner and a kernel family. Nothing in autotune names a tile."""

from __future__ import annotations

import difflib
import importlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from autotune.errors import InputError

if TYPE_CHECKING:  # the lookup imports this module, and the seam's dataclasses take 10 ms to make
    from autotune.seam import Knobs

TARGETS = ("hopper_matmul",)


class Space(Protocol):
    """The variants of one problem: `knobs` names the values of each; `legal()` enumerates the legal ones."""

    knobs: dict[str, tuple[Any, ...]]

    @property
    def raw_size(self) -> int: ...

    def legal(self) -> Any: ...

    # Optional: what a cost model says of rows of codes, in us; with it the search is guided.
    def predicted_us(self, codes: Any) -> Any: ...

    # Optional: the codes of other configurations that do the same as one row.
    def twins(self, codes: Sequence[int]) -> Sequence[Sequence[int]]: ...

    # Optional: knobs that one executable can take as an operand, see `Target.build_shared`; none: ().
    @property
    def runtime_knobs(self) -> tuple[str, ...]: ...


class Target(Protocol):
    """A kernel family. Problems, configurations and devices are opaque frozen values that pickle."""

    name: str
    problem_fields: tuple[str, ...]
    knob_names: tuple[str, ...]

    # Plain arithmetic: neither jax nor numpy is imported (but by `space`).
    def problem_from_fields(self, fields: Mapping[str, object]) -> Any: ...
    def device_named(self, name: str) -> Any: ...
    def config_from_knobs(self, knobs: Mapping[str, object]) -> Any: ...
    def space(self, problem: Any, device: Any, narrowing: Mapping[str, Sequence[Any]]) -> Space: ...
    def check(self, problem: Any, config: Any, device: Any) -> Sequence[Any]: ...
    def mended_knobs(self, knobs: Mapping[str, Any]) -> Knobs: ...
    def smem_bytes(self, problem: Any, config: Any, device: Any) -> int: ...
    def random_variant(self, rng: random.Random) -> tuple[Any, Any]: ...
    def default_configs(self, problem: Any, device: Any) -> list[Knobs]: ...
    def heuristic_config(self, problem: Any, device: Any) -> Knobs | None: ...
    def predicted_us(self, problem: Any, config: Any, device: Any) -> float: ...  # optional
    def explain(self, problem: Any, config: Any, device: Any) -> str: ...  # optional
    def distance(self, a: Any, b: Any) -> float: ...
    def source_digest(self) -> str: ...
    def operand_roles(self, problem: Any) -> Mapping[str, int]: ...  # bytes by role; optional
    def activation_operands(self, problem: Any) -> Sequence[int]: ...  # optional: without it, the first

    # These import jax and are called in workers only.
    def build(self, problem: Any, config: Any, device: Any) -> Callable[..., Any]: ...
    # Where spaces have run-time knobs: a function with one more operand, for all that differ in those alone, and that
    # operand of one of them, a numpy array; its shape and dtype depend on the other knobs only.
    def build_shared(self, problem: Any, config: Any, device: Any) -> Callable[..., Any]: ...
    def shared_operand(self, problem: Any, config: Any, device: Any) -> Any: ...
    def operand_types(self, problem: Any) -> tuple[Any, ...]: ...
    def operands(self, problem: Any, seed: int) -> tuple[Any, ...]: ...
    def exact_operands(self, problem: Any, seed: int) -> tuple[Any, ...] | None: ...
    def rival(self, problem: Any) -> Callable[..., Any]: ...
    def rivals(self, problem: Any) -> Mapping[str, tuple[Callable[..., Any], Mapping[str, Any]]]: ...
    def reference(self, problem: Any) -> Callable[..., Any]: ...
    def tolerance(self, problem: Any) -> float: ...


def load_target(name: str) -> Target:
    """Returns the kernel family of that name.

    Raises:
        InputError: There is none; the message names the nearest and all there are.
    """
    if name not in TARGETS:
        near = difflib.get_close_matches(name, TARGETS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"target={name!r}: allowed: {', '.join(TARGETS)}{hint}")
    return importlib.import_module(f"{name}.target").TARGET
