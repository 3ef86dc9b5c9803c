"""Which launches make up a sample: checked on a scripted trace, with no GPU."""

from __future__ import annotations

import dataclasses

import pytest

from autotune.evaluate.rounds import lane_order
from autotune.evaluate.timing import CuptiTimer, Lane, TimingError
from autotune.seam import MeasureProtocol


class Card:
    """A GPU that takes notes: each call launches named kernels, in us; the first call of a lane is slower."""

    def __init__(self):
        self.launched = []
        self.sessions = []
        self.calls = []

    def lane(self, name, *kernels_us):
        def call():
            self.calls.append(name)
            self.launched += [(f"{name}_{index}", time_us / 1e3) for index, time_us in enumerate(kernels_us)]
            return name

        return Lane(name=name, call=call, digest=name)

    def flush(self):
        self.calls.append("flush")
        self.launched += [("reduce", 0.060), ("reduce_tail", 0.002)]

    def trace(self, run):
        self.launched = []
        run()
        self.sessions.append(len(self.launched))
        return list(self.launched)


def _protocol(l2, rounds=3, warmup=2):
    return MeasureProtocol(l2=l2, rounds=rounds, warmup=warmup)


def test_a_sample_sums_all_kernels_of_one_call():
    card = Card()
    samples = CuptiTimer(card.trace, card.flush).screen(
        card.lane("split_k", 7.0, 3.0), _protocol("warm"), None
    )
    assert samples.samples_us == pytest.approx((10.0, 10.0, 10.0))
    assert card.sessions == [4, 6]  # two warm-up calls of two kernels, then three kept ones


def test_a_clean_sample_is_preceded_by_a_flush_that_does_not_count():
    card = Card()
    samples = CuptiTimer(card.trace, card.flush).screen(card.lane("a", 5.0), _protocol("clean", 2), None)
    assert samples.samples_us == pytest.approx((5.0, 5.0))
    # Two warm-ups, two flushes to learn the flush's kernels, then one session of flush and call in turn.
    assert card.calls == ["a", "a", "flush", "flush", "flush", "a", "flush", "a"]
    assert len(card.sessions) == 4


def test_the_flush_is_learnt_once():
    card = Card()
    timer = CuptiTimer(card.trace, card.flush)
    for _ in range(2):
        timer.screen(card.lane("a", 5.0), _protocol("clean", 1), None)
    assert card.calls.count("flush") == 2 + 1 + 1


@pytest.mark.parametrize(("best_us", "rounds"), [(None, 20), (6.7, 20), (6.6, 6), (3.3, 3)])
# 10 us against 3 x best warm, and against 1.5 x best
def test_a_hopeless_lane_is_measured_three_times_only(best_us, rounds):
    card = Card()
    timer = CuptiTimer(card.trace, card.flush)
    sampled = timer.screen(card.lane("a", 10.0), _protocol("warm", 20), best_us)
    assert len(sampled.samples_us) == rounds


def test_a_race_aligns_the_samples_of_its_lanes():
    card = Card()
    lanes = [card.lane("a", 5.0), card.lane("b", 2.0, 3.0), card.lane("rival", 5.01)]
    progress = []
    samples = CuptiTimer(card.trace, card.flush).race(
        lanes, _protocol("clean", warmup=1), 40, lambda: progress.append(1)
    )
    times = [sampled.samples_us for sampled in samples]
    assert times == [pytest.approx((5.0,) * 40), pytest.approx((5.0,) * 40), pytest.approx((5.01,) * 40)]
    assert len(progress) == 2  # 120 samples in sessions of 64


def test_a_warm_race_runs_a_lane_once_before_each_of_its_samples():
    card = Card()
    lanes = [card.lane("a", 1.0), card.lane("b", 2.0)]
    CuptiTimer(card.trace, card.flush).race(lanes, _protocol("warm", warmup=1), 2, lambda: None)
    assert card.calls == ["a", "b", *"aabb", *"bbaa"]


