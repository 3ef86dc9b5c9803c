"""The SM clock, read by a kernel on the card itself: cycles and nanoseconds between two points of one spin."""

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
HOLD_CYCLES = 2_000_000  # a millisecond at 2 GHz, which no Hopper card exceeds

# One thread waits for a tick of the nanosecond timer, which on some cards comes only every microsecond, reads the
# cycle counter, spins, waits for the next tick and reads it again. Both ends lie on a tick, so that the quotient is
# good to the few dozen cycles that one look at the timer takes.
SPIN_PTX = """
{{
    .reg .u64 first_ns, start_ns, last_ns, end_ns, start_cycle, spun, end_cycle;
    .reg .u32 ns, cycles, thread;
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
    sub.u64 end_ns, end_ns, start_ns;
    sub.u64 end_cycle, end_cycle, start_cycle;
    cvt.u32.u64 ns, end_ns;
    cvt.u32.u64 cycles, end_cycle;
    st.global.v2.u32 [$0], {{cycles, ns}};
END:
}}
"""


def spin_program(cycles: int = SPIN_CYCLES) -> Callable[[], Array]:
    """Returns the compiled spin of so many cycles; a call gives int32[2]: cycles, and the nanoseconds they took.

    Raises:
        Exception: Whatever compiling for this process's GPU raises.
    """
    return lowered_spin(cycles).compile()


def lowered_spin(cycles: int = SPIN_CYCLES) -> jax.stages.Lowered:
    """Returns the spin lowered for CUDA; needs no GPU."""
    return jax.jit(_spin(cycles)).trace().lower(lowering_platforms=("cuda",))


def sm_mhz(reading: Array) -> float:
    """Returns the SM clock in MHz of one call's result."""
    cycles, nanoseconds = (int(value) for value in jax.device_get(reading))
    return 1e3 * cycles / nanoseconds


def seconds(reading: Array) -> float:
    """Returns how long one call spun."""
    return 1e-9 * int(jax.device_get(reading)[1])


def _spin(cycles: int) -> Callable[[], Array]:
    ptx = SPIN_PTX.format(spin_cycles=cycles)

    def body(out_ref):
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))
        def spin(_, out):
            pointer = mosaic_utils.memref_ptr(out)
            llvm.inline_asm(ir.Type.parse("!llvm.void"), [pointer], ptx, "l", has_side_effects=True)

        spin(out_ref)

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct((2,), jnp.int32), kernel_name="spin")
