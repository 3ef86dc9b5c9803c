"""hopper_matmul with planted kernels in place of its own: GPU code that is wrong in one way each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autotune.seam import Candidate, ScreenJob
from hopper_matmul.hardware import KNOWN
from hopper_matmul.problem import Problem
from hopper_matmul.target import HopperMatmul

NAME = "planted"
SIZES = {"m": 1024, "n": 1024, "k": 1024}
RESULT_BYTES = 1024 * 1024 * 2
STRAY_BYTES = 4

# Each thread copies every 128th piece of 16 bytes from $0 to $1; what follows is the planted fault.
_COPY = f"""
{{
    .reg .u32 index;
    .reg .u64 offset, address;
    .reg .b32 a, b, c, d;
    .reg .pred again;
    mov.u32 index, %tid.x;
COPY:
    mul.wide.u32 offset, index, 16;
    add.u64 address, $0, offset;
    ld.global.v4.b32 {{a, b, c, d}}, [address];
    add.u64 address, $1, offset;
    st.global.v4.b32 [address], {{a, b, c, d}};
    add.u32 index, index, 128;
    setp.lt.u32 again, index, {RESULT_BYTES // 16};
    @again bra COPY;
    mov.b32 a, 0;
    PLANTED
}}
"""
FAULTS = {
    "copy": "",
    # 64 bytes behind the result, in nobody's memory but the verifier's.
    "stray": f"add.u64 address, $1, {RESULT_BYTES + 64}; st.global.b32 [address], a;",
    "far_write": f"add.u64 address, $1, {2**44}; st.global.b32 [address], a;",
    "far_read": f"add.u64 address, $1, {2**44}; ld.global.b32 a, [address]; st.global.b32 [$1], a;",
    "trap": "trap;",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedConfig:
    """`mode` names the fault; good ones of different variants are different modules."""

    mode: str = "good"
    variant: int = 0

    def to_knobs(self) -> dict[str, Any]:
        return {"mode": self.mode, "variant": self.variant}


class PlantedTarget(HopperMatmul):
    name = NAME

    def build(self, problem: Problem, config: PlantedConfig, device: Any) -> Callable[..., Any]:
        import jax.numpy as jnp

        product = self.rival(problem)
        floor = -10_000.0 - 64 * config.variant
        match config.mode:
            case "good":
                return lambda lhs, rhs: jnp.maximum(product(lhs, rhs), floor)
            case "wrong":
                return lambda lhs, rhs: 1.5 * product(lhs, rhs)
            case "wrong_element":
                return lambda lhs, rhs: product(lhs, rhs).at[3, 5].add(8.0)
            case "fill_card":
                _fill_card()
                return product
            case mode:
                copy = _copy_kernel(problem, FAULTS[mode])
                return lambda lhs, rhs: copy(product(lhs, rhs))


def _fill_card() -> None:
    import jax
    import jax.numpy as jnp

    hoard = []
    while True:
        hoard.append(jax.block_until_ready(jnp.ones((2**30,), jnp.float32)))


def _copy_kernel(problem: Problem, fault: str) -> Callable[[Any], Any]:
    import jax
    from jax.experimental.mosaic.gpu import utils as mosaic_utils
    from jax.experimental.pallas import mosaic_gpu as plgpu
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import llvm

    def body(source_ref, result_ref):
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.RefType()))
        def copy(_, source, result):
            pointers = [mosaic_utils.memref_ptr(source), mosaic_utils.memref_ptr(result)]
            code = planted_ptx(fault)
            llvm.inline_asm(ir.Type.parse("!llvm.void"), pointers, code, "l,l", has_side_effects=True)

        copy(source_ref, result_ref)

    out_type = jax.ShapeDtypeStruct((problem.m, problem.n), problem.out_dtype)
    return plgpu.kernel(body, out_type=out_type, kernel_name="planted")


def planted_ptx(fault: str) -> str:
    return _COPY.replace("PLANTED", fault)


def load_planted(name: str) -> PlantedTarget:
    assert name == NAME
    return PlantedTarget()


def planted(job_id: int, mode: str = "good", variant: int = 0) -> ScreenJob:
    config = PlantedConfig(mode=mode, variant=variant)
    problem = Problem.from_fields(SIZES)
    return ScreenJob(
        job_id=job_id,
        candidate=Candidate(target=NAME, problem=problem, config=config, device=KNOWN["nvidia_h200"]),
    )
