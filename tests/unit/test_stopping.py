"""Where a search ends by itself: what measuring on is expected to gain, the noise, and what a run says and records."""

from __future__ import annotations

import dataclasses
import io
import math

import numpy as np
import pytest

from autotune.driver import run
from autotune.ledger.storage import open_ledger
from autotune.progress import Budget, PlainProgress
from autotune.search.gain import expected_gain
from autotune.stopping import GainRule, Stop, noise_of, recorded_stop
from autotune.summary import counts_line
from tests.helpers.modelled import ModelledTarget
from tests.helpers.scripted import (
    ScriptedConfig,
    ScriptedDevice,
    ScriptedEvaluator,
    ScriptedSearch,
    ScriptedTarget,
    measured,
    scripted_stages,
    smooth_time_us,
)


def test_the_gain_of_one_candidate_is_the_mean_of_what_it_is_ahead_where_it_is_ahead():
    # E max(0, x) of a standard normal is 1 / sqrt(2 pi) = 0.3989; of one ahead by a deviation 1.0833.
    def gain(ahead, sd):
        return expected_gain(0.0, np.array([-ahead]), np.array([sd]), noise_sd=0.0)

    assert gain(0.0, 0.1) == pytest.approx(0.03989, abs=1e-5)
    assert gain(0.1, 0.1) == pytest.approx(0.10833, abs=1e-5)
    assert gain(-0.5, 0.1) < 1e-6


def test_several_candidates_gain_more_than_one_and_less_than_their_sum():
    one = expected_gain(0.0, np.zeros(1), np.full(1, 0.1), 0.0)
    two = expected_gain(0.0, np.zeros(2), np.full(2, 0.1), 0.0)
    # E max(0, x, y) of two standard normals is (1 + 1 / sqrt 2) / sqrt(2 pi) = 0.6810.
    assert two == pytest.approx(0.0681, abs=1e-4) and one < two < 2 * one


def test_what_noise_would_hide_is_not_gained():
    # A candidate known as well as the noise: its expectation after a measurement spreads 1 / sqrt 2 as wide.
    clear = expected_gain(0.0, np.zeros(1), np.full(1, 0.02), 0.0)
    noisy = expected_gain(0.0, np.zeros(1), np.full(1, 0.02), 0.02)
    assert noisy == pytest.approx(clear / math.sqrt(2), rel=1e-3)


def test_with_nothing_left_to_propose_nothing_is_gained():
    assert expected_gain(0.0, np.zeros(0), np.zeros(0), 0.01) == 0.0


def test_the_noise_is_the_median_deviation_and_at_least_what_is_asked_for():
    # Deviations from 100 are 2, 1, 0, 1 and 900: their median is 1, whatever the disturbed sample says.
    assert noise_of([98, 99, 100, 101, 1000], 0.005) == pytest.approx(0.01)
    assert noise_of([100, 100, 101], 0.005) == 0.005


class Scripted:
    """A searcher whose expected gains are given, one for each question."""

    def __init__(self, *gains):
        self.gains = list(gains)

    def expected_gain(self):
        return self.gains.pop(0)


BUDGET = Budget(gain=0.005, fewest=10)


def test_the_rule_has_its_last_word_when_nothing_is_in_flight():
    rule = GainRule(BUDGET, Scripted(0.004, 0.006, 0.003))
    assert rule.stop(10, 3, [10.0]).gain == 0.004  # holds new ones back
    assert rule.stop(12, 1, [10.0]).gain == 0.004  # too early to ask again
    assert rule.stop(13, 0, [10.0]) is None  # what was in flight changed the picture
    assert rule.stop(14, 2, [10.0]) is None
    assert rule.stop(17, 2, [10.0]) == Stop(reason="gain", candidates=17, gain=0.003, noise=0.005)


@pytest.mark.parametrize(
    ("budget", "told", "best"),
    [
        (dataclasses.replace(BUDGET, gain=0.0), 50, [10.0]),  # turned off
        (BUDGET, 9, [10.0]),  # too few
        (BUDGET, 50, None),  # nothing was measured
    ],
)
def test_the_model_is_not_asked_where_the_rule_cannot_end_it(budget, told, best):
    assert GainRule(budget, Scripted()).stop(told, 0, best) is None


def test_a_sampler_without_a_model_is_never_ended():
    assert GainRule(BUDGET, Scripted(None)).stop(500, 0, [10.0]) is None


def test_a_recorded_gain_is_not_asked_for_again_but_held_against_the_noise_of_today():
    recorded = Stop(reason="gain", candidates=40, gain=0.003, noise=0.005)
    assert GainRule(BUDGET, Scripted(), recorded).stop(40, 0, [10.0]) == recorded
    stricter = GainRule(dataclasses.replace(BUDGET, gain=0.001), Scripted(), recorded)
    assert stricter.stop(40, 0, [10.0]) is None
    assert (
        GainRule(BUDGET, Scripted(0.2), recorded).stop(41, 0, [10.0]) is None
    )  # one more was recorded since