def test_lanes_take_turns_and_every_other_round_is_reversed():
    assert [lane_order(3, index) for index in range(6)] == [
        [0, 1, 2],
        [2, 1, 0],
        [1, 2, 0],
        [0, 2, 1],
        [2, 0, 1],
        [1, 0, 2],
    ]


def _forgetful(card, sessions):
    """Returns the card's trace without the first kernel of these sessions."""

    def trace(run):
        kernels = card.trace(run)
        return kernels[1:] if len(card.sessions) in sessions else kernels

    return trace


def test_kernels_that_cupti_keeps_missing_are_an_error_not_a_time():
    card = Card()
    with pytest.raises(TimingError, match="reported 2 kernels where 3 were launched"):
        CuptiTimer(_forgetful(card, {2, 3}), card.flush).screen(card.lane("a", 1.0), _protocol("warm"), None)


def test_a_session_that_cupti_missed_a_kernel_of_is_repeated_whole():
    card = Card()
    samples = CuptiTimer(_forgetful(card, {2}), card.flush).screen(
        card.lane("a", 1.0), _protocol("warm"), None
    )
    assert samples.samples_us == pytest.approx((1.0, 1.0, 1.0))
    assert card.sessions == [2, 3, 3]


def test_a_call_without_kernels_is_an_error():
    card = Card()
    with pytest.raises(TimingError, match="nothing: 2 equal calls launched 0 kernels"):
        CuptiTimer(card.trace, card.flush).screen(card.lane("nothing"), _protocol("warm"), None)


def _product(card):
    def product():
        card.calls.append("product")
        card.launched.append(("product", 0.024))

    return product


def test_each_sample_of_screening_is_paired_with_the_fixed_product():
    card = Card()
    protocol = MeasureProtocol(l2="clean", reference="product", rounds=3, warmup=1)
    sampled = CuptiTimer(card.trace, card.flush, product=_product(card)).screen(
        card.lane("a", 10.0), protocol, None
    )
    assert sampled.samples_us == pytest.approx((10.0,) * 3)
    assert sampled.reference_us == pytest.approx((24.0,) * 3)
    assert card.calls[-9:] == ["product", "flush", "a"] * 3


@pytest.mark.parametrize(("l2", "schedule"), [("clean", ["flush", "a"]), ("warm", ["flush", "a", "a"])])
def test_what_memory_bounds_is_paired_with_the_read_that_also_flushes(l2, schedule):
    card = Card()
    protocol = MeasureProtocol(l2=l2, reference="read", rounds=2, warmup=1)
    sampled = CuptiTimer(card.trace, card.flush).screen(card.lane("a", 10.0), protocol, None)
    assert sampled.reference_us == pytest.approx((62.0,) * 2)
    assert sampled.samples_us == pytest.approx((10.0,) * 2)
    assert card.calls[-2 * len(schedule) :] == schedule * 2


def test_warm_activations_are_touched_after_the_weights_were_evicted():
    card = Card()

    def touch():
        card.calls.append("touch")
        card.launched.append(("touch", 0.002))

    lane = dataclasses.replace(card.lane("a", 10.0), touch=touch)
    samples = CuptiTimer(card.trace, card.flush).screen(lane, _protocol("activations_warm", 2), None)
    assert samples.samples_us == pytest.approx((10.0, 10.0))
    assert card.calls[-6:] == ["flush", "touch", "a"] * 2


def test_a_race_goes_on_without_a_lane_that_is_beyond_doubt_slower_unless_it_is_kept():
    card = Card()
    lanes = [card.lane("a", 5.0), card.lane("b", 6.0), dataclasses.replace(card.lane("x", 7.0), is_kept=True)]
    sampled = CuptiTimer(card.trace, card.flush).race(lanes, _protocol("clean"), 60, lambda: None)
    assert [len(each.samples_us) for each in sampled] == [60, 20, 60]
