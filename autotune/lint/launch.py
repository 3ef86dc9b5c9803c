"""What lowering accepts and no Hopper GPU launches: sizes of the grid, the cluster and the CTA. No jax.

Limits: NVIDIA's CUDA C++ programming guide, compute capability 9.0. A launch that fails aborts the whole process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_WARPGROUPS = 8  # 1,024 threads a CTA
MAX_PORTABLE_CLUSTER = 8
MAX_CLUSTER = 16  # with the non-portable attribute
MAX_GRID = (2**31 - 1, 65_535, 65_535)  # x, y, z
MIN_REGISTERS, MAX_REGISTERS = 24, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFault:
    """One reason why the launch fails, or (is_warning) may not be what was meant."""

    message: str
    mend: str
    is_warning: bool = False


def launch_faults(
    grid: tuple[int, ...], cluster: tuple[int, ...], num_threads: int | None
) -> list[LaunchFault]:
    """Returns the faults of a launch; `grid`, `cluster` and `num_threads` as given to plgpu.kernel."""
    return [*_thread_faults(num_threads), *_cluster_faults(cluster), *_grid_faults(grid, cluster)]


def _thread_faults(num_threads: int | None) -> list[LaunchFault]:
    if num_threads is None or 1 <= num_threads <= MAX_WARPGROUPS:
        return []
    message = (
        f"num_threads={num_threads}: {num_threads} warpgroups are {128 * num_threads:,} CUDA threads, and a CTA has"
        f" 1 to {MAX_WARPGROUPS} warpgroups (1,024 threads). It lowers; the launch aborts."
    )
    return [LaunchFault(message=message, mend=f"Use num_threads between 1 and {MAX_WARPGROUPS}.")]


def _cluster_faults(cluster: tuple[int, ...]) -> list[LaunchFault]:
    size = math.prod(cluster)
    if size > MAX_CLUSTER:
        message = (
            f"cluster={cluster}: {size} CTAs, and a Hopper cluster has at most {MAX_CLUSTER}. It lowers; the launch"
            " aborts."
        )
        return [LaunchFault(message=message, mend=f"Use a cluster of at most {MAX_PORTABLE_CLUSTER} CTAs.")]
    if size > MAX_PORTABLE_CLUSTER:
        message = (
            f"cluster={cluster}: {size} CTAs are more than the {MAX_PORTABLE_CLUSTER} of a portable cluster; fewer of"
            " them fit on the GPU at a time, and not every Hopper GPU has room for one."
        )
        return [LaunchFault(message=message, mend="Use at most 8 CTAs a cluster.", is_warning=True)]
    return []


def _grid_faults(grid: tuple[int, ...], cluster: tuple[int, ...]) -> list[LaunchFault]:
    # Pallas's last axis is CUDA's x; more than three axes are flattened into the first. A cluster multiplies its axis.
    flat = grid if len(grid) <= 3 else (math.prod(grid[:-2]), *grid[-2:])
    extents = (*reversed(flat), *(1,) * (3 - len(flat)))
    clusters = (*reversed(cluster), *(1,) * (3 - len(cluster)))
    faults = []
    for name, extent, along, limit in zip("xyz", extents, clusters, MAX_GRID, strict=True):
        if not 1 <= extent * along <= limit:
            message = (
                f"grid={grid}, cluster={cluster}: {extent * along:,} CTAs along CUDA's {name}, which takes 1 to"
                f" {limit:,}. It lowers; the launch fails."
            )
            mend = (
                "Make the axis positive."
                if extent * along < 1
                else "Put the longest axis last: it becomes CUDA's x."
            )
            faults.append(LaunchFault(message=message, mend=mend))
    return faults


def register_fault(count: int) -> LaunchFault | None:
    """Returns what ptxas has against `set_max_registers(count)`; lowering takes any multiple of 8."""
    if MIN_REGISTERS <= count <= MAX_REGISTERS:
        return None
    message = (
        f"set_max_registers({count}): ptxas takes {MIN_REGISTERS} to {MAX_REGISTERS} registers a thread. It lowers; the"
        " compilation before the launch fails."
    )
    return LaunchFault(message=message, mend=f"Use {MIN_REGISTERS} to {MAX_REGISTERS}, in steps of 8.")
