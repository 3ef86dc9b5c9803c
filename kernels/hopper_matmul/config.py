"""How a problem is computed: the knobs of one kernel variant."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from hopper_matmul.problem import FieldError, one_of
from hopper_matmul.scopes import PLANS, ScopePlan

Dimension = Literal["m", "n"]
Split = Literal["m", "n", "tile"]
Edges = Literal["pad", "view", "direct"]
Combine = Literal["kernel", "cluster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One kernel variant.

    Attributes:
        tile_m, tile_n, tile_k: What one CTA holds of out (tile_m, tile_n) and sums at a step, in elements.
        stages: Slots of the TMA pipeline's ring.
        compute_wgs: Compute warpgroups of a CTA; one more warpgroup loads.
        wg_split: Dimension of the CTA's tile that the compute warpgroups share out; with "tile" each computes tiles of
            its own, in turn, so that one stores while another multiplies.
        cluster_m, cluster_n: CTAs of a cluster along m (they share each rhs tile by multicast) and n (lhs tile).
        grid_minor: Dimension along which neighbouring CTAs walk first.
        raster_width: Width of a band of tiles along `grid_minor` before the walk turns (plgpu.planar_snake).
        persistent: One CTA an SM walks many tiles; otherwise one CTA a tile.
        swap_ab: The accumulator holds the transposed tile, (tile_n, tile_m): n gets WGMMA's rows, which come in
            64s, and m its columns, which come in 8s.
        split_k: Parts that k is cut into; each CTA sums one, and the parts' float32 sums are added in their order.
        combine: Who adds them: "kernel" is a second kernel, which reads them from memory; with "cluster" the CTAs of
            a tile's parts are a cluster, and send them to each other's SMEM.
        edges: What is done about a matrix whose rows or columns TMA cannot clip to blocks of 8 rows by one swizzle:
            "pad" copies it into one that it can; "view" has TMA see SMEM in blocks of whole columns of a swizzle, which
            it can always clip, and pads only rows that do not fill 16 bytes. "direct" is for such rows of the result,
            which threads store where they belong; operands are as in "view".
        max_sms: Most SMs that a persistent kernel takes; 0 is all of them.
        pdl: Programmatic dependent launch: the kernel may start while the one before it in the stream ends, and waits
            for that one before it reads memory. Counts where launches do.
        epi_m, epi_n: Part of a warpgroup's tile that the epilogue stages through SMEM at a time, in elements.
        delay_release: WGMMAs that stay in flight before a ring slot is given back, 0 or 1.
        memory_registers: Registers a thread of the loading warpgroup keeps; the rest goes to the others. With 0 none
            are passed on: threads have what the compiler finds that they need, and several CTAs may fit an SM.
        scopes: The allocation plan.
    """

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 64
    stages: int = 4
    compute_wgs: int = 2
    wg_split: Split = "m"
    cluster_m: int = 1
    cluster_n: int = 1
    grid_minor: Dimension = "m"
    raster_width: int = 8
    persistent: bool = True
    swap_ab: bool = False
    split_k: int = 1
    combine: Combine = "kernel"
    max_sms: int = 0
    edges: Edges = "pad"
    pdl: bool = False
    epi_m: int = 64
    epi_n: int = 64
    delay_release: int = 0
    memory_registers: int = 40
    scopes: ScopePlan = PLANS["joint"]

    @classmethod
    def from_knobs(cls, knobs: Mapping[str, object]) -> Self:
        """Builds a configuration from plain values; a knob that is missing takes its neutral default.

        Raises:
            FieldError: An unknown knob, or a value of the wrong type.
        """
        for key in knobs:
            one_of("knob", key, KNOB_NAMES)
        return cls(**{key: _parsed(key, value) for key, value in knobs.items()})

    def to_knobs(self) -> dict[str, int | str | bool]:
        """Returns the knobs as plain values that JSON can hold; a plan is its name."""
        return {name: getattr(self, name) for name in KNOB_NAMES} | {"scopes": self.scopes.name}


KNOB_NAMES: tuple[str, ...] = tuple(field.name for field in dataclasses.fields(Config))


def _parsed(key: str, value: object) -> object:
    if key == "scopes":
        return PLANS[one_of(key, value, tuple(PLANS))]
    if key == "wg_split":
        return one_of(key, value, ("m", "n", "tile"))
    if key == "grid_minor":
        return one_of(key, value, ("m", "n"))
    if key == "edges":
        return one_of(key, value, ("pad", "view", "direct"))
    if key == "combine":
        return one_of(key, value, ("kernel", "cluster"))
    if key in ("pdl", "persistent", "swap_ab"):
        if not isinstance(value, bool):
            raise FieldError(key, value, "true, false")
        return value
    lowest = 0 if key in ("delay_release", "max_sms", "memory_registers") else 1
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= 65_536:
        raise FieldError(key, value, f"a whole number from {lowest} to 65536")
    return value
