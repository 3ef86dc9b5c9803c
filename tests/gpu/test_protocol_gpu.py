"""What only a card can show of the protocol: L2 states, chains, sustained blocks, honest ties, quiet neighbours."""

from __future__ import annotations

import dataclasses
import statistics

import pytest

from autotune import machine
from autotune.evaluate import make_evaluator
from autotune.protocol import AUTO, resolved
from autotune.seam import Candidate, Limits, Measured, MeasureProtocol, RaceJob, ScreenJob
from autotune.target import load_target
from autotune.verdict import judge
from tests.helpers.pools import collect

pytestmark = pytest.mark.gpu

TARGET = load_target("hopper_matmul")


def candidate(m, n, k):
    device = TARGET.device_named(machine.hopper_gpus()[0].kind)
    problem = TARGET.problem_from_fields({"m": m, "n": n, "k": k})
    config = TARGET.config_from_knobs(TARGET.heuristic_config(problem, device))
    return Candidate(target=TARGET.name, problem=problem, config=config, device=device)


def evaluator(workers=1):
    gpu = machine.hopper_gpus()[0]
    return make_evaluator(
        "gpu", target_name=TARGET.name, protocol=AUTO, limits=Limits(), workers=workers, gpu=gpu
    )


def raced(one, protocol, *, rounds=60, seconds=4.0, twice=False, **changes):
    """Returns the race of one kernel with XLA's plain product."""
    job = RaceJob(
        job_id=0,
        problem=one.problem,
        target=TARGET.name,
        candidates=(one, one) if twice else (one,),
        rounds=rounds,
        protocol=protocol,
        formulations=("plain",),
        seconds=seconds,
        **changes,
    )
    with evaluator() as own:
        own.submit(job)
        race = collect(own, 1)[0].result
    failed = [entry for entry in getattr(race, "entries", ()) if not isinstance(entry.result, Measured)]
    assert hasattr(race, "entries") and not failed, f"lanes failed: {failed or race}"
    return race


def medians(race):
    return {entry.finalist: entry.result.timing.median_us for entry in race.entries}


def test_each_l2_state_is_what_it_says():
    """64x4096x4096: 34 MB of weights fit in the L2, beside activations of 0.5 MB."""
    one = candidate(64, 4096, 4096)
    times = {
        l2: medians(raced(one, MeasureProtocol(l2=l2)))[None] for l2 in ("warm", "activations_warm", "clean")
    }
    assert times["clean"] > 1.1 * times["warm"], (
        f"a clean L2 must cost XLA the reading of its weights: {times}"
    )
    assert times["activations_warm"] > 1.08 * times["warm"], f"the weights must be cold: {times}"
    assert times["activations_warm"] <= 1.02 * times["clean"], f"warm activations must not cost: {times}"


def test_warm_activations_are_warm():
    """4096x128x4096: the activations are 34 MB of 36 MB, so that warm ones make nearly all of the difference."""
    one = candidate(4096, 128, 4096)
    times = {l2: medians(raced(one, MeasureProtocol(l2=l2)))[None] for l2 in ("activations_warm", "clean")}
    assert times["activations_warm"] < 0.95 * times["clean"], (
        f"touched activations must be found in the L2: {times}"
    )


@pytest.mark.parametrize("l2", ["warm", "activations_warm", "clean"])
def test_a_chain_takes_at_least_as_long_as_its_kernels(l2):
    one = candidate(64, 4096, 4096)
    kernels = medians(raced(one, MeasureProtocol(l2=l2)))
    chain = medians(raced(one, MeasureProtocol(timer="chain", l2=l2)))
    for lane, time_us in chain.items():
        assert 0.9 * kernels[lane] < time_us < 2.0 * kernels[lane] + 5.0, (
            f"{l2}: chain {chain}, kernels {kernels}"
        )


def test_sustained_blocks_settle_and_tell_joules():
    one = candidate(4096, 8192, 4096)
    race = raced(one, resolved(AUTO, one.problem, TARGET), rounds=8, seconds=8.0)
    for entry in race.entries:
        samples = entry.result.timing.samples_us
        spread = max(samples) / min(samples)
        assert spread < 1.06, f"blocks of {entry.formulation or 'the kernel'} are not settled: {samples}"
        watts = entry.result.timing.joules / (entry.result.timing.median_us / 1e6)
        assert 150 < watts < 750, (
            f"{watts:.0f} W from the energy counter is no power of a Hopper card at work"
        )
    burst = medians(raced(one, MeasureProtocol()))
    sustained = medians(race)
    assert sustained[None] > 0.98 * burst[None], (
        f"sustained {sustained} cannot be faster than a burst {burst}"
    )


def test_one_kernel_entered_twice_ties_and_the_ceilings_are_a_cards():
    one = candidate(1024, 1024, 1024)
    race = raced(one, resolved(AUTO, one.problem, TARGET), twice=True, ceilings=True)
    winner = judge([{"entry": 1}, {"entry": 2}], race)
    assert winner.tied == 2, f"twins were told apart: {winner}"
    assert 1.5e12 < race.ceilings["copy_bytes_per_s"] < 5e12, race.ceilings
    assert 3e14 < race.ceilings["product_flops_per_s"] < 1e15, race.ceilings


def test_screening_is_paired_with_a_reference_that_costs_little():
    one = candidate(4096, 4096, 4096)
    protocol = resolved(AUTO, one.problem, TARGET)
    with evaluator() as own:
        own.submit(ScreenJob(job_id=0, candidate=one, protocol=protocol))
        timing = collect(own, 1)[0].result.timing
    assert len(timing.reference_us) == len(timing.samples_us) == protocol.rounds
    reference_us = statistics.median(timing.reference_us)
    assert 15 < reference_us < 40, f"the fixed product takes {reference_us:.1f} us instead of about 24"
    assert timing.score_us == pytest.approx(timing.median_us, rel=0.35)


def test_the_plain_rival_is_the_same_whatever_is_raced_beside_it():
    one = candidate(1024, 1024, 1024)
    times = [medians(raced(one, dataclasses.replace(MeasureProtocol(), rounds=20)))[None] for _ in range(2)]
    assert times[0] == pytest.approx(times[1], rel=0.25), f"XLA compiled in two fresh processes: {times}"


def test_neighbours_that_compile_do_not_move_a_fixed_kernel():
    from benchmarks.neighbour_noise import LIMIT
    from benchmarks.neighbour_noise import medians as beside

    alone_us, busy_us = beside(15, 4)
    assert abs(busy_us / alone_us - 1) <= LIMIT, (
        f"alone {alone_us:.3f} us, beside 15 compiling {busy_us:.3f} us"
    )
