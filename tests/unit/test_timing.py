"""Which launches make up a sample: checked on a scripted trace, with no GPU."""

from __future__ import annotations

import dataclasses

import pytest

from autotune.evaluate.heldtime import HeldTime
from autotune.evaluate.rounds import lane_order
from autotune.evaluate.session import TimingError
from autotune.evaluate.timing import CuptiTimer, Lane
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
    assert card.sessions == [10]  # of two kernels each two calls that warm up, and three that are kept


def test_a_clean_sample_is_preceded_by_a_flush_that_does_not_count():
    card = Card()
    samples = CuptiTimer(card.trace, card.flush).screen(card.lane("a", 5.0), _protocol("clean", 2), None)
    assert samples.samples_us == pytest.approx((5.0, 5.0))
    # Two flushes to learn the flush's kernels, then one session of two warm-ups and flush and call in turn.
    assert card.calls == ["flush", "flush", "a", "a", "flush", "a", "flush", "a"]
    assert len(card.sessions) == 3


def test_the_flush_is_learnt_once():
    card = Card()
    timer = CuptiTimer(card.trace, card.flush)
    for _ in range(2):
        timer.screen(card.lane("a", 5.0), _protocol("clean", 1), None)
    assert card.calls.count("flush") == 2 + 1 + 1


@pytest.mark.parametrize(
    ("best_us", "sessions"),
    [(None, [2 + 20]), (9.6, [2 + 6, 14]), (9.5, [2 + 6])],  # 10 us against 1.05 x best: 10.08 and 9.98
)
def test_a_lane_that_six_samples_show_behind_gets_no_more(best_us, sessions):
    card = Card()
    timer = CuptiTimer(card.trace, card.flush)
    sampled = timer.screen(card.lane("a", 10.0), _protocol("warm", 20), best_us)
    assert card.sessions == sessions
    assert len(sampled.samples_us) == sum(sessions) - 2


@pytest.mark.parametrize(("best_us", "samples"), [(8.1, 20), (7.4, 6)])
def test_a_lane_is_behind_by_its_ratio_to_the_fixed_kernel_whatever_the_clock(best_us, samples):
    card = Card()
    # The clock is a quarter lower than when the best was measured: 10 us beside 30 are 8 beside the nominal 24.
    timer = CuptiTimer(card.trace, card.flush, product=_product(card, 30.0))
    protocol = MeasureProtocol(l2="clean", reference="product", rounds=20)
    assert len(timer.screen(card.lane("a", 10.0), protocol, best_us).samples_us) == samples


def test_one_quick_sample_of_six_is_enough_to_be_measured_on():
    card = Card()
    lane = card.lane("a", 10.0)
    slow = dataclasses.replace(lane, call=lambda: lane.call() if len(card.calls) == 5 else _slow(card))
    sampled = CuptiTimer(card.trace, card.flush).screen(slow, _protocol("warm", 20), 9.6)
    assert sampled.samples_us == pytest.approx((20.0,) * 3 + (10.0,) + (20.0,) * 16)


def _slow(card):
    card.calls.append("slow")
    card.launched.append(("a_0", 0.020))


def test_a_race_learns_the_kernels_of_its_lanes_one_lane_a_session():
    card = Card()
    lanes = [card.lane("a", 5.0), card.lane("b", 2.0, 3.0)]
    CuptiTimer(card.trace, card.flush).race(lanes, _protocol("warm"), 1, lambda: None)
    assert card.sessions == [2, 4, 2 + 4]


def test_what_cupti_takes_and_what_the_kernels_take_are_told_apart():
    ticks = iter(range(100))
    timer = CuptiTimer(lambda run: card.trace(run), lambda: None, wait=lambda _: next(ticks))
    card = Card()
    timer.held = HeldTime(clock=lambda: next(ticks))
    timer.held.begin()
    timer.screen(card.lane("a", 1.0), _protocol("warm"), None)
    # Each step lasts one tick of the clock, the kernels one more, which waiting takes.
    assert timer.held.end() == {"other": 2, "profiler": 2, "kernels": 2}


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
    message = "a: 5 equal calls and 2 other kernels launched 6 kernels in all"
    timer = CuptiTimer(_forgetful(card, {3, 4}), card.flush)
    with pytest.raises(TimingError, match=message):
        timer.screen(card.lane("a", 1.0), MeasureProtocol(l2="clean", rounds=1, warmup=4), None)


def test_kernels_that_cupti_misses_of_a_known_lane_are_an_error_too():
    card = Card()
    lanes = [card.lane("a", 1.0), card.lane("b", 1.0)]
    with pytest.raises(TimingError, match="reported 3 kernels where 4 were launched"):
        CuptiTimer(_forgetful(card, {3, 4}), card.flush).race(lanes, _protocol("warm"), 1, lambda: None)


def test_equal_numbers_of_kernels_with_other_names_are_an_error():
    card = Card()
    lane = card.lane("a", 1.0)
    other = card.lane("b", 1.0)
    mixed = dataclasses.replace(lane, call=lambda: (lane if len(card.calls) % 2 else other).call())
    with pytest.raises(TimingError, match="a: 5 equal calls launched 5 kernels"):
        CuptiTimer(card.trace, card.flush).screen(mixed, _protocol("warm"), None)


def test_a_session_that_cupti_missed_a_kernel_of_is_repeated_whole():
    card = Card()
    samples = CuptiTimer(_forgetful(card, {1}), card.flush).screen(
        card.lane("a", 0.5, 0.5), _protocol("warm"), None
    )
    assert samples.samples_us == pytest.approx((1.0, 1.0, 1.0))
    assert card.sessions == [10, 10]


def test_a_call_without_kernels_is_an_error():
    card = Card()
    with pytest.raises(TimingError, match="nothing: 5 equal calls launched 0 kernels"):
        CuptiTimer(card.trace, card.flush).screen(card.lane("nothing"), _protocol("warm"), None)


def _product(card, time_us=24.0):
    def product():
        card.calls.append("product")
        card.launched.append(("product", time_us / 1e3))

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
