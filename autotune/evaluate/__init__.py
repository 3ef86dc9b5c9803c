"""The seam behind "lower, compile, verify, measure": the evaluators gpu, replay and lower, over one pool.

Nothing here loads jax in the process of the caller; that is the workers' part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from autotune.errors import InputError
from autotune.evaluate.capacity import default_workers
from autotune.evaluate.cardtimer import card_timer
from autotune.evaluate.child_environment import worker_environment
from autotune.evaluate.gpulock import lock_path
from autotune.evaluate.guard import CardWatch
from autotune.evaluate.messages import WorkerSetup
from autotune.evaluate.pool import Pool, WorkerPoolError
from autotune.evaluate.recorded import (
    RecordedRow,
    RecordedSpace,
    find_recorded,
    read_recorded,
    write_recorded,
)
from autotune.evaluate.replay import Replay
from autotune.seam import Evaluator, Limits, MeasureProtocol

__all__ = [
    "make_evaluator",
    "WorkerPoolError",
    "RecordedRow",
    "RecordedSpace",
    "find_recorded",
    "read_recorded",
    "write_recorded",
]


class Gpu(Protocol):
    """What is asked of `autotune.machine.GpuInfo`."""

    uuid: str
    memory_bytes: int


def make_evaluator(
    kind: Literal["gpu", "replay", "lower"],
    *,
    protocol: MeasureProtocol,
    limits: Limits,
    target_name: str,
    device: Any = None,
    workers: int | None = None,
    gpu: Gpu | None = None,
    recorded: Sequence[RecordedSpace] = (),
    seed: int = 0,
    shared: bool = False,
    target_loader: Callable[[str], Any] | None = None,
) -> Evaluator:
    """Returns an evaluator with its workers starting. Close it, or use its `with`, to end them.

    Call it, and everything on its result, from one thread that outlives the evaluator.

    Args:
        kind: "gpu" measures; "replay" takes times from `recorded`; "lower" stops after lowering.
        target_name: Target of the jobs to come.
        device: The device of the candidates to come; a replay must have been recorded on its kind.
        workers: Number of processes; None: one a core, as far as the host's memory reaches.
        gpu: For "gpu": the card to measure on.
        recorded: For "replay": one space of each problem.
        seed: Of the operands that are measured with.
        shared: Others use the card too, and are not to veto what is measured.
        target_loader: Importable function of a target's name, called in the workers; None: `load_target`.

    Raises:
        InputError: What the kind needs is not given, or the recorded space is another target's or device's.
    """
    if target_loader is None:
        from autotune.target import load_target as target_loader
    if workers is not None and workers < 1:
        raise InputError(f"workers={workers}: at least 1 is needed")
    on_gpu = kind == "gpu"
    if on_gpu and gpu is None:
        raise InputError("evaluator gpu: there is no GPU to measure on. Use the evaluator replay or lower")
    if kind == "replay":
        _check_recorded(recorded, target_name, device)
    setup = WorkerSetup(
        measures=on_gpu,
        platform="cuda",
        protocol=protocol,
        target_loader=target_loader,
        make_timer=functools.partial(card_timer, gpu.uuid) if on_gpu else None,
        lock_path=str(lock_path(gpu.uuid)) if on_gpu else None,
        make_watch=functools.partial(CardWatch, gpu.uuid) if on_gpu else None,
        shared=shared,
        seed=seed,
    )
    pool = Pool(
        kind="gpu" if on_gpu else "lower",
        setup=setup,
        environment=worker_environment(gpu_uuid=gpu.uuid if on_gpu else None),
        workers=workers or default_workers(on_gpu=on_gpu),
        limits=limits,
        card_bytes=gpu.memory_bytes if on_gpu else None,
    )
    return Replay(pool, recorded) if kind == "replay" else pool


def _check_recorded(recorded: Sequence[RecordedSpace], target_name: str, device: Any) -> None:
    if not recorded:
        raise InputError("evaluator replay: no recorded space fits this problem. Use the evaluator lower")
    for space in recorded:
        if space.target != target_name:
            raise InputError(
                f"evaluator replay: the space was recorded for {space.target}, not {target_name}"
            )
        kind = space.device.get("kind")
        if device is not None and device.kind != kind:
            raise InputError(f"evaluator replay: the space was recorded on {kind}, not on {device.kind}")
