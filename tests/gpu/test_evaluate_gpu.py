"""The evaluator `gpu` on a real card: times, verification, races, and what is left behind."""

from __future__ import annotations

import dataclasses
import fcntl
import statistics

import pytest

from autotune import machine
from autotune.evaluate.gpulock import lock_path
from autotune.evaluate.timing import BEHIND_ROUNDS
from autotune.seam import Failed, Measured, MeasureProtocol, RaceJob, ScreenJob
from tests.helpers.gpu_batch import TARGET, candidate, pool, results_of, spread
from tests.helpers.pools import collect, is_alive

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(80)]

FLUSH_US = 256 * 2**20 / 4.9e12 * 1e6  # 54.8 us: reading the flush buffer faster than any Hopper's memory
WIDTHS = (1, 4, 8)
CLEAN = MeasureProtocol(l2="clean", rounds=20)


def screened(one):
    return ScreenJob(job_id=0, candidate=one, protocol=CLEAN)


def ordered(one, width, binary):
    config = TARGET.config_from_knobs({"raster_width": width})  # 8 by 8 tiles of 128 by 128
    return ScreenJob(
        job_id=0, candidate=dataclasses.replace(one, config=config), protocol=CLEAN, binary=binary
    )


def twins(one, l2):
    """Returns a race of the same kernel twice: what an honest race cannot tell apart."""
    return RaceJob(
        job_id=0,
        problem=one.problem,
        target=TARGET.name,
        candidates=(one, one),
        rounds=100,
        protocol=MeasureProtocol(l2=l2),
        formulations=("plain",),
    )


@pytest.fixture(scope="module")
def results():
    square, small = candidate(1024, 1024, 1024), candidate(512, 512, 512)
    jobs = {
        "untuned": screened(square),
        **{f"spread {index}": screened(one) for index, one in enumerate(spread(square, 4))},
        "small": screened(small),
        "small again": screened(dataclasses.replace(small)),
        **{f"order {width}": ordered(square, width, "square") for width in WIDTHS},
        "order compiled in": ordered(square, WIDTHS[0], None),
        "twins clean": twins(square, "clean"),
        "twins warm": twins(square, "warm"),
    }
    with pool(4, protocol=CLEAN) as evaluator:
        return results_of(evaluator, jobs, 60.0)


def test_candidates_are_verified_and_timed(results):
    measured = results["untuned"]
    assert isinstance(measured, Measured), measured
    assert measured.poisoned
    assert measured.error < 2**-8
    assert len(measured.timing.samples_us) in (BEHIND_ROUNDS, 20)  # where another came first and was faster
    assert measured.held_s["check"] > 0 and measured.held_s["kernels"] > 0
    assert measured.locked_s == pytest.approx(sum(measured.held_s.values()), abs=1e-4)
    # 2 GFLOP at 990 TFLOP/s, the card's peak, take 2.2 us; a sum that held the flush would be over 54 us.
    assert 2.1 < measured.timing.median_us < FLUSH_US / 2
    # Whatever else becomes of legal candidates, none fails for a reason of the measuring's own.
    others = [result for name, result in results.items() if name.startswith("spread")]
    assert not [result for result in others if isinstance(result, Failed) and result.reason == "error"]


@pytest.mark.parametrize("l2", ["clean", "warm"])
def test_a_race_interleaves_finalists_with_the_rival(results, l2):
    entries = results[f"twins {l2}"].entries
    assert [entry.finalist for entry in entries] == [0, 1, None]
    assert all(isinstance(entry.result, Measured) for entry in entries), entries
    samples = [entry.result.timing.samples_us for entry in entries]
    # A lane whose loss is certain leaves early; a kernel entered twice never loses to itself.
    assert all(20 <= len(each) <= 100 for each in samples)
    assert entries[2].result.error < 2**-8
    ratio = statistics.median(a / b for a, b in zip(samples[0], samples[1], strict=False))
    assert ratio == pytest.approx(1.0, abs=0.02)


def test_a_duplicate_carries_the_first_ones_time(results):
    pair = results["small"], results["small again"]
    assert all(isinstance(result, Measured) for result in pair), pair
    # Either may have been the first to lower; the other one carries its time.
    assert [result.duplicate_of is None for result in pair].count(True) == 1
    assert pair[0].timing == pair[1].timing


def test_orders_of_one_binary_are_each_verified_and_take_about_as_long_as_what_ships(results):
    shared = [results[f"order {width}"] for width in WIDTHS]
    assert all(isinstance(result, Measured) and result.lowered.shares_binary for result in shared), shared
    assert all(result.poisoned and result.exact for result in shared)
    assert sum(bool(result.lowered.compile_s) for result in shared) < len(WIDTHS)
    static = results["order compiled in"]
    assert not static.lowered.shares_binary
    # A kernel of 6 us, which reads its first tile from memory before it loads anything.
    assert shared[0].timing.score_us == pytest.approx(static.timing.score_us, rel=0.2)


def test_the_card_is_shared_through_its_lock_and_left_empty():
    gpu = machine.hopper_gpus()[0]
    evaluator = pool(1, protocol=CLEAN)
    try:
        evaluator.submit(screened(candidate(512, 512, 512)))
        assert isinstance(collect(evaluator, 1)[0].result, Measured)
        with lock_path(gpu.uuid).open("a") as holder:
            fcntl.flock(holder, fcntl.LOCK_EX)
            evaluator.submit(dataclasses.replace(screened(candidate(512, 512, 1024)), job_id=1))
            assert not evaluator.poll(8.0)  # longer than lowering and compiling take
            fcntl.flock(holder, fcntl.LOCK_UN)
        assert isinstance(collect(evaluator, 1)[1].result, Measured)
        pids = evaluator.worker_pids
    finally:
        evaluator.close()
    assert not any(is_alive(pid) for pid in pids)
