"""The timer of a real card: CUPTI and the wall clock behind one face, with what they launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autotune.evaluate.heldtime import HeldTime
from autotune.evaluate.session import Kernels
from autotune.evaluate.timing import FLUSH_BYTES, CuptiTimer, Lane, Sampled
from autotune.evaluate.walltime import CardClock, WallTimer
from autotune.seam import MeasureProtocol

# The fixed kernel of screening. XLA's own product of the problem would double the cost of a large candidate and
# differ between workers, as XLA picks it by timing; this one takes 24 us, comes without tuning, and feels the clock
# as every product does.
PRODUCT_SIZE = 2048
CEILING_SIZE = 8192
CEILING_CALLS = 10
PLAIN_OPTIONS = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}


class CardTimer:
    """A `timing.Timer` that times each protocol by what fits it."""

    def __init__(
        self, cupti: CuptiTimer, wall: WallTimer, ceilings: Callable[[CardTimer, str, bool], dict[str, float]]
    ):
        self.cupti, self.wall = cupti, wall
        self._ceilings = ceilings

    @property
    def guard(self) -> Callable[[Callable[[], Any]], Any]:
        return self.cupti.guard

    @guard.setter
    def guard(self, guard: Callable[[Callable[[], Any]], Any]) -> None:
        self.cupti.guard = self.wall.guard = guard

    @property
    def held(self) -> HeldTime:
        return self.cupti.held

    @held.setter
    def held(self, held: HeldTime) -> None:
        self.cupti.held = held

    def prepare(self) -> None:
        self.cupti.prepare()

    def screen(self, lane: Lane, protocol: MeasureProtocol, best_us: float | None) -> Sampled:
        return self.cupti.screen(lane, protocol, best_us)

    def race(
        self,
        lanes: Sequence[Lane],
        protocol: MeasureProtocol,
        rounds: int,
        progress: Callable[[], None],
        seconds: float,
    ) -> list[Sampled]:
        if protocol.regime == "sustained":
            return self.wall.race_blocks(lanes, rounds, progress, seconds)
        if protocol.timer == "chain":
            return self.wall.race_chains(lanes, rounds, progress, seconds)
        return self.cupti.race(lanes, protocol, rounds, progress, seconds)

    def ceilings(self, dtype: str, *, sustained: bool) -> dict[str, float]:
        """Returns what this card does now: bytes/s of a copy, and flops/s of a large product of `dtype`."""
        return self._ceilings(self, dtype, sustained)


def card_timer(uuid: str) -> CardTimer:
    """Returns a timer on this process's GPU; nothing else may profile here: CUPTI takes one subscriber.

    Args:
        uuid: Of the card, for its energy counter.
    """
    import jax
    import jax.numpy as jnp
    from jax.experimental.mosaic.gpu import profiler

    from autotune.evaluate.spin import HOLD_CYCLES, STAMP_CYCLES, between_s, spin_program

    extension = profiler.mosaic_gpu_lib._mosaic_gpu_ext
    buffer = jax.ShapeDtypeStruct((FLUSH_BYTES // 4,), jnp.float32)
    square = jax.ShapeDtypeStruct((PRODUCT_SIZE, PRODUCT_SIZE), jnp.bfloat16)
    programs: dict[str, Any] = {}
    held: dict[str, Any] = {}

    def prepare() -> None:
        programs["fill"] = jax.jit(lambda: jnp.ones(buffer.shape, buffer.dtype)).lower().compile()
        programs["read"] = jax.jit(jnp.sum).lower(buffer).compile()
        draw = jax.jit(lambda: jax.random.normal(jax.random.key(0), square.shape, square.dtype))
        programs["draw"] = draw.lower().compile()
        programs["hold"], programs["stamp"] = spin_program(HOLD_CYCLES), spin_program(STAMP_CYCLES)
        programs["product"] = jax.jit(jnp.dot).lower(square, square).compile(compiler_options=PLAIN_OPTIONS)

    def once(name: str) -> Any:
        if name not in held:
            held[name] = programs[name]()
        return held[name]

    def flush() -> Any:
        return programs["read"](once("fill"))

    def product() -> Any:
        return programs["product"](once("draw"), once("draw"))

    def trace(run: Callable[[], Any]) -> Kernels:
        extension._cupti_init()
        try:
            run()
        finally:
            # False: stay attached, since attaching again takes longer than a whole measurement.
            kernels = extension._cupti_get_timings(False)
        return list(kernels)

    cupti = CuptiTimer(trace, flush, prepare, product, jax.block_until_ready)
    card = CardClock(
        hold=lambda: programs["hold"](),
        stamp=lambda: programs["stamp"](),
        is_over=lambda mark: mark.is_ready(),
        between_s=between_s,
    )
    wall = WallTimer(jax.block_until_ready, energy_counter(uuid), card=card)
    return CardTimer(cupti, wall, _measured_ceilings)


def energy_counter(uuid: str) -> Callable[[], float | None]:
    """Returns a function that reads all the energy the card ever drew, in joules; it gives None where NVML does not."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception:  # noqa: BLE001 - without pynvml, a driver or the counter there is no energy, and no reason to stop
        return lambda: None
    return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3


def _measured_ceilings(timer: CardTimer, dtype: str, sustained: bool) -> dict[str, float]:
    import jax
    import jax.numpy as jnp

    out = {"int8": jnp.int32, "float32": jnp.float32}.get(
        dtype, jnp.bfloat16 if dtype.startswith("float8") else dtype
    )
    integer = jnp.issubdtype(jnp.dtype(dtype), jnp.integer)

    def draw(index: int) -> Any:
        shape, key = (CEILING_SIZE, CEILING_SIZE), jax.random.key(index)
        if integer:
            return jax.random.randint(key, shape, -2, 3, jnp.int8).astype(dtype)
        return jax.random.normal(key, shape, jnp.float32).astype(dtype)

    lhs, rhs = draw(0), draw(1)
    contract = (((1,), (1,)), ((), ()))  # both K-major, which every dtype's fastest product takes
    multiply = jax.jit(lambda a, b: jax.lax.dot_general(a, b, contract, preferred_element_type=out))
    product = multiply.lower(lhs, rhs).compile()
    double = jax.jit(lambda x: x * 2).lower(jax.ShapeDtypeStruct((FLUSH_BYTES // 4,), jnp.float32)).compile()
    source = jnp.ones((FLUSH_BYTES // 4,), jnp.float32)
    copy_lane = Lane(name="copy", call=lambda: jax.block_until_ready(double(source)), digest="")
    product_lane = Lane(
        name="product", call=lambda: jax.block_until_ready(product(lhs, rhs)), digest="", result_bytes=2**28
    )
    warm = MeasureProtocol(l2="warm", rounds=CEILING_CALLS)
    copy_us = min(timer.cupti.screen(copy_lane, warm, None).samples_us)
    if sustained:
        product_us = timer.wall.sustained_us(product_lane)
    else:
        product_us = min(timer.cupti.screen(product_lane, warm, None).samples_us)
    return {
        "copy_bytes_per_s": 2 * FLUSH_BYTES / copy_us * 1e6,
        "product_flops_per_s": 2 * CEILING_SIZE**3 / product_us * 1e6,
    }
