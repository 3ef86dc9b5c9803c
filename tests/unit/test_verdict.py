"""Who races and who wins, on samples worked out by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from autotune.lanes import bootstrap_interval, paired_ratios
from autotune.seam import Failed, Race, RaceEntry
from autotune.verdict import finalists, first_batch, judge, merged, rival_times
from tests.helpers.scripted import measured

A, B, C = {"tile": 64}, {"tile": 128}, {"tile": 192}


def race(*lanes, rival=None):
    entries = [
        RaceEntry(finalist=i, result=lane if isinstance(lane, Failed) else measured({"lane": i}, lane))
        for i, lane in enumerate(lanes)
    ]
    rivals = rival if isinstance(rival, dict) else {"plain": rival} if rival else {}
    entries += [
        RaceEntry(finalist=None, result=measured({"rival": name}, samples), formulation=name)
        for name, samples in rivals.items()
    ]
    return Race(entries=tuple(entries))


def test_finalists_have_distinct_modules_and_come_fastest_first():
    screened = [(C, measured(C, [9.0])), (B, measured(B, [8.0], "same")), (A, measured(A, [8.5], "same"))]
    # B and A are one module, named by the first in the fixed order; "tile: 128" sorts before "tile: 64".
    assert [knobs for knobs, _ in finalists(screened)] == [B, C]


def test_the_winner_is_best_by_paired_rounds_though_its_median_is_worse():
    # The clock drops after two rounds. B is 10% faster in each round it shares with the rival.
    slow = race([10, 10, 20, 20, 20], [9, 9, 18, 18, 18], rival=[12, 12, 24, 24, 24])
    winner = judge([A, B], slow)
    assert winner.knobs == B and winner.backend == "kernel"
    assert winner.ratio == pytest.approx(4 / 3)
    assert (winner.time_us, winner.xla_time_us, winner.raced, winner.tied) == (18, 24, 2, 1)


@pytest.mark.parametrize(
    ("rival_us", "backend"), [(9.9, "xla"), (10.0, "xla"), (10.049, "xla"), (10.06, "kernel")]
)
def test_xla_wins_ties_within_half_a_percent(rival_us, backend):
    assert judge([A], race([10.0] * 5, rival=[rival_us] * 5)).backend == backend


def test_tied_finalists_are_named_in_a_fixed_order_whoever_was_faster():
    one = judge([A, B], race([10.0] * 5, [10.04] * 5, rival=[12.0] * 5))
    other = judge([B, A], race([10.0] * 5, [10.04] * 5, rival=[12.0] * 5))
    assert one.knobs == other.knobs == B  # '{"tile": 128}' sorts before '{"tile": 64}'
    assert one.tied == 2


def test_a_finalist_that_ties_with_xla_is_not_named_over_one_that_beats_it():
    # B comes first in the fixed order and is within 0.5% of A, but its ratio to XLA is 1.004.
    winner = judge([A, B], race([10.0] * 5, [10.04] * 5, rival=[10.08] * 5))
    assert (winner.knobs, winner.backend) == (A, "kernel")


def test_the_fastest_rival_counts():
    winner = judge([A], race([10.0] * 3, rival={"plain": [14.0] * 3, "transposed": [11.0] * 3}))
    assert (winner.xla_time_us, winner.formulation) == (11.0, "transposed")


def test_without_a_rival_the_best_finalist_wins_and_xla_is_not_measured():
    winner = judge([A, B], race([10.0] * 3, [8.0] * 3))
    assert (winner.knobs, winner.backend) == (B, "kernel")
    assert winner.ratio is winner.ratio_interval is winner.xla_time_us is None


def test_a_finalist_that_failed_in_the_race_cannot_win():
    assert (
        judge([A, B], race(Failed(reason="crash", detail="signal 6"), [10.0] * 3, rival=[12.0] * 3)).knobs
        == B
    )
    assert judge([A], race(Failed(reason="crash", detail="signal 6"), rival=[12.0] * 3)) is None


def test_the_interval_covers_the_ratio_and_is_the_same_each_time():
    ratios = paired_ratios(np.linspace(11, 13, 40), [10.0] * 40)
    low, high = bootstrap_interval(ratios)
    assert 1.1 <= low < np.median(ratios) < high <= 1.3
    assert (low, high) == bootstrap_interval(ratios)
    assert bootstrap_interval(np.array([1.25])) == (1.25, 1.25)


def test_a_shorter_lane_ends_the_pairing():
    assert paired_ratios([12, 12, 99], [10, 8]).tolist() == [1.2, 1.5]


def sessions(*races):
    return merged(races)


def noisy(base_us, rounds, seed, sigma=0.004):
    draw = np.random.default_rng(seed)
    return (base_us * np.exp(draw.normal(0, sigma, rounds))).tolist()


def test_a_paired_difference_that_is_no_evidence_is_xlas():
    # The median ratio is 1.01, but the ratios scatter by 10%.
    winner = judge([A], race(noisy(10.0, 12, 1, 0.1), rival=noisy(10.2, 12, 2, 0.1)))
    assert winner.backend == "xla" and winner.tie_set[0] == "xla"


def test_xla_against_xla_and_a_kernel_entered_twice_tie_in_nearly_all_races():
    outcomes = [
        judge([A, B], race(noisy(10, 60, 3 * n), noisy(10, 60, 3 * n + 1), rival=noisy(10, 60, 3 * n + 2)))
        for n in range(60)
    ]
    assert sum(winner.backend == "xla" for winner in outcomes) >= 57
    assert sum(winner.tied == 2 for winner in outcomes) >= 57


def test_a_kernel_two_percent_faster_beats_xla_in_nearly_all_races():
    outcomes = [judge([A], race(noisy(10, 60, 2 * n), rival=noisy(10.2, 60, 2 * n + 1))) for n in range(40)]
    assert sum(winner.backend == "kernel" for winner in outcomes) >= 39


def test_the_fastest_compilation_of_a_rival_counts():
    # XLA chose a kernel of 14 us in two processes and of 11 us in one.
    found = judge(
        [A],
        sessions(
            race([10.0] * 5, rival=[14.0] * 5),
            race([10.0] * 5, rival=[11.0] * 5),
            race([10.0] * 5, rival=[14.0] * 5),
        ),
    )
    assert (found.xla_time_us, found.ratio) == (11.0, 1.1)
    assert (found.plain_time_us, found.plain_ratio) == (11.0, 1.1)
    assert len(found.samples_us) == 15


def test_of_rivals_alone_the_fastest_compilation_counts_and_the_noise_of_plain_is_its_interval():
    # Plain took 14 us in one process, and 10 us in odd and 10.2 us in even rounds of another.
    found = rival_times(sessions(race(rival=[14.0] * 6), race(rival=[10.2, 10.0] * 3)))
    assert (found.formulation, found.plain_us) == ("plain", pytest.approx(10.1))
    assert found.ratio == pytest.approx((1.0, 1.0, 1.02))
    padded = rival_times(sessions(race(rival={"plain": [10.0] * 6, "padded": [8.0] * 6})))
    assert (padded.formulation, padded.best_us, padded.ratio) == ("padded", 8.0, (0.8, 0.8, 0.8))
    assert rival_times(race(rival={"padded": [8.0] * 6})) is None


def test_sessions_are_paired_each_with_its_own_clock():
    slow, fast = race([20.0] * 5, rival=[22.0] * 5), race([10.0] * 5, rival=[11.0] * 5)
    assert judge([A], sessions(slow, fast)).ratio == pytest.approx(1.1)


def test_the_plain_formulation_is_named_where_another_gains_nothing():
    winner = judge([A], race([10.0] * 5, rival={"padded": [11.98] * 5, "plain": [12.0] * 5}))
    assert (winner.formulation, winner.ratio, winner.plain_ratio) == ("plain", 1.2, 1.2)


def test_a_finalist_that_fails_in_one_process_cannot_win():
    died = Failed(reason="crash", detail="signal 6")
    winner = judge(
        [A, B],
        sessions(race([8.0] * 5, [10.0] * 5, rival=[12.0] * 5), race(died, [10.0] * 5, rival=[12.0] * 5)),
    )
    assert (winner.knobs, winner.raced) == (B, 1)


def test_a_dropped_lane_is_judged_by_the_rounds_it_ran():
    # The clock falls by a half after the lane was dropped.
    winner = judge([A, B], race([11.0] * 5, [10.0] * 5 + [20.0] * 15, rival=[12.0] * 5 + [24.0] * 15))
    assert winner.knobs == B and winner.tied == 1


def test_the_chance_of_another_winner_is_none_where_all_is_clear_and_large_at_the_border_of_a_tie():
    assert judge([A], race([10.0] * 20, rival=[12.0] * 20)).rerun_chance == 0.0
    near = judge([A], race([10.0] * 20, rival=[10.03, 10.07] * 10))
    assert 0.1 < near.rerun_chance <= 0.5


def test_all_whose_interval_reaches_the_best_race_at_most_a_set_number():
    def wide(knobs, middle):
        return knobs, measured(knobs, [middle + step / 10 for step in range(-10, 11)])

    # 21 samples: ranks 7 to 15 make the interval, middle +- 0.4. The best's ends at 10.4, with reach at 10.5.
    ranked = finalists([wide({"n": i}, 10.0 + i / 4) for i in range(8)])
    assert first_batch(ranked, 6) == 4  # up to a middle of 10.9
    assert first_batch(ranked, 2) == 2
    assert first_batch(ranked[:2], 6) == 2
    assert first_batch([], 6) == 0
    # In a chain lanes 0.2 us further race too: up to a middle of 11.1.
    assert first_batch(ranked, 6, in_chain=True) == 5


def test_finalists_are_ranked_by_what_drift_leaves():
    lane = measured(A, [12.0] * 3)
    slow_clock = dataclasses.replace(
        lane, timing=dataclasses.replace(lane.timing, reference_us=(30.0,) * 3, reference_nominal_us=24.0)
    )
    assert [knobs for knobs, _ in finalists([(B, measured(B, [10.0])), (A, slow_clock)])] == [A, B]
