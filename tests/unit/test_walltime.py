"""Chains and sustained blocks on a scripted card whose clock only moves when something runs."""

from __future__ import annotations

import dataclasses
import math

import pytest

from autotune.evaluate.timing import Lane
from autotune.evaluate.walltime import BLOCK_S, CardClock, WallTimer
from autotune.paired import log_ratios


class Card:
    """Calls take their time when they are waited for; each spends `watts`."""

    def __init__(self, watts=500.0):
        self.now_s, self.energy_j, self.watts = 0.0, 0.0, watts
        self.queued_s = 0.0
        self.order, self.most_in_flight, self.in_flight = [], 0, 0

    def lane(self, name, us, result_bytes=0, chain_calls=1, is_kept=False):
        def launch():
            self.queued_s += us / 1e6 * chain_calls
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self.order.append(name)

        return Lane(
            name=name,
            call=launch,
            digest=name,
            chain=launch,
            chain_calls=chain_calls,
            result_bytes=result_bytes,
            is_kept=is_kept,
        )

    def wait(self, result):
        self.now_s += self.queued_s
        self.energy_j += self.queued_s * self.watts
        self.queued_s, self.in_flight = 0.0, 0

    def timer(self):
        return WallTimer(self.wait, lambda: self.energy_j, lambda: self.now_s)


def runs(order):
    return [name for index, name in enumerate(order) if index == 0 or order[index - 1] != name]


def test_sustained_blocks_last_their_time_alternate_abba_and_tell_joules():
    card = Card()
    lanes = [card.lane("a", 200.0), card.lane("b", 200.4)]
    sampled = card.timer().race_blocks(lanes, 4, lambda: None, 60.0)
    assert [len(each.samples_us) for each in sampled] == [4, 4]
    assert sampled[0].samples_us == pytest.approx((200.0,) * 4)
    assert sampled[1].samples_us == pytest.approx((200.4,) * 4)
    assert sampled[0].joules == pytest.approx(500 * 200e-6)
    calls = card.order[-4 * 2 * 500 + 4 :]
    assert runs(calls) == ["a", "b", "a", "b", "a", "b"]  # a bb a, then b aa b
    assert calls.count("a") * 200e-6 == pytest.approx(4 * BLOCK_S, rel=0.02)


class FallingCard(Card):
    """Its clock falls while it works: by a sixth over the first 1.5 s, then by 1% in each second."""

    def wait(self, result):
        self.queued_s *= 1 + 0.2 * min(1.0, self.now_s / 1.5) + 0.01 * self.now_s
        super().wait(result)


def test_blocks_begin_once_the_clock_has_settled():
    card = FallingCard()
    sampled = card.timer().race_blocks([card.lane("a", 200.0), card.lane("b", 200.0)], 4, lambda: None, 60.0)
    # 200 us at first, 243 after 1.5 s, at most 249 after 4.5 s
    assert all(242 < us < 250 for lane in sampled for us in lane.samples_us)


def test_what_the_clock_does_within_a_race_cancels_over_two_rounds():
    card = FallingCard()
    first, second = card.timer().race_blocks(
        [card.lane("a", 200.0), card.lane("b", 210.0)], 8, lambda: None, 60.0
    )
    ratios = log_ratios(second.samples_us, first.samples_us)
    for one, other in zip(ratios[::2], ratios[1::2], strict=True):
        assert (one + other) / 2 == pytest.approx(math.log(1.05), abs=1e-4)
        assert abs(one - other) > 6e-4  # b once after a, and once before it
    assert first.samples_us[-1] > 1.01 * first.samples_us[0]


def test_blocks_go_on_until_there_are_enough_of_them():
    card = Card()
    lanes = [card.lane(name, 200.0) for name in "abc"]
    sampled = card.timer().race_blocks(lanes, 60, lambda: None, 0.5)
    # 8 rounds of three blocks of 0.1 s, and perhaps two more that began just in time; not 0.5 s
    assert all(8 <= len(each.samples_us) <= 10 for each in sampled)


def test_large_results_do_not_pile_up():
    card = Card()
    card.timer().race_blocks([card.lane("a", 1000.0, result_bytes=2**28)], 2, lambda: None, 60.0)
    assert card.most_in_flight == 4  # of 256 MiB each, 1 GiB in all


