"""Do neighbours that compile move a fixed kernel? Times one kernel beside fifteen of them, and with them stopped.

    PYTHONPATH=.:kernels python benchmarks/neighbour_noise.py [--neighbours 15] [--seconds 35] [--out FILE.jsonl]

This process measures as a worker does, with a worker's own parts: under the card's lock, by CUPTI, in the clean state.
The neighbours are a real pool that lowers, compiles and measures candidates of the same space. Measurements alternate:
beside the neighbours, then alone, when the lock is held and their processes are stopped (SIGSTOP) for as long as it
takes. What warms up or wanders meanwhile is so shared by both. Prints both medians and the 95% interval of their ratio,
which must stay within 0.5%.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import signal
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from autotune.protocol import AUTO, resolved
from autotune.seam import Candidate, MeasureProtocol, ScreenJob
from autotune.target import load_target
from benchmarks.card import Card, Deadline, Lines, card_of

TARGET = load_target("hopper_matmul")
LIMIT = 0.005
SIZES = {"m": 4096, "n": 4096, "k": 4096}
ROUNDS = 40  # of each measurement: 40 x (171 + 58) us, about 10 ms
GAP_S = 0.05  # between two measurements, in which the neighbours have the card
START_S = 14.0  # after so long measuring begins, whether or not all neighbours have compiled something
SETTLE_S = 0.01
COMPILING = ("lower", "compile", "prepare")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One measurement beside the neighbours and one alone, in us; and how many neighbours compiled at the first."""

    beside_us: float
    alone_us: float
    compiling: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--neighbours", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=35.0, help="of all, start included")
    parser.add_argument("--out", metavar="FILE", help="append each pair as a line of JSON")
    arguments = parser.parse_args()
    deadline = Deadline(arguments.seconds)
    card = card_of(parser, TARGET)
    say = Lines(arguments.out)
    pairs = []
    for pair in measured_pairs(card, arguments.neighbours, deadline):
        pairs.append(pair)
        if len(pairs) % 20 == 1 or arguments.out:
            say(beside_us=pair.beside_us, alone_us=pair.alone_us, compiling=pair.compiling)
    if len(pairs) < 5:
        parser.exit(1, f"only {len(pairs)} pairs in {deadline.passed_s:.0f} s\n")
    raise SystemExit(0 if summarise(pairs, arguments.neighbours) else 1)


def summarise(pairs: list[Pair], neighbours: int) -> bool:
    """Prints medians and the interval of their ratio; returns whether the neighbours moved nothing."""
    import numpy as np

    from autotune.lanes import bootstrap_interval

    ratios = np.array([pair.beside_us / pair.alone_us for pair in pairs])
    change, (low, high) = float(np.median(ratios)) - 1, bootstrap_interval(ratios)
    alone_us, beside_us = (
        statistics.median(getattr(pair, name) for pair in pairs) for name in ("alone_us", "beside_us")
    )
    busy = statistics.median(pair.compiling for pair in pairs)
    print(
        f"{len(pairs)} pairs: alone {alone_us:.3f} us, beside {neighbours} neighbours ({busy:g} lowering or compiling) "
        f"{beside_us:.3f} us: {change:+.3%}, 95% interval {low - 1:+.3%} to {high - 1:+.3%}; limit {LIMIT:.1%}",
        flush=True,
    )
    return abs(change) <= LIMIT


def measured_pairs(card: Card, neighbours: int, deadline: Deadline) -> Iterator[Pair]:
    """Yields pairs until the deadline."""
    problem = TARGET.problem_from_fields(SIZES)
    protocol = replace(resolved(AUTO, problem, TARGET), rounds=ROUNDS, reference="none")
    with card.evaluator(TARGET.name, workers=neighbours) as pool, contextlib.suppress(TimeoutError):
        jobs = candidates(card, problem, replace(protocol, rounds=3))
        feed(pool, jobs, neighbours)
        measure = fixed_kernel(card, problem, protocol)
        measure.once()
        while deadline.passed_s < START_S or not any(slot.is_ready for slot in pool._slots):
            deadline()
            feed(pool, jobs, neighbours)
        while True:
            feed(pool, jobs, neighbours)
            with measure.lock():
                compiling = sum(
                    slot.process is not None and slot.process.step in COMPILING for slot in pool._slots
                )
                beside_us = measure.median_us()
            feed(pool, jobs, neighbours)
            with measure.lock(), stopped(pool):
                alone_us = measure.median_us()
            yield Pair(beside_us=beside_us, alone_us=alone_us, compiling=compiling)
            deadline()


