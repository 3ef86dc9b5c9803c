"""The devices a kernel is built for. A device is always a parameter: lowering needs no GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hopper_matmul.problem import FieldError, one_of

SMEM_BYTES_PER_BLOCK = 232_448  # 227 KiB; NVIDIA Hopper tuning guide, shared memory a block can opt in to
SMEM_ALIGNMENT_BYTES = 1_024  # each SMEM buffer of a Mosaic GPU kernel starts at a multiple of it
REGISTERS_PER_SM = 65_536
THREADS_PER_WARPGROUP = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A Hopper GPU.

    Attributes:
        kind: jax's device_kind, as the driver names the card.
        sm_count: Streaming multiprocessors, 132 on SXM parts and 114 on the PCIe H100.
        memory_bytes: Device memory.
        power_limit_w: Board power limit; None where it is not known.
    """

    kind: str
    sm_count: int
    memory_bytes: int
    smem_bytes_per_block: int = SMEM_BYTES_PER_BLOCK
    power_limit_w: float | None = None

    @property
    def slug(self) -> str:
        """The kind in lower case with underscores, as files under results/best are named."""
        return slug(self.kind)


def slug(kind: str) -> str:
    """Returns a device kind in lower case with underscores: "NVIDIA H200" -> "nvidia_h200"."""
    return re.sub(r"[^a-z0-9]+", "_", kind.lower()).strip("_")


# SM counts and memory sizes: NVIDIA's H100, H200 and GH200 data sheets; the H200 also as its driver reports it.
KNOWN: dict[str, Device] = {
    device.slug: device
    for device in (
        Device(kind="NVIDIA H200", sm_count=132, memory_bytes=150_754_820_096, power_limit_w=700.0),
        Device(kind="NVIDIA H100 80GB HBM3", sm_count=132, memory_bytes=85_520_809_984, power_limit_w=700.0),
        Device(kind="NVIDIA H100 PCIe", sm_count=114, memory_bytes=85_520_809_984, power_limit_w=350.0),
        Device(kind="NVIDIA GH200 480GB", sm_count=132, memory_bytes=102_625_181_696, power_limit_w=900.0),
    )
}


def device_named(name: str) -> Device:
    """Returns the known device of that kind or slug.

    Raises:
        FieldError: No such device; the message names the nearest and all known ones.
    """
    known = KNOWN.get(slug(name)) if isinstance(name, str) else None
    if known is None:
        kinds = tuple(device.kind for device in KNOWN.values())
        within = [kind for kind in kinds if isinstance(name, str) and name and slug(name) in slug(kind)]
        if within:
            raise FieldError(
                "device", name, f"{', '.join(kinds)} (did you mean {' or '.join(map(repr, within))}?)"
            )
        one_of("device", name, kinds)
        raise FieldError("device", name, "a Hopper device kind")
    return known
