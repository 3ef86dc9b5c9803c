"""What the counters of a lane say, as a line of JSON for each kernel and a row of Markdown for each lane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.counter_lanes import CounterLane
from benchmarks.counter_log import Kernel

TIME = "gpu__time_duration.sum"
TENSOR = "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed"  # WGMMA counts here
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
SMEM = "l1tex__data_bank_reads.avg.pct_of_peak_sustained_elapsed"
L2 = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
L2_HITS = "lts__t_sector_hit_rate.pct"
L2_BYTES = "lts__t_bytes.sum"
TO_SM_BYTES = "l1tex__m_xbar2l1tex_read_bytes.sum"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
DRAM_READ, DRAM_WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
WARPS = "sm__warps_active.avg.pct_of_peak_sustained_active"
CYCLES, ACTIVE = "sm__cycles_elapsed.max", "sm__cycles_active.avg"
LAUNCH = tuple(
    f"launch__{name}"
    for name in ("registers_per_thread", "shared_mem_per_block", "grid_size", "block_size", "cluster_size")
)
REGISTERS, SMEM_BYTES, CTAS, THREADS, CLUSTER = LAUNCH
WAVES = "launch__waves_per_multiprocessor"
# CTAs on an SM at once, by each of them.
LIMITS = tuple(f"launch__occupancy_limit_{name}" for name in ("registers", "shared_mem", "warps", "blocks"))
# Every counter among them is one that NVIDIA's library of CUDA 13.0 knows for this chip, GH100; ncu reads nothing at
# all where one name is wrong. WGMMA has no cycles of its own there (sm__pipe_tensor_op_gmma_cycles_active).
METRICS = (
    TIME, TENSOR, SM, SMEM, L2, L2_HITS, L2_BYTES, TO_SM_BYTES, DRAM, DRAM_READ, DRAM_WRITTEN, WARPS, CYCLES, ACTIVE,
    *LAUNCH, WAVES, *LIMITS,
)  # fmt: skip

HEADINGS = (
    "problem", "lane", "kernels", "us", "tensor %", "SM %", "SMEM reads %", "L2 %", "DRAM %", "DRAM MB",
    "DRAM over least", "L2 MB", "L2 over least", "L2 hits %", "to SMs MB", "SMs busy %", "warps %", "registers",
    "SMEM KB", "CTAs", "threads", "cluster", "CTAs an SM", "waves", "main kernel",
)  # fmt: skip
NAME_CHARACTERS, REASON_CHARACTERS = 40, 120
DIGITS = 6  # of a counter in a file


def json_rows(lane: CounterLane, kernels: Sequence[Kernel], failed: str | None) -> Iterator[dict[str, Any]]:
    """Yields a row for each kernel, with `METRICS` alone, or one that says why there is none.

    ncu adds some 280 more to them, nearly all of which are facts about the card.
    """
    row = {"problem": lane.problem.to_fields(), "lane": lane.name}
    if lane.config is not None:
        row["knobs"] = lane.config.to_knobs()
    if failed:
        yield row | {"failed": failed}
    for place, kernel in enumerate(kernels):
        asked = {name: kernel.metrics[name] for name in METRICS if name in kernel.metrics}
        metrics = {name: float(f"{value:.{DIGITS}g}") for name, value in asked.items()}
        yield row | {"place": place, "kernel": kernel.name, "metrics": metrics}


def heading() -> Iterator[str]:
    yield f"| {' | '.join(HEADINGS)} |"
    yield "|" + "---|" * len(HEADINGS)


def table_row(lane: CounterLane, kernels: Sequence[Kernel], failed: str | None) -> str:
    """Returns a lane's row: times and bytes of all its kernels, the rest of the one that takes longest."""
    first = [lane.problem.describe(), lane.name]
    if failed:
        return f"| {' | '.join([*first, failed[:REASON_CHARACTERS].replace('|', '/')])} |"
    longest = max(kernels, key=lambda kernel: kernel.metrics.get(TIME, 0.0))
    main = longest.metrics
    dram_bytes = _total(kernels, DRAM_READ, DRAM_WRITTEN)
    l2_bytes = _total(kernels, L2_BYTES)
    least_bytes = lane.problem.min_bytes
    limits = [main[limit] for limit in LIMITS if limit in main]
    cells = [
        str(len(kernels)),
        _number(_total(kernels, TIME)),
        *(_number(main.get(share)) for share in (TENSOR, SM, SMEM, L2, DRAM)),
        _number(_over(dram_bytes, 1e6)),
        _number(_over(dram_bytes, least_bytes), 2),
        _number(_over(l2_bytes, 1e6)),
        _number(_over(l2_bytes, least_bytes), 2),
        _number(main.get(L2_HITS)),
        _number(_over(_total(kernels, TO_SM_BYTES), 1e6)),
        _number(_over(main.get(ACTIVE), main.get(CYCLES, 0.0) / 100)),
        _number(main.get(WARPS)),
        _number(main.get(REGISTERS), 0),
        _number(_over(main.get(SMEM_BYTES), 1e3)),
        *(_number(main.get(count), 0) for count in (CTAS, THREADS, CLUSTER)),
        _number(min(limits, default=None), 0),
        _number(main.get(WAVES), 2),
        longest.name[:NAME_CHARACTERS].replace("|", "/"),
    ]
    return f"| {' | '.join([*first, *cells])} |"


def _total(kernels: Sequence[Kernel], *names: str) -> float | None:
    """Returns a sum over all kernels; None where ncu could not read one of them."""
    values = [kernel.metrics.get(name) for kernel in kernels for name in names]
    return None if None in values else sum(values)


def _over(value: float | None, divisor: float) -> float | None:
    return value / divisor if value is not None and divisor else None


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