def test_a_card_without_an_energy_counter_has_no_joules():
    card = Card()
    timer = WallTimer(card.wait, lambda: None, lambda: card.now_s)
    assert timer.race_blocks([card.lane("a", 200.0)], 2, lambda: None, 60.0)[0].joules is None


def test_a_chains_time_is_shared_by_its_calls_and_slower_lanes_fall_out():
    card = Card()
    lanes = [
        card.lane("a", 5.0, chain_calls=50),
        card.lane("b", 6.0, chain_calls=50),
        card.lane("x", 7.0, chain_calls=50, is_kept=True),
    ]
    sampled = card.timer().race_chains(lanes, 30, lambda: None, 60.0)
    assert sampled[0].samples_us == pytest.approx((5.0,) * 30)
    assert [len(each.samples_us) for each in sampled] == [30, 10, 30]


def test_the_guard_hears_of_every_batch():
    card, batches = Card(), []
    timer = card.timer()

    def guard(batch):
        batches.append(1)
        return batch()

    timer.guard = guard
    timer.race_chains([card.lane("a", 5.0, chain_calls=50)], 30, lambda: None, 60.0)
    assert len(batches) == 3


class QueueingCard:
    """Runs what was launched while the host goes on; a launch takes the host its time."""

    WAKING_S = 20e-6  # of the host, once the card is done
    GAP_S = 1e-6  # of the card, before whatever it runs

    def __init__(self, launching_s=15e-6):
        self.host_s = self.card_s = 0.0
        self.launching_s = launching_s
        self.stall_s = []

    def launch(self, takes_s):
        """Returns when it began and ended."""
        self.host_s += self.launching_s
        begun_s = max(self.card_s, self.host_s) + self.GAP_S
        self.card_s = begun_s + takes_s
        return begun_s, self.card_s

    def wait(self, result):
        self.host_s = max(self.host_s, self.card_s) + self.WAKING_S

    def clock(self):
        return CardClock(
            hold=lambda: self.launch(0.26e-3),
            stamp=lambda: self.launch(1e-6),
            is_over=lambda mark: mark[1] <= self.host_s,
            between_s=lambda first, second: second[0] - first[1],
        )

    def chain(self):
        if self.stall_s:
            self.host_s += self.stall_s.pop()
        return [self.launch(6e-6) for _ in range(50)]

    def chain_us(self, card):
        """Returns what calls of 6 us, 50 in a chain, are timed at."""
        timer = WallTimer(self.wait, clock=lambda: self.host_s, card=card)
        lane = Lane(name="a", call=lambda: None, digest="a", chain=self.chain, chain_calls=50)
        return timer.race_chains([lane], 20, lambda: None, 60.0)[0].samples_us


def test_behind_a_hold_the_card_is_timed_and_not_the_host():
    card = QueueingCard()
    assert card.chain_us(card.clock()) == pytest.approx((7.0,) * 20)  # and a gap for each call


def test_a_sample_that_the_host_was_late_with_is_taken_again_behind_more_holds():
    card = QueueingCard()
    # The last stall comes with the first sample: 5 ms, where two chains were held for 2 ms.
    card.stall_s = [5e-3, 0.0, 0.0, 0.0]
    assert card.chain_us(card.clock()) == pytest.approx((7.0,) * 20)
    assert card.stall_s == []


def test_a_host_that_is_late_while_nothing_lies_between_two_marks_does_not_shorten_chains():
    card = QueueingCard()
    late_s = [0.0, 2e-3, 2e-3, 2e-3, 2e-3] * 4

    def stamp():
        card.host_s += late_s.pop() if late_s else 0.0
        return card.launch(1e-6)

    clock = dataclasses.replace(card.clock(), stamp=stamp)
    assert card.chain_us(clock) == pytest.approx((7.0,) * 20)


def test_a_host_that_is_never_ahead_is_timed_all_the_same():
    card = QueueingCard(launching_s=1.2e-3)  # longer than a hold lasts
    assert all(each > 1000 for each in card.chain_us(card.clock()))


def test_without_the_cards_clock_a_short_kernel_waits_for_the_host():
    # 15 us a launch, and the wait at the end of two or more chains
    assert all(15.0 < each < 15.5 for each in QueueingCard().chain_us(None))