def feed(pool: Any, jobs: Iterator[ScreenJob], neighbours: int) -> None:
    """Keeps the neighbours at work for a moment."""
    ends_s = time.monotonic() + GAP_S
    while len(pool._queue) < neighbours:
        pool.submit(next(jobs))
    while (left_s := ends_s - time.monotonic()) > 0:
        pool.poll(left_s)


@contextlib.contextmanager
def stopped(pool: Any) -> Iterator[None]:
    """Stops the neighbours with their compilers. The lock must be held, lest one of them stops with it."""
    pids = pool.worker_pids
    signal_all(pids, signal.SIGSTOP)
    try:
        time.sleep(SETTLE_S)
        yield
    finally:
        signal_all(pids, signal.SIGCONT)


def signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)


def candidates(card: Card, problem: Any, protocol: MeasureProtocol) -> Iterator[ScreenJob]:
    """Yields candidates spread over the legal space, for ever; each is another module while there are any."""
    legal = TARGET.space(problem, card.device, {}).legal()
    step = max(1, legal.size // 5000) | 1
    job_id = 0
    while True:
        config = TARGET.config_from_knobs(legal.knobs(job_id * step % legal.size))
        one = Candidate(target=TARGET.name, problem=problem, config=config, device=card.device)
        yield ScreenJob(job_id=job_id, candidate=one, protocol=protocol)
        job_id += 1


class FixedKernel:
    """One compiled kernel, measured again and again by a worker's own timer."""

    def __init__(self, worker: Any, lane: Any, protocol: MeasureProtocol):
        self._worker, self._lane, self._protocol = worker, lane, protocol

    def lock(self) -> Any:
        """Returns the card's lock as a context manager."""
        return self._worker.gpu_lock()

    def median_us(self) -> float:
        """Returns the median of one measurement, in us; under the lock."""
        # Its own time, not its ratio to another kernel: a neighbour that slows both would hide in the ratio.
        return statistics.median(self._worker.timer.screen(self._lane, self._protocol, None).samples_us)

    def once(self) -> None:
        """Measures once, so that whatever the first time costs is over."""
        with self.lock():
            self.median_us()


def fixed_kernel(card: Card, problem: Any, protocol: MeasureProtocol) -> FixedKernel:
    """Returns the heuristic's kernel compiled in this process, which from now on has a CUDA context."""
    from autotune.evaluate.cardtimer import card_timer
    from autotune.evaluate.child_environment import worker_environment
    from autotune.evaluate.gpulock import lock_path

    os.environ.update(worker_environment(gpu_uuid=card.gpu.uuid))  # before jax is loaded
    from autotune.evaluate.messages import WorkerSetup
    from autotune.evaluate.steps import compile_module, lower_candidate
    from autotune.evaluate.worker import Worker

    setup = WorkerSetup(
        measures=True,
        platform="cuda",
        protocol=protocol,
        target_loader=load_target,
        make_timer=lambda: card_timer(card.gpu.uuid),
        lock_path=str(lock_path(card.gpu.uuid)),
    )
    worker = Worker(setup, lambda message: None, queue.SimpleQueue())
    config = TARGET.config_from_knobs(TARGET.heuristic_config(problem, card.device))
    bench = worker.bench(TARGET, problem, protocol)
    one = Candidate(target=TARGET.name, problem=problem, config=config, device=card.device)
    module = lower_candidate(TARGET, one, "cuda")
    call = bench.in_place(compile_module(module)[0])
    worker.prepare(bench)
    with worker.gpu_lock():
        bench.load()
        bench.verify(call, module.result_type)
    lane = worker.lane("fixed", call, bench, module.lowered.digest)
    return FixedKernel(worker, lane, protocol)


if __name__ == "__main__":
    main()
