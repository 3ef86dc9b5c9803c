"""Tests on paired samples against values from tables, and how often they err when one looks after every few rounds."""

from __future__ import annotations

import math
import random

import pytest

from autotune.evaluate.rounds import race_rounds
from autotune.paired import TIE, behind, block_means, log_ratios, p_above, spending, student_upper_tail


# Critical values of Student's t for one-sided levels, from the tables.
@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [(6.314, 1, 0.05), (2.920, 2, 0.05), (1.812, 10, 0.05), (2.764, 10, 0.01), (3.385, 30, 0.001)],
)
def test_the_tail_of_students_distribution_is_that_of_the_tables(t, freedom, p):
    assert student_upper_tail(t, freedom) == pytest.approx(p, rel=5e-3)
    assert student_upper_tail(-t, freedom) == pytest.approx(1 - p, rel=1e-3)


def test_all_looks_together_spend_five_percent_for_all_pairs():
    total = sum(spending(look, 7) for look in range(1, 100_000)) * 7 * 6
    assert total == pytest.approx(0.05, rel=1e-4) and total < 0.05


def test_ratios_are_paired_and_a_shorter_lane_ends_them():
    assert log_ratios([2.0, 3.0, 9.0], [1.0, 3.0]) == pytest.approx([math.log(2), 0.0])


def test_many_rounds_are_tested_as_means_of_neighbours():
    assert block_means([1.0, 2.0, 3.0]) == [1.0, 2.0, 3.0]
    assert block_means([float(i) for i in range(40)]) == [2 * i + 0.5 for i in range(20)]


def test_equal_samples_are_no_evidence_and_constant_differences_are():
    assert p_above([0.0] * 9, 0.0) == 1.0
    assert p_above([0.02] * 9, TIE) == 0.0
    assert p_above([0.02], 0.0) == 1.0


def noisy(scale, rounds, seed, sigma=0.01):
    draw = random.Random(seed)
    drift = [math.exp(0.2 * math.sin(index / 7)) for index in range(rounds)]
    return [[base * each * math.exp(draw.gauss(0, sigma)) for each in drift] for base in scale]


def test_a_lane_that_is_slower_beyond_doubt_falls_out_whatever_the_clock_does():
    lanes = dict(enumerate(noisy([10.0, 10.5, 10.0], 40, 1)))
    assert behind(lanes, 1, 3) == [1]


def test_a_lane_within_a_tie_is_never_dropped():
    lanes = dict(enumerate(noisy([10.0, 10.04], 400, 2, sigma=0.001)))
    assert behind(lanes, 1, 2) == []


def test_a_sample_that_something_held_up_hides_no_difference():
    # 30 rounds of two lanes that differ by 4.8%; in one the faster took 9.2 us in place of 5.26, as a chain once did.
    lanes = noisy([5.52, 5.26], 30, 3, sigma=0.003)
    lanes[1][6] *= 9.2 / 5.26
    assert p_above(log_ratios(*lanes), 0.0) < 1e-6
    equal = noisy([5.26, 5.26], 30, 4, sigma=0.003)
    equal[1][6] /= 1.75  # nor does it make one
    assert p_above(log_ratios(*equal), 0.0) > 0.05


def test_a_lane_that_is_slow_in_many_rounds_is_slow():
    draw = random.Random(5)
    differences = [draw.gauss(0.05 * (draw.random() < 0.3), 0.001) for _ in range(60)]
    assert p_above(differences, math.log1p(TIE)) < 0.01


def test_few_rounds_drop_nobody():
    assert behind({0: [10.0] * 4, 1: [20.0] * 4}, 1, 2) == []


def test_looking_after_every_two_rounds_drops_an_equal_lane_in_fewer_than_five_of_a_hundred_races():
    dropped = 0
    for seed in range(200):
        samples = noisy([10.0] * 4, 60, seed)

        def take(running, first, count, samples=samples):
            return {lane: samples[lane][first : first + count] for lane in running}

        raced = race_rounds(4, 60, 1e9, take, rounds_a_look=2)
        dropped += any(len(lane) < 60 for lane in raced)
    assert dropped <= 10


def test_a_dropped_lane_keeps_its_samples_and_a_kept_one_stays():
    def take(running, first, count):
        return {lane: [[10.0, 20.0, 30.0][lane]] * count for lane in running}

    raced = race_rounds(3, 20, 1e9, take, rounds_a_look=5, kept=[2])
    assert [len(lane) for lane in raced] == [20, 5, 20]


def test_a_race_ends_with_its_seconds_but_not_before_the_first_look():
    ticks = iter(range(100))
    raced = race_rounds(
        1,
        50,
        2.5,
        lambda running, first, count: {0: [1.0] * count},
        rounds_a_look=5,
        clock=lambda: next(ticks),
    )
    assert len(raced[0]) == 15  # it began at 0 s; looks began at 0, 1 and 2 s