def test_a_stop_of_a_newer_version_is_as_good_as_none():
    assert recorded_stop({"reason": "gain", "candidates": 3, "mood": "bored"}) is None
    assert recorded_stop(None) is None


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (
            Stop(reason="gain", candidates=43, gain=0.00204, noise=0.005),
            "expected gain 0.20% under the noise of 0.50% after 43 candidates",
        ),
        (Stop(reason="candidates", candidates=60, limit=60), "60 candidates"),
        (Stop(reason="seconds", candidates=60, limit=20.0), "20 s"),
        (Stop(reason="space", candidates=212), "nothing left to propose"),
        (Stop(reason="total_candidates", candidates=9, limit=1200), "1,200 candidates of all problems"),
        (Stop(reason="total_seconds", candidates=9, limit=90.5), "90.5 s of all problems"),
    ],
)
def test_a_stop_is_said_in_words_and_read_back(stop, text):
    assert stop.text == text and recorded_stop(stop.to_json()) == stop


def tuned(folder, evaluator, target=None, said=None, open_ledger=open_ledger, **search):
    config = ScriptedConfig(results=folder, search=ScriptedSearch(**{"sampler": "guided", **search}))
    progress = PlainProgress(said if said is not None else io.StringIO())
    stages = scripted_stages(
        evaluator, target or ModelledTarget(), progress=progress, open_ledger=open_ledger
    )
    return run(config, ScriptedDevice(), stages).problems[0]


def test_a_search_ends_when_its_model_expects_no_more_and_says_so(tmp_path):
    evaluator, said, ledgers = ScriptedEvaluator(), io.StringIO(), []

    def spy(*arguments, **options):
        ledgers.append(open_ledger(*arguments, **options))
        return ledgers[-1]

    result = tuned(tmp_path, evaluator, said=said, candidates=200, open_ledger=spy)
    stop = result.stop
    assert stop.reason == "gain" and stop.gain < stop.noise == 0.005
    assert 24 <= stop.candidates == len(evaluator.screened) == result.counts.measured < 100
    assert result.winner.time_us == 10.0
    assert f"stopped: {stop.text}" in counts_line(result)
    assert f"stopped: {stop.text}" in said.getvalue()
    assert ledgers[0].stopped == stop.to_json()


def test_a_search_that_ended_by_its_gain_is_finished_whatever_its_budget(tmp_path):
    first = tuned(tmp_path, ScriptedEvaluator(), candidates=200)
    idle, said = ScriptedEvaluator(), io.StringIO()
    again = tuned(tmp_path, idle, said=said, candidates=212, seconds=1000.0)
    assert idle.screened == idle.races == []
    assert (again.stop, again.winner) == (first.stop, first.winner)
    assert f"nothing left to measure: {first.stop.text}" in said.getvalue()


def test_a_stricter_gain_goes_on_with_a_study_that_ended_by_its_gain(tmp_path):
    first = tuned(tmp_path, ScriptedEvaluator(), candidates=200)
    more = ScriptedEvaluator()
    again = tuned(tmp_path, more, candidates=first.stop.candidates + 7, stop_gain=0.0)
    assert len(more.screened) == 7 and again.stop.reason == "candidates"


def test_a_search_that_ended_by_its_budget_goes_on_and_may_then_end_by_its_gain(tmp_path):
    assert tuned(tmp_path, ScriptedEvaluator(), candidates=20).stop.text == "20 candidates"
    more = ScriptedEvaluator()
    again = tuned(tmp_path, more, candidates=200)
    assert again.stop.reason == "gain" and again.stop.candidates == 20 + len(more.screened)


@pytest.mark.parametrize("sampler", ["random", "local", "tpe"])
def test_samplers_without_a_model_take_their_whole_budget(tmp_path, sampler):
    evaluator = ScriptedEvaluator()
    result = tuned(tmp_path, evaluator, ScriptedTarget(), sampler=sampler, candidates=60)
    assert result.stop == Stop(reason="candidates", candidates=60, limit=60)


def test_a_space_that_is_measured_whole_ends_so(tmp_path):
    result = tuned(tmp_path, ScriptedEvaluator(), sampler="random", candidates=1000)
    assert result.stop == Stop(reason="space", candidates=212)


def test_a_noisy_best_ends_the_search_earlier(tmp_path):
    class Noisy(ScriptedEvaluator):
        def _screen(self, knobs):
            time_us = smooth_time_us(knobs)
            return measured(knobs, [time_us * share for share in (0.9, 0.95, 1.0, 1.05, 1.1)])

    blind = ModelledTarget(lambda problem, knobs: 100.0)
    quiet = tuned(
        tmp_path / "quiet", ScriptedEvaluator(), blind, candidates=212, min_candidates=4, stop_gain=1e-4
    )
    noisy = tuned(tmp_path / "noisy", Noisy(), blind, candidates=212, min_candidates=4, stop_gain=1e-4)
    assert noisy.stop.noise == pytest.approx(0.05)
    assert noisy.stop.candidates < quiet.stop.candidates
