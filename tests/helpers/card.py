"""An H200 as a benchmark finds it."""

from __future__ import annotations

from autotune.machine import GpuInfo
from benchmarks.card import Card
from tests.helpers.best_entries import H200

CARD = Card(
    gpu=GpuInfo(
        index=0, uuid="GPU-1", kind="NVIDIA H200", sm_count=132, memory_bytes=2**37, power_limit_w=700.0,
        driver="580.1", compute_capability=(9, 0),
    ),
    device=H200,
)  # fmt: skip
