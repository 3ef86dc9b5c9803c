"""Problems that share one budget: who is searched when, what each begins with, and what an interrupted run spends."""

from __future__ import annotations

import dataclasses
import io
import signal
from types import SimpleNamespace

import pytest

from autotune.driver import run
from autotune.problemrun import ProblemScreening
from autotune.progress import PlainProgress
from autotune.result import Counts
from autotune.seam import Failed
from autotune.searchsettings import SearchSettings
from autotune.seeds import visiting_order
from autotune.stopping import Stop
from autotune.summary import counts_line
from autotune.turns import SHORT_TURN, Promise, SharedBudget
from benchmarks.simulated_search import MemoryLedger
from tests.helpers.modelled import ModelledTarget
from tests.helpers.scripted import (
    ScriptedConfig,
    ScriptedDevice,
    ScriptedEvaluator,
    ScriptedProblem,
    ScriptedSearch,
    ScriptedTarget,
    ScriptedWeighted,
    measured,
    scripted_stages,
    smooth_time_us,
)


class Watched(ScriptedEvaluator):
    """Also keeps which problem each candidate was for, as `asked`."""

    def __init__(self, **options):
        super().__init__(**options)
        self.asked = []

    def submit(self, job):
        if hasattr(job, "candidate") and not hasattr(job, "inputs"):
            self.asked.append((job.candidate.problem.m, tuple(job.candidate.config)))
        super().submit(job)


def tuned(folder, evaluator, sizes, target=None, weights=None, said=None, **search):
    weights = weights or [1.0] * len(sizes)
    config = ScriptedConfig(
        results=folder,
        search=ScriptedSearch(**{"sampler": "random", "candidates": 200, **search}),
        problems=tuple(
            ScriptedWeighted(problem=ScriptedProblem(m=m), weight=weight) for m, weight in zip(sizes, weights)
        ),
    )
    progress = PlainProgress(said if said is not None else io.StringIO())
    stages = scripted_stages(evaluator, target, progress=progress)
    return run(config, ScriptedDevice(), stages).problems


def turns(asked):
    """Returns problems and candidates of each turn."""
    found = []
    for m, _ in asked:
        if found and found[-1][0] == m:
            found[-1][1] += 1
        else:
            found.append([m, 1])
    return [tuple(one) for one in found]


def test_all_problems_together_take_the_candidates_of_the_run(tmp_path):
    evaluator = Watched()
    results = tuned(tmp_path, evaluator, [1, 2, 4], total_candidates=90)
    assert len(evaluator.screened) == 90
    assert sum(one.counts.measured for one in results) == 90
    assert [one.problem.m for one in results] == [1, 2, 4]  # as the config has them
    assert all(one.winner is not None for one in results)
    assert {one.stop.text for one in results} == {"90 candidates of all problems"}
    assert "stopped: 90 candidates of all problems" in counts_line(results[0])


def test_each_has_a_first_turn_of_half_of_its_share_and_then_whole_turns(tmp_path):
    evaluator = Watched()
    results = tuned(tmp_path, evaluator, [1, 2, 4], total_candidates=72)
    # half of 72 / 3 is 12 each; then 36 more in turns of 16, and 4 that are left
    assert turns(evaluator.asked)[:2] == [(1, 12), (2, 12)]
    assert SHORT_TURN == 16 and sum(one.counts.measured for one in results) == 72
    assert sorted(one.counts.measured % 16 for one in results) == [0, 12, 12]


def test_a_problem_gets_eight_candidates_however_small_the_budget(tmp_path):
    evaluator = Watched()
    tuned(tmp_path, evaluator, [1, 2, 4], total_candidates=24)
    assert turns(evaluator.asked) == [(1, 8), (2, 8), (4, 8)]


def test_problems_are_visited_so_that_each_is_near_one_before_it():
    problems = [ScriptedProblem(m=m) for m in (64, 4096, 128, 2048, 256)]
    order = visiting_order(ScriptedTarget(), problems)
    assert [problems[place].m for place in order] == [64, 128, 256, 2048, 4096]
    assert visiting_order(ScriptedTarget(), []) == []


def test_without_a_model_the_next_turn_is_the_weightier_problems_until_it_had_its_share(tmp_path):
    evaluator = Watched()
    # 16 each; then 8 / (n + 1) stays above 1 / 17 until n is 136.
    results = tuned(tmp_path, evaluator, [1, 2], weights=[1.0, 8.0], total_candidates=120)
    taken = {one.problem.m: one.counts.measured for one in results}
    assert taken == {1: 16, 2: 104}


