"""Who races and who wins, on samples worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.seam import Failed, Race, RaceEntry
from autotune.verdict import bootstrap_interval, finalists, judge, paired_ratios
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
