"""A kernel that spins and tells the time on the card's own clocks: the SM's cycles, and nanoseconds."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.mosaic.gpu import utils as mosaic_utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import llvm

SPIN_CYCLES = 40_000  # 20 us at 1,980 MHz: 1 GPU time in 500 of a batch of 10 ms
HOLD_CYCLES = 500_000  # 0.25 ms at 2 GHz, which no Hopper card exceeds

STAMP_CYCLES = 0  # a mark in time, which spins only from one tick of the timer to the next

# One thread waits for a tick of the nanosecond timer, which on some cards comes only every microsecond, reads the
# cycle counter, spins, waits for the next tick and reads it again. Both ends lie on a tick, so that the quotient is
# good to the few dozen cycles that one look at the timer takes. Of the time at which it begins and ends it stores the
# low 32 bits, which come round every 4.29 s.
SPIN_PTX = """
{{
    .reg .u64 first_ns, start_ns, last_ns, end_ns, start_cycle, spun, end_cycle;
    .reg .u32 begun, ended, ns, cycles, thread;
    .reg .pred again;
    mov.u32 thread, %tid.x;
    setp.ne.u32 again, thread, 0;
    @again bra END;
    mov.u64 first_ns, %globaltimer;
FIRST_TICK:
    mov.u64 start_ns, %globaltimer;
    setp.eq.u64 again, start_ns, first_ns;
    @again bra FIRST_TICK;
    mov.u64 start_cycle, %clock64;
SPIN:
    mov.u64 spun, %clock64;
    sub.u64 spun, spun, start_cycle;
    setp.lt.u64 again, spun, {spin_cycles};
    @again bra SPIN;
    mov.u64 last_ns, %globaltimer;
LAST_TICK:
    mov.u64 end_ns, %globaltimer;
    setp.eq.u64 again, end_ns, last_ns;
    @again bra LAST_TICK;
    mov.u64 end_cycle, %clock64;
    cvt.u32.u64 begun, first_ns;
    cvt.u32.u64 ended, end_ns;
    sub.u64 end_ns, end_ns, start_ns;
    sub.u64 end_cycle, end_cycle, start_cycle;
    cvt.u32.u64 ns, end_ns;
    cvt.u32.u64 cycles, end_cycle;
    st.global.v4.u32 [$0], {{cycles, ns, begun, ended}};
END:
}}
"""


def spin_program(cycles: int = SPIN_CYCLES) -> Callable[[], Array]:
    """Returns the compiled spin of so many cycles; a call gives int32[4]: cycles, the nanoseconds
    they took, and the low 32 bits of the nanoseconds at which it began and ended.

    Raises:
        Exception: Whatever compiling for this process's GPU raises.
    """
    return lowered_spin(cycles).compile()


def lowered_spin(cycles: int = SPIN_CYCLES) -> jax.stages.Lowered:
    """Returns the spin lowered for CUDA; needs no GPU."""
    return jax.jit(_spin(cycles)).trace().lower(lowering_platforms=("cuda",))


def sm_mhz(reading: Array) -> float:
    """Returns the SM clock in MHz of one call's result."""
    cycles, nanoseconds, _, _ = (int(value) for value in jax.device_get(reading))
    return 1e3 * cycles / nanoseconds


def between_s(first: Array, second: Array) -> float:
    """Returns the seconds from the end of one call to the beginning of a later one, of less than 4.29 s."""
    ended, begun = int(jax.device_get(first)[3]), int(jax.device_get(second)[2])
    return 1e-9 * ((begun - ended) % 2**32)


def _spin(cycles: int) -> Callable[[], Array]:
    ptx = SPIN_PTX.format(spin_cycles=cycles)

    def body(out_ref):
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))
        def spin(_, out):
            pointer = mosaic_utils.memref_ptr(out)
            llvm.inline_asm(ir.Type.parse("!llvm.void"), [pointer], ptx, "l", has_side_effects=True)

        spin(out_ref)

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct((4,), jnp.int32), kernel_name="spin")
