"""What lowering lets through and the GPU does not: ptxas failures and spills, failed launches, hangs, wrong results.

Source: what a GPU shows, by tests/gpu/test_kernel.py.
"""

from __future__ import annotations

from hopper_matmul.hardware import THREADS_PER_WARPGROUP
from hopper_matmul.multicast import TMA_ALIGNMENT_BYTES, is_part_misaligned, part_bytes
from hopper_matmul.rules import Rule, rule

# Registers a compute thread needs beside its accumulator, for addresses, barriers and the epilogue. On an H200
# (driver 580.159.04, jax 0.11.2, 2026-11-30) 40 spare ones ran at 0.94 of XLA; 24 ran 8 times slower, or failed in
# ptxas with three compute warpgroups.
SPARE_REGISTERS = 40
MAX_CLUSTER = 8  # largest portable cluster, CUDA programming guide, thread block clusters


HARDWARE_RULES: tuple[Rule, ...] = (
    rule(
        "register_split",
        "compile",
        None,
        lambda f: (
            (f.c.memory_registers != 0)
            & (
                (f.c.memory_registers < 24)
                | (f.c.memory_registers > f.entry_registers)
                | (f.compute_registers < f.entry_registers)
            )
        ),
        lambda f: (f.c.memory_registers, f.compute_registers),
        lambda f: (
            f"24 <= memory_registers <= {f.entry_registers} <= compute registers, or memory_registers 0"
        ),
        "ptxas refuses: setmaxnreg is out of range, or takes registers where it should give some",
    ),
    rule(
        "spills",
        "compile",
        None,
        lambda f: f.acc_registers > f.compute_registers - SPARE_REGISTERS,
        lambda f: f.acc_registers,
        lambda f: f.compute_registers - SPARE_REGISTERS,
        "the accumulator of a warpgroup does not fit its registers, so that it spills to memory",
    ),
    rule(
        "acc_in_memory_role",
        "compile",
        None,
        lambda f: f.c.scopes.acc_in_memory_role,
        lambda f: f.c.scopes.name,
        "an accumulator in the compute role",
        "the accumulator is live in the loading warpgroup, whose registers it does not fit",
    ),
    rule(
        "launch",
        "launch",
        None,
        lambda f: f.c.compute_wgs > 7,
        lambda f: (f.c.compute_wgs + 1) * THREADS_PER_WARPGROUP,
        1024,
        "a CTA of more than 1,024 threads does not launch: the process aborts",
    ),
    rule(
        "cluster",
        "launch",
        None,
        lambda f: f.cluster_ctas > MAX_CLUSTER,
        lambda f: f.cluster_ctas,
        MAX_CLUSTER,
        "a cluster beyond the portable size does not launch: the process aborts",
        asked_of="clusters",
    ),
    rule(
        "multicast_part",
        "run",
        None,
        is_part_misaligned,
        part_bytes,
        f"multiples of {TMA_ALIGNMENT_BYTES} bytes of lhs and rhs for each CTA that shares a copy",
        "TMA writes the part of a peer to an address in SMEM that is not aligned: a fault",
        asked_of="clusters",
    ),
    rule(
        "memory",
        "run",
        None,
        lambda f: f.total_bytes > f.d.memory_bytes,
        lambda f: f.total_bytes,
        lambda f: f.d.memory_bytes,
        "operands, result and parts of k do not fit the device's memory",
    ),
    rule(
        "parts",
        "run",
        None,
        lambda f: f.first_k_of_last_part >= f.p.k,
        lambda f: f.c.split_k,
        lambda f: f"at most {-(-f.p.k // f.c.tile_k)} parts of one step, each with a step of its own",
        "the last parts of k lie beyond its end: CTAs that sum zeros",
    ),
    rule(
        "combine",
        "run",
        None,
        lambda f: (f.c.combine == "cluster") & (f.c.split_k == 1),
        lambda f: f.c.split_k,
        "2 parts or more",
        "there are no parts that a cluster could add: combine says nothing",
    ),
    rule(
        "max_sms",
        "launch",
        None,
        lambda f: (f.c.max_sms != 0) & ((f.c.max_sms < f.cluster_ctas) | (f.c.persistent == False)),  # noqa: E712 - arrays
        lambda f: (f.c.max_sms, f.cluster_ctas, f.c.persistent),
        "0, or a cap that a whole cluster fits, of a persistent kernel",
        "the cap cannot be kept: a cluster takes more SMs, or CTAs are launched for all tiles at once",
    ),
    rule(
        "divergent",
        "run",
        None,
        lambda f: f.c.scopes.is_divergent,
        lambda f: f.c.scopes.name,
        "collective scopes that every warpgroup enters equally often",
        "the compute warpgroups wait at the entry of a collective scope for one that never comes: a hang",
    ),
    rule(
        "peer_ring",
        "run",
        None,
        lambda f: f.c.scopes.follows_ring & (f.cluster_size > 1),
        lambda f: f.cluster_size,
        1,
        "peers of the cluster load into the ring while the epilogue lies in its bytes: a wrong result",
        asked_of="clusters",
    ),
    rule(
        "turns",
        "run",
        None,
        lambda f: (
            (f.c.wg_split == "tile")
            & (
                (f.turns == 1)
                | f.is_exchanged
                | f.c.scopes.shares_bytes
                | f.c.scopes.opens_in_loop
                | (f.c.persistent == 0)
            )
        ),
        lambda f: (f.c.compute_wgs, f.c.scopes.name, f.c.combine, f.c.persistent),
        "two compute_wgs, no parts that a cluster adds, a ring of its own outside of the tile loop, persistent",
        "warpgroups that take turns at tiles would meet at a barrier for each, or there is no second of either",
    ),
    rule(
        "pipeline",
        "run",
        None,
        lambda f: (f.c.delay_release > 1) | (f.c.stages <= f.c.delay_release),
        lambda f: (f.c.stages, f.c.delay_release),
        "delay_release 0 or 1, below stages",
        "a slot is waited for that is given back only after it: a hang, or a result from a slot that was reused",
    ),
    rule(
        "split",
        "run",
        None,
        lambda f: (
            ((f.c.wg_split == "m") & (f.c.tile_m % f.c.compute_wgs != 0))
            | ((f.c.wg_split == "n") & (f.c.tile_n % f.c.compute_wgs != 0))
        ),
        lambda f: f.c.tile_m if f.c.wg_split == "m" else f.c.tile_n,
        lambda f: f"a multiple of compute_wgs={f.c.compute_wgs}",
        "rows or columns of the tile that no warpgroup computes: output stays unwritten",
    ),
    rule(
        "epilogue_tile",
        "run",
        None,
        lambda f: (f.wg_m % f.c.epi_m != 0) | (f.wg_n % f.c.epi_n != 0),
        lambda f: (f.c.epi_m, f.c.epi_n),
        lambda f: f"divisors of the warpgroup's tile {f.wg_m}x{f.wg_n}",
        "part of the tile is never stored: output stays unwritten",
    ),
)