def test_a_model_gives_the_turns_to_the_problem_with_more_to_gain(tmp_path):
    def model_us(problem, knobs):
        return (
            smooth_time_us(knobs) if problem.m == 1 else 12.0
        )  # of the other, which is far, it knows nothing

    target, search = ModelledTarget(model_us), {"sampler": "guided", "stop_gain": 0.0}
    results = tuned(tmp_path, Watched(), [1, 4096], target, total_candidates=48, **search)
    assert [one.counts.measured for one in results] == [12, 36]
    assert [one.stop.reason for one in results] == ["total_candidates", "total_candidates"]


def test_a_problem_that_ends_by_its_gain_leaves_the_rest_to_the_others(tmp_path):
    evaluator = Watched()
    results = tuned(
        tmp_path,
        evaluator,
        [1, 2],
        ModelledTarget(),
        sampler="guided",
        total_candidates=400,
        min_candidates=10,
    )
    assert [one.stop.reason for one in results] == ["gain", "gain"]
    assert len(evaluator.screened) < 100
    idle = Watched()
    again = tuned(
        tmp_path, idle, [1, 2], ModelledTarget(), sampler="guided", total_candidates=400, min_candidates=10
    )
    assert idle.asked == [] and [one.stop for one in again] == [one.stop for one in results]


def test_the_candidates_of_a_problem_bound_it_within_the_shared_budget(tmp_path):
    results = tuned(tmp_path, Watched(), [1, 2], weights=[100.0, 1.0], candidates=40, total_candidates=70)
    assert [(one.counts.measured, one.stop.text) for one in results] == [
        (40, "40 candidates"),
        (30, "70 candidates of all problems"),
    ]


def test_a_problem_begins_with_the_best_of_those_near_it(tmp_path):
    evaluator = Watched()
    tuned(tmp_path, evaluator, [4096, 2048], sampler="random", total_candidates=64)
    of_first = [knobs for m, knobs in evaluator.asked if m == 4096][:16]
    best = min(of_first, key=lambda knobs: smooth_time_us(dict(knobs)))
    assert next(knobs for m, knobs in evaluator.asked if m == 2048) == best


def test_what_is_far_lends_nothing(tmp_path):
    def first_of_second(sizes, folder):
        evaluator = Watched()
        tuned(tmp_path / folder, evaluator, sizes, total_candidates=64)
        return next(knobs for m, knobs in evaluator.asked if m == sizes[1])

    alone = Watched()
    tuned(tmp_path / "alone", alone, [1], total_candidates=8)
    assert first_of_second([4096, 1], "far") == alone.asked[0][1]  # twelve doublings


def test_problems_searched_in_turn_begin_with_the_best_of_those_before_too(tmp_path):
    evaluator = Watched()
    tuned(tmp_path, evaluator, [4096, 2048], candidates=12)
    of_first = [knobs for m, knobs in evaluator.asked if m == 4096]
    best = min(of_first, key=lambda knobs: smooth_time_us(dict(knobs)))
    assert len(of_first) == 12 and evaluator.asked[12] == (2048, best)


@pytest.mark.parametrize("after", [0, 1, 13, 40, 70])
def test_what_an_interrupted_run_spent_is_not_spent_again(tmp_path, after):
    first = Watched(interrupt_after=after)
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path, first, [1, 2, 4], total_candidates=90)
    second = Watched()
    results = tuned(tmp_path, second, [1, 2, 4], total_candidates=90)
    assert len(first.screened) + len(second.screened) == 90
    assert sum(one.counts.measured for one in results) == 90
    assert sum(one.counts.resumed for one in results) == len(first.screened)
    third = Watched()
    tuned(tmp_path, third, [1, 2, 4], total_candidates=90)
    assert third.screened == third.races == []


def test_a_larger_budget_goes_on_where_the_smaller_one_ended(tmp_path):
    tuned(tmp_path, Watched(), [1, 2], total_candidates=40)
    more = Watched()
    results = tuned(tmp_path, more, [1, 2], total_candidates=60)
    assert len(more.screened) == 20 and sum(one.counts.measured for one in results) == 60


def test_the_order_is_the_seeds(tmp_path):
    one, same = Watched(), Watched()
    for name, evaluator in (("one", one), ("same", same)):
        tuned(tmp_path / name, evaluator, [1, 2, 4], total_candidates=90, seed=3)
    assert one.asked == same.asked


