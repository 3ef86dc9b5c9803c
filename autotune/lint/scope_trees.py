"""Random kernels for the audit: trees of scopes, loops, conditions and uses, drawn as data and then built. No jax."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

NodeKind = Literal[
    "scope", "loop", "while", "cond", "jit", "use", "reduce", "initialised", "partial_store", "run_state"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSpec:
    """One buffer. `count` is the number of barriers; a union has its members' shapes in `members`."""

    kind: Literal["acc", "smem", "union", "barrier", "cluster_barrier", "semaphore"]
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    count: int = 1
    arrivals: int = 1
    members: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A scope (axes, buffers), a loop, a condition (one body a branch), or a leaf."""

    kind: NodeKind
    axes: tuple[str, ...] = ()
    buffers: tuple[BufferSpec, ...] = ()
    bodies: tuple[tuple[Node, ...], ...] = ()
    predicate: Literal["wg", "block"] = "block"
    trips: int = 2
    pick: int = 0  # which of the buffers in reach a use takes, modulo their number


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec:
    """One kernel: its mesh, semantics, scratch_types and body."""

    is_lane: bool
    num_threads: int | None
    cluster: int | None
    reduction_scratch_bytes: int
    scratch: tuple[BufferSpec, ...]
    body: tuple[Node, ...]


# What goes into a scope by mistake: whether it is private, and its buffers.
_SLIPS = (
    (False, ("acc", "smem", "acc")),
    (True, ("smem", "acc", "barrier")),
    (True, ("semaphore", "acc")),
    (False, ("smem", "union", "cluster_barrier")),
)


class TreeSource:
    """Draws kernels. About half are meant to be legal; the others break a rule with some probability a scope."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sloppiness = 0.0
        self.threads: int | None = None
        self.cluster: int | None = None
        self.is_lane = False

    def program(self) -> tuple[KernelSpec, ...]:
        """Returns the kernels of one function, called one after the other: mostly one, sometimes two."""
        self.sloppiness = self.random.choice((0.0, 0.0, 0.0, 0.2, 0.4, 0.7))
        return tuple(self._kernel() for _ in range(self.random.choice((1, 1, 1, 1, 2))))

    def _chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def _kernel(self) -> KernelSpec:
        self.threads = self.random.choice((None, None, 1, 2, 2, 3, 4))
        if self._chance(0.06):
            self.threads = self.random.choice((9, 15, 16))
        self.cluster = self.random.choice((None, None, 2, 4))
        self.is_lane = self._chance(0.5)
        scratch = ()
        if self._chance(0.3):
            kinds = (
                ("smem", "barrier", "acc") if self.threads is None or self._slips() else ("smem", "barrier")
            )
            scratch = tuple(self._buffer(kinds) for _ in range(self.random.randint(1, 3)))
        return KernelSpec(
            is_lane=self.is_lane,
            num_threads=self.threads,
            cluster=self.cluster,
            reduction_scratch_bytes=self.random.choice((2048, 2048, 6144)),
            scratch=scratch,
            body=self._nodes(0, in_accumulator=False),
        )

    def _slips(self) -> bool:
        return self._chance(self.sloppiness)

    def _nodes(self, depth: int, *, in_accumulator: bool) -> tuple[Node, ...]:
        count = self.random.randint(1, 3) if depth < 4 else 1
        return tuple(self._node(depth, in_accumulator=in_accumulator) for _ in range(count))

    def _node(self, depth: int, *, in_accumulator: bool) -> Node:
        pick = self.random.randrange(1000)
        if depth >= 4 or self._chance(0.3):
            # Lane semantics cannot reduce over all axes in a kernel with threads, which is no matter of scopes.
            can_reduce = self.threads is None or not self.is_lane
            kind = "reduce" if can_reduce and self._chance(0.15) else "use"
            if self._chance(0.04 * self.sloppiness):
                kind = self.random.choice(("initialised", "partial_store"))
            return Node(kind=kind, pick=pick)
        shape = self.random.choice(("scope", "scope", "scope", "loop", "while", "cond", "jit", "run_state"))
        if shape == "scope":
            return self._scope(depth, in_accumulator=in_accumulator)
        if shape == "run_state":
            # What is closed over there must be no reference, so nothing is nested in it.
            return Node(kind="run_state", pick=pick) if self._chance(0.3) else Node(kind="use", pick=pick)
        num_bodies = self.random.choice((2, 2, 3)) if shape == "cond" else 1
        bodies = tuple(self._nodes(depth + 1, in_accumulator=in_accumulator) for _ in range(num_bodies))
        predicate = self.random.choice(("wg", "block")) if self.threads is not None else "block"
        return Node(kind=shape, bodies=bodies, predicate=predicate, trips=self.random.randint(1, 3))

    def _scope(self, depth: int, *, in_accumulator: bool) -> Node:
        is_private = in_accumulator or self._chance(0.35)
        if self._slips():
            is_private, kinds = self.random.choice(_SLIPS)
        elif is_private and self.threads is not None:
            kinds = ("acc",)
        elif is_private:
            kinds = ("acc", "smem", "barrier", "union")
        else:
            kinds = ("smem", "smem", "barrier", "union", "semaphore", "cluster_barrier")
        if self.threads is None and not self._slips():
            is_private = True
        buffers = tuple(self._buffer(kinds) for _ in range(self.random.randint(0 if depth else 1, 3)))
        axes = () if is_private else ("wg",)
        if self._slips() and self._chance(0.3):
            axes = self.random.choice((("block",), ("pair",), ("pair", "wg"), ("nope",), ("wg", "wg")))
        has_accumulator = in_accumulator or any(buffer.kind == "acc" for buffer in buffers)
        keep_private = has_accumulator and not self._slips()
        return Node(
            kind="scope",
            axes=axes,
            buffers=buffers,
            bodies=(self._nodes(depth + 1, in_accumulator=keep_private),),
        )

    def _buffer(self, kinds: tuple[str, ...]) -> BufferSpec:
        kind = self.random.choice(kinds)
        if kind == "cluster_barrier" and self.cluster is None and not self._slips():
            kind = "barrier"
        if kind == "acc":
            dtype = (
                "uint32"
                if self._slips() and self._chance(0.2)
                else self.random.choice(("float32",) * 4 + ("int32",))
            )
            shape = (32, 64) if self._slips() and self._chance(0.1) else (64, 64)
            return BufferSpec(kind="acc", shape=shape, dtype=dtype)
        if kind == "smem":
            dtype = self.random.choice(("float32", "float32", "bfloat16", "int8"))
            return BufferSpec(kind="smem", shape=self._smem_shape(), dtype=dtype)
        if kind == "union":
            members = tuple(self._smem_shape() for _ in range(self.random.randint(2, 3)))
            return BufferSpec(kind="union", members=members)
        count = self.random.choice((1, 1, 2, 4, 32))
        if self._slips() and self._chance(0.2):
            count = self.random.choice((0, 33))
        return BufferSpec(kind=kind, count=count, arrivals=self.random.choice((1, 2)))

    def _smem_shape(self) -> tuple[int, ...]:
        if self._chance(0.15):
            return (self.random.choice((3, 7, 100, 1000)),)  # not a multiple of 1,024 bytes
        if self._chance(0.2):
            return (self.random.randint(1, 4), 128, 128)  # a pipeline's ring: a few of them are too much
        return (64, self.random.choice((32, 64, 128)))
