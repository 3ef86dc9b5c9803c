"""A kernel that never changes, in PTX: only the driver turns it into machine code, so no jaxlib can speed it up.

Each thread does `rounds` times 32 multiply-adds in float32, in four independent chains, which keeps the FP32 units of
every SM busy and touches memory once at the end: its time follows the SM clock and nothing else.
"""

from __future__ import annotations

NAME = "fixed_kernel"
CHAINS = 4
STEPS = 8  # multiply-adds of each chain in a round
ROUNDS = 16_384
THREADS = 256
BLOCKS_PER_SM = 8  # 2,048 threads, all that an SM holds


def ptx() -> str:
    """Returns the module's text; for sm_70 and newer, which every driver for Hopper accepts."""
    registers = [f"%f{index + 1}" for index in range(CHAINS)]
    lines = [f"\tfma.rn.f32 \t{chain}, {chain}, %f9, %f10;" for _ in range(STEPS) for chain in registers]
    return f"""//
.version 7.0
.target sm_70
.address_size 64

.visible .entry {NAME}(
\t.param .u64 {NAME}_out,
\t.param .u32 {NAME}_rounds,
\t.param .f32 {NAME}_scale,
\t.param .f32 {NAME}_offset
)
{{
\t.reg .pred \t%p<2>;
\t.reg .f32 \t%f<11>;
\t.reg .b32 \t%r<7>;
\t.reg .b64 \t%rd<5>;

\tld.param.u64 \t%rd1, [{NAME}_out];
\tld.param.u32 \t%r1, [{NAME}_rounds];
\tld.param.f32 \t%f9, [{NAME}_scale];
\tld.param.f32 \t%f10, [{NAME}_offset];
\tcvta.to.global.u64 \t%rd2, %rd1;
\tmov.u32 \t%r2, %tid.x;
\tmov.u32 \t%r3, %ctaid.x;
\tmov.u32 \t%r4, %ntid.x;
\tmad.lo.u32 \t%r5, %r3, %r4, %r2;
\tcvt.rn.f32.u32 \t%f1, %r2;
\tadd.f32 \t%f2, %f1, %f10;
\tadd.f32 \t%f3, %f2, %f10;
\tadd.f32 \t%f4, %f3, %f10;
\tmov.u32 \t%r6, %r1;
LOOP:
{chr(10).join(lines)}
\tsub.u32 \t%r6, %r6, 1;
\tsetp.ne.u32 \t%p1, %r6, 0;
\t@%p1 bra \tLOOP;
\tadd.f32 \t%f5, %f1, %f2;
\tadd.f32 \t%f6, %f3, %f4;
\tadd.f32 \t%f7, %f5, %f6;
\tmul.wide.u32 \t%rd3, %r5, 4;
\tadd.u64 \t%rd4, %rd2, %rd3;
\tst.global.f32 \t[%rd4], %f7;
\tret;
}}
"""