def test_seconds_are_shared_as_well_and_none_goes_without(tmp_path):
    def slow():
        return Watched(on_answer=lambda count: signal.sigtimedwait([], 0.01))

    # Each answer takes 10 ms. One second reaches for all three first turns of 32; the rest is given out.
    first, said = slow(), io.StringIO()
    results = tuned(tmp_path, first, [1, 2, 4], said=said, total_seconds=1.5)
    assert all(one.counts.measured >= 3 for one in results)
    assert {one.stop.text for one in results} == {"1.5 s of all problems"}
    assert "3 problems shared " in said.getvalue()
    idle = Watched()
    tuned(tmp_path, idle, [1, 2, 4], total_seconds=1.5)
    assert idle.screened == []


def test_a_problem_with_nothing_legal_takes_nothing_from_the_others(tmp_path):
    class OnlySmall(ScriptedTarget):
        def space(self, problem, device, narrowing):
            return super().space(problem, device, {"stages": (5,), "tile_m": (256,)} if problem.m > 2 else {})

    evaluator = Watched()
    results = tuned(tmp_path, evaluator, [4, 1, 2], OnlySmall(), total_candidates=48)
    assert results[0].failure is not None and results[0].stop is None
    assert len(evaluator.screened) == 48


def test_a_problem_whose_candidates_fail_does_not_end_the_run(tmp_path):
    evaluator = Watched(fails=lambda knobs: Failed(reason="crash", detail="x"))
    results = tuned(tmp_path, evaluator, [1, 2], total_candidates=40)
    assert len(evaluator.screened) == 40 and all(one.failure is not None for one in results)


def test_lowering_only_shares_the_budget_too(tmp_path):
    results = tuned(tmp_path, Watched(kind="lower"), [1, 2], total_candidates=40)
    assert sum(one.counts.lowered for one in results) == 40 and all(one.winner is None for one in results)


class PromisingRun:
    """A problem whose model always expects 5% of 100 us more, and whose turns after the first gain what it is told."""

    weight = 1.0

    def __init__(self, m, came, recorded=0):
        self.problem, self._came, self._recorded = ScriptedProblem(m=m), came, recorded

    def opened(self, fresh):
        return ProblemScreening(
            counts=Counts(raw=1000, legal=1000, rejected={}),
            ledger=MemoryLedger(),
            results=self._rows(0, self._recorded, 100.0),
            resumed=self._recorded,
        )

    def screened(self, found, budget, **_):
        before = len(found.results)
        time_us = found.best[1] * (1 - self._came) if found.best else 100.0
        return dataclasses.replace(
            found,
            results=[*found.results, *self._rows(before, budget.candidates, time_us)],
            stop=Stop(reason="candidates", candidates=budget.candidates, limit=budget.candidates),
            gain=0.05,
        )

    @staticmethod
    def _rows(first, last, time_us):
        return [({"tile_m": place}, measured({"tile_m": place}, [time_us])) for place in range(first, last)]


def candidates_of(runs, total):
    search = SearchSettings(total_candidates=total, candidates=1000)
    never = SimpleNamespace(raise_if_requested=lambda: None)
    shared = SharedBudget(runs, search, scripted_stages(Watched()), never)
    return [len(found.results) for found in shared.screened(fresh=True)]


def test_a_problem_whose_turns_bring_nothing_loses_its_turn_and_one_that_gains_keeps_it():
    # After 16 each both promise 5 us x 16/32 = 2.5. The first gets a turn, and nothing came of its 5%: 5 x 16/48 x 1/2
    # = 0.83. The second falls to 95, and 5.1% of 5% came: 4.75 x 16/48 x 1.01 = 1.60; to 90.25: 4.51 x 16/64 x 1.02
    # = 1.15; and has all turns but one.
    assert candidates_of([PromisingRun(1, came=0.0), PromisingRun(4096, came=0.05)], total=96) == [32, 64]
    # Where nothing comes of either they are even.
    assert candidates_of([PromisingRun(1, came=0.0), PromisingRun(4096, came=0.0)], total=96) == [48, 48]


def test_of_two_that_promise_the_same_the_less_measured_has_the_turn():
    # 5 us x 16/(48 + 16) = 1.25 of the first, which needs no first turn, and 5 us x 16/32 = 2.5 of the second
    runs = [PromisingRun(1, came=0.0, recorded=48), PromisingRun(4096, came=0.0)]
    assert candidates_of(runs, total=80) == [48, 32]


def test_a_promise_counts_by_what_came_of_those_before():
    assert Promise().kept == 1.0
    assert Promise().after(0.05, 0.0).kept == 0.5
    # 0.05 + 0.10 expected, 0.03 + 0.02 came: (0.05 + 0.05) / (0.15 + 0.05)
    assert Promise().after(0.05, 0.03).after(0.10, 0.02).kept == pytest.approx(0.5)
