"""The driver on a scripted evaluator: what is measured, recorded, raced, and said when nothing works."""

from __future__ import annotations

import dataclasses
import io
import itertools
import os
import signal

import numpy as np
import pytest

from autotune.driver import run
from autotune.errors import NothingLegalError, NothingSurvivedError
from autotune.ledger.storage import open_ledger
from autotune.progress import PlainProgress
from autotune.runconfig import RaceSettings
from autotune.seam import Failed, RaceEntry, RaceJob
from autotune.stages import Stages
from tests.helpers.scripted import (
    ScriptedConfig,
    ScriptedDevice,
    ScriptedEvaluator,
    ScriptedProblem,
    ScriptedSearch,
    ScriptedTarget,
    ScriptedWeighted,
    legal_knobs,
    measured,
    scripted_stages,
    smooth_time_us,
)

BEST = {"tile_m": 128, "tile_n": 256, "stages": 4, "order": "rows", "persistent": True}
SEARCH_SETTINGS = ("sampler", "seed", "candidates", "seconds", "share_binaries")


def tuned(folder, evaluator, target=None, fresh=False, **changes):
    search = {name: changes.pop(name) for name in SEARCH_SETTINGS if name in changes}
    stages = {
        name: changes.pop(name) for name in ("promote", "open_ledger", "seeds", "progress") if name in changes
    }
    config = ScriptedConfig(results=folder, search=ScriptedSearch(**search), **changes)
    return run(config, ScriptedDevice(), scripted_stages(evaluator, target, **stages), fresh=fresh)


def recorded_knobs(folder):
    """Returns the knobs of every recorded candidate of the one study below `folder`."""
    seen = []

    def spy(*arguments, **options):
        seen.append(open_ledger(*arguments, **options))
        return seen[-1]

    tuned(folder, ScriptedEvaluator(), candidates=0, open_ledger=spy)
    return frozen(record.knobs for record in seen[0].screened())


def frozen(many):
    return sorted(tuple(sorted(knobs.items())) for knobs in many)


def test_an_exhaustive_run_finds_the_best_and_races_it(tmp_path):
    evaluator = ScriptedEvaluator(rival_us=12.0)
    result = tuned(tmp_path, evaluator, sampler="exhaustive", candidates=1000).problems[0]
    assert frozen(evaluator.screened) == frozen(legal_knobs())
    assert result.best_knobs == BEST and result.backend == "kernel"
    assert (result.winner.time_us, result.winner.xla_time_us, result.winner.ratio) == (10.0, 12.0, 1.2)
    assert result.winner.ratio_interval == (1.2, 1.2)
    assert result.tflops == pytest.approx(2 * 4096**3 / 10e-6 / 1e12)
    assert (result.counts.raw, result.counts.legal, result.counts.measured) == (320, 212, 212)
    assert result.counts.rejected == {"smem": 80, "threads": 28}
    (race,) = evaluator.races
    assert len(race.candidates) == 3 and race.rounds == 5 and evaluator.is_closed


def test_a_race_runs_in_several_processes_and_is_recorded_as_one(tmp_path):
    race = RaceSettings(processes=3, rounds=5, seconds=2.0)
    evaluator = ScriptedEvaluator(rival_us=12.0)
    first = tuned(tmp_path, evaluator, candidates=12, race=race).problems[0]
    assert [(job.session, job.seconds, job.rounds) for job in evaluator.races] == [
        (0, 2.0, 5),
        (1, 2.0, 5),
        (2, 2.0, 5),
    ]
    assert len({job.candidates for job in evaluator.races}) == 1
    assert len(first.winner.samples_us) == len(first.winner.xla_samples_us) == 15
    idle = ScriptedEvaluator()
    again = tuned(tmp_path, idle, candidates=12, race=race).problems[0]
    assert idle.races == [] and again.winner == first.winner


def test_a_later_race_of_the_study_takes_the_rival_that_was_found_best(tmp_path):
    class TwoRivals(ScriptedEvaluator):
        def _race(self, job):
            race = super()._race(job)
            lane = measured({"rival": 2}, [9.5] * job.rounds)
            entry = RaceEntry(finalist=None, result=lane, formulation="padded")
            return dataclasses.replace(race, entries=(*race.entries, entry))

    first = TwoRivals()
    winner = tuned(tmp_path, first, candidates=12).problems[0].winner
    assert (winner.formulation, winner.xla_time_us, winner.plain_time_us) == ("padded", 9.5, 12.0)
    assert [job.formulations for job in first.races] == [None]
    second = TwoRivals()
    tuned(tmp_path, second, candidates=40)
    assert [job.formulations for job in second.races] == [("plain", "padded")] or not second.races
    third = TwoRivals()
    tuned(tmp_path, third, candidates=40, race=RaceSettings(processes=1, rounds=6))
    assert [job.formulations for job in third.races] == [("plain", "padded")]


def test_xla_wins_where_it_ties(tmp_path):
    result = tuned(
        tmp_path, ScriptedEvaluator(rival_us=10.04), sampler="exhaustive", candidates=1000
    ).problems[0]
    assert (result.backend, result.best_knobs) == ("xla", BEST)


def test_the_race_decides_and_not_the_screening(tmp_path):
    second = BEST | {"persistent": False}

    def race_time_us(knobs):
        return 9.0 if knobs == second else 11.0

    evaluator = ScriptedEvaluator(race_time_us=race_time_us)
    assert tuned(tmp_path, evaluator, sampler="exhaustive", candidates=1000).problems[0].best_knobs == second


def test_candidates_end_the_run_and_what_is_in_flight_is_recorded(tmp_path):
    evaluator = ScriptedEvaluator(capacity=7)
    result = tuned(tmp_path, evaluator, candidates=30).problems[0]
    assert len(evaluator.screened) == result.counts.measured == 30
    assert len(recorded_knobs(tmp_path)) == 30


def test_seconds_end_the_run_and_a_run_that_ended_so_is_finished(tmp_path):
    ledgers = []

    def spy(*arguments, **options):
        ledgers.append(open_ledger(*arguments, **options))
        return ledgers[-1]

    # Each answer takes 20 ms, so 0.2 s allow about ten.
    slow = ScriptedEvaluator(on_answer=lambda count: signal.sigtimedwait([], 0.02))
    first = tuned(tmp_path, slow, candidates=1000, seconds=0.2, open_ledger=spy).problems[0]
    assert ledgers[0].study.user_attrs["spent_s"] >= 0.2
    assert 3 <= first.counts.measured <= 13
    idle = ScriptedEvaluator()
    again = tuned(tmp_path, idle, candidates=1000, seconds=0.2).problems[0]
    assert idle.screened == idle.races == [] and again.winner == first.winner


@pytest.mark.parametrize("sampler", ["random", "tpe"])
@pytest.mark.parametrize("after", [0, 1, 2, 5, 17, 29])
def test_an_interrupted_run_goes_on_without_measuring_anything_twice(tmp_path, sampler, after):
    first = ScriptedEvaluator(interrupt_after=after, capacity=4)
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path, first, sampler=sampler, candidates=30)
    assert first.is_closed
    # The poll after the interrupt gave one more that was measured by then.
    assert recorded_knobs(tmp_path) == frozen(first.screened) and len(first.screened) == after + 1

    second = ScriptedEvaluator(capacity=4)
    result = tuned(tmp_path, second, sampler=sampler, candidates=30).problems[0]
    everything = frozen(first.screened + second.screened)
    assert len(everything) == len(set(everything)) == 30 == result.counts.measured
    assert result.counts.resumed == after + 1 and recorded_knobs(tmp_path) == everything
    if sampler == "random":
        whole = ScriptedEvaluator(capacity=4)
        assert (
            tuned(tmp_path / "whole", whole, sampler=sampler, candidates=30).problems[0].winner
            == result.winner
        )
        assert frozen(whole.screened) == everything


def test_that_a_problem_was_interrupted_is_said_last(tmp_path):
    stream = io.StringIO()
    evaluator = ScriptedEvaluator(interrupt_after=5, capacity=4)
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path, evaluator, candidates=30, progress=PlainProgress(stream))
    state, last = stream.getvalue().splitlines()[-2:]
    assert "6/30 candidates" in state
    assert last.endswith("interrupted; 6 candidates are recorded, the same command goes on")


def test_ctrl_c_is_heard_after_the_outcome_is_recorded(tmp_path):
    def press(count):
        if count == 5:
            os.kill(os.getpid(), signal.SIGINT)

    evaluator = ScriptedEvaluator(on_answer=press)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path, evaluator, candidates=30)
    assert signal.getsignal(signal.SIGINT) is handler
    assert recorded_knobs(tmp_path) == frozen(evaluator.screened) and len(evaluator.screened) >= 5


def test_an_interrupted_race_runs_again_from_the_recorded_trials(tmp_path):
    class Interrupted(ScriptedEvaluator):
        def _race(self, job):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path, Interrupted(), candidates=12)
    again = ScriptedEvaluator()
    result = tuned(tmp_path, again, candidates=12).problems[0]
    assert again.screened == [] and len(again.races) == 1 and result.winner is not None


def test_a_finished_study_gives_its_result_without_measuring(tmp_path):
    first = tuned(tmp_path, ScriptedEvaluator(), candidates=20).problems[0]
    idle = ScriptedEvaluator()
    again = tuned(tmp_path, idle, candidates=20).problems[0]
    assert idle.screened == idle.races == [] and idle.is_closed
    assert again.winner == first.winner and again.counts.resumed == 20


def test_a_larger_budget_goes_on_with_the_study(tmp_path):
    tuned(tmp_path, ScriptedEvaluator(), candidates=20)
    more = ScriptedEvaluator()
    assert tuned(tmp_path, more, candidates=25).problems[0].counts.measured == 25
    assert len(more.screened) == 5


def test_fresh_measures_again(tmp_path):
    tuned(tmp_path, ScriptedEvaluator(), candidates=20)
    again = ScriptedEvaluator()
    assert tuned(tmp_path, again, candidates=20, fresh=True).problems[0].counts.resumed == 0
    assert len(again.screened) == 20


def test_defaults_are_measured_first(tmp_path):
    evaluator = ScriptedEvaluator()
    tuned(tmp_path, evaluator, ScriptedTarget(defaults=[BEST]), candidates=5)
    assert evaluator.screened[0] == BEST


def test_a_check_that_knows_more_than_the_space_is_counted_and_obeyed(tmp_path):
    class Stricter(ScriptedTarget):
        def check(self, problem, config, device):
            rejection = dataclasses.make_dataclass("Rejection", ["rule"])
            return super().check(problem, config, device) or (
                (rejection("late"),) if dict(config)["stages"] == 4 else ()
            )

    evaluator = ScriptedEvaluator()
    result = tuned(tmp_path, evaluator, Stricter(), sampler="exhaustive", candidates=1000).problems[0]
    assert all(knobs["stages"] != 4 for knobs in evaluator.screened)
    assert result.counts.draws_rejected == {"late": 212 - len(evaluator.screened)}


def test_a_search_begins_with_what_won_nearby(tmp_path):
    evaluator = ScriptedEvaluator()
    tuned(tmp_path, evaluator, candidates=3, seeds=lambda problem, device: [BEST])
    assert evaluator.screened[0] == BEST


class Overlapping(ScriptedEvaluator):
    """Also tells the problems of the races in flight, and of each promotion how many races were over."""

    def __init__(self, **options):
        super().__init__(capacity=8, **options)
        self.together = set()

    def poll(self, timeout_s):
        flying = frozenset(job.problem.m for job in self._queue if isinstance(job, RaceJob))
        self.together |= {flying} if len(flying) > 1 else set()
        return super().poll(timeout_s)


def test_races_of_several_problems_are_in_flight_together_and_each_is_promoted_in_turn(tmp_path):
    problems = tuple(ScriptedWeighted(problem=ScriptedProblem(m=m)) for m in (1, 2, 3, 4, 5))
    evaluator, promoted = Overlapping(), []
    race = RaceSettings(processes=3, rounds=5, seconds=2.0)
    result = tuned(
        tmp_path,
        evaluator,
        problems=problems,
        race=race,
        candidates=6,
        promote=lambda one: promoted.append((one.problem.m, len(evaluator.races))),
    )
    # four at once, three sessions each; the fifth alone
    assert promoted == [(1, 12), (2, 12), (3, 12), (4, 12), (5, 15)]
    assert frozenset({1, 2, 3}) in evaluator.together
    assert not any(5 in flying for flying in evaluator.together)
    # what a batch raced is recorded: the same command measures nothing more
    again = ScriptedEvaluator()
    assert [
        one.winner for one in tuned(tmp_path, again, problems=problems, race=race, candidates=6).problems
    ] == [one.winner for one in result.problems]
    assert not again.screened and not again.races


def test_nothing_legal_is_told_with_its_rules_and_the_other_problems_are_tuned(tmp_path):
    class OnlySmall(ScriptedTarget):
        def space(self, problem, device, narrowing):
            narrowing = {"stages": (5,), "tile_m": (256,)} if problem.m > 4096 else {}
            return super().space(problem, device, narrowing)

    problems = tuple(ScriptedWeighted(problem=ScriptedProblem(m=m)) for m in (8192, 4096))
    result = tuned(tmp_path, ScriptedEvaluator(), OnlySmall(), problems=problems, candidates=5)
    assert result.problems[0].winner is None and result.problems[1].winner is not None
    with pytest.raises(
        NothingLegalError,
        match=r"8192 cubed: none of 16 .* NVIDIA H200; rejected: smem 16; most of all smem: no",
    ):
        result.raise_for_failure()
    assert len(list((tmp_path / "trials").glob("*.journal"))) == 1


def test_none_survived_counts_the_reasons_and_quotes_the_most_frequent_detail(tmp_path):
    def fails(knobs):
        if knobs["persistent"]:
            return Failed(reason="crash", detail="signal\n6")
        return Failed(reason="compile", detail=f"ptxas {knobs}")

    result = tuned(tmp_path, ScriptedEvaluator(fails=fails), sampler="exhaustive", candidates=1000)
    with pytest.raises(NothingSurvivedError) as raised:
        result.raise_for_failure()
    assert str(raised.value) == (
        "4096 cubed: no candidate survived; failed: compile 106, crash 106; most often (106x) crash: signal 6"
    )


def test_failures_are_counted_and_cannot_win(tmp_path):
    def fails(knobs):
        return Failed(reason="wrong", detail="error 0.4") if knobs["persistent"] else None

    result = tuned(tmp_path, ScriptedEvaluator(fails=fails), sampler="exhaustive", candidates=1000).problems[
        0
    ]
    assert result.counts.failed == {"wrong": 106} and result.counts.measured == 106
    assert result.best_knobs == BEST | {"persistent": False}


def test_where_all_finalists_fail_in_the_race_the_next_best_race(tmp_path):
    fast = {smooth_time_us(knobs) for knobs in legal_knobs()}
    limit = sorted(fast)[4]
    evaluator = ScriptedEvaluator(race_fails=lambda knobs: smooth_time_us(knobs) < limit)
    result = tuned(tmp_path, evaluator, sampler="exhaustive", candidates=1000).problems[0]
    assert len(evaluator.races) >= 2 and result.winner.time_us == limit


def test_identical_modules_race_once_and_count_as_duplicates(tmp_path):
    class Twins(ScriptedEvaluator):
        def _screen(self, knobs):
            module = {name: value for name, value in knobs.items() if name != "order"}
            return measured(knobs, [smooth_time_us(module | {"order": "rows"})], str(sorted(module.items())))

    evaluator = Twins()
    result = tuned(tmp_path, evaluator, sampler="exhaustive", candidates=1000).problems[0]
    assert result.counts.duplicates == 106
    raced = [dict(candidate.config) for candidate in evaluator.races[0].candidates]
    assert [knobs["order"] for knobs in raced] == ["columns"] * 3


def test_lowering_only_gives_counts_and_no_times(tmp_path):
    evaluator = ScriptedEvaluator(
        kind="lower", fails=lambda k: Failed(reason="lower", detail="x") if k["persistent"] else None
    )
    result = tuned(tmp_path, evaluator, sampler="exhaustive", candidates=1000).problems[0]
    assert (result.counts.lowered, result.counts.measured, result.counts.failed) == (106, 0, {"lower": 106})
    assert result.winner is result.failure is None and evaluator.races == []


def test_a_rival_that_was_not_measured_leaves_the_kernel_alone(tmp_path):
    winner = (
        tuned(tmp_path, ScriptedEvaluator(kind="replay", rival_us=None), candidates=20).problems[0].winner
    )
    assert winner.backend == "kernel" and winner.ratio is winner.xla_time_us is None


@pytest.mark.parametrize(("kind", "times"), [("gpu", 1), ("replay", 0), ("lower", 0)])
def test_only_a_gpu_promotes(tmp_path, kind, times):
    heard = []
    result = tuned(tmp_path, ScriptedEvaluator(kind=kind), candidates=5, promote=heard.append)
    assert heard == list(result.problems) * times


ORDERS = ("order", "persistent")  # two by two, so that a binary serves four


def without_orders(knobs):
    return tuple(sorted((name, value) for name, value in knobs.items() if name not in ORDERS))


def test_an_exhaustive_run_asks_for_all_that_a_binary_serves_together(tmp_path):
    evaluator = ScriptedEvaluator(capacity=1)
    result = tuned(
        tmp_path,
        evaluator,
        ScriptedTarget(runtime_knobs=ORDERS),
        sampler="exhaustive",
        candidates=1000,
    )
    assert frozen(evaluator.screened) == frozen(legal_knobs())
    for group in itertools.batched(evaluator.screened, 4):
        assert len({without_orders(knobs) for knobs in group}) == 1
    # What is named is what is compiled: equal for equal other knobs, and only for those.
    named = {(without_orders(knobs), name) for knobs, name in zip(evaluator.screened, evaluator.binaries)}
    assert len(named) == len({one for one, _ in named}) == len({name for _, name in named})
    assert dict(result.problems[0].winner.knobs) == BEST


class PredictingTarget(ScriptedTarget):
    """The order matters to nobody, and the model knows all times."""

    def space(self, problem, device, narrowing):
        space = super().space(problem, device, narrowing)
        names, values = list(space.knobs), list(space.knobs.values())
        space.predicted_us = lambda codes: np.array(
            [orderless_time_us({n: v[c] for n, v, c in zip(names, values, row)}) for row in codes]
        )
        return space


def orderless_time_us(knobs):
    return smooth_time_us({**knobs, "order": "rows"})


@pytest.mark.parametrize(("candidates", "is_widened"), [(None, True), (20, False)])
def test_a_binary_is_made_the_most_of_where_seconds_are_scarce_and_not_candidates(
    tmp_path, monkeypatch, candidates, is_widened
):
    monkeypatch.setattr("autotune.search.guided.CHEAPER", 0.5)  # of which siblings, is not the question here
    evaluator = ScriptedEvaluator(orderless_time_us, capacity=1)
    target = PredictingTarget(runtime_knobs=("order",))
    tuned(tmp_path, evaluator, target, sampler="guided", candidates=candidates)
    pairs = [
        dict(first, order="") == dict(second, order="")
        for first, second in itertools.batched(evaluator.screened[:20], 2)
    ]
    assert all(pairs) if is_widened else sum(pairs) < 5


@pytest.mark.parametrize(
    ("kind", "share_binaries", "shares"), [("gpu", True, True), ("gpu", False, False), ("lower", True, False)]
)
def test_binaries_are_shared_where_times_are_taken_and_nobody_forbids_it(
    tmp_path, kind, share_binaries, shares
):
    evaluator = ScriptedEvaluator(kind=kind)
    target = ScriptedTarget(runtime_knobs=ORDERS)
    tuned(tmp_path, evaluator, target, sampler="random", candidates=5, share_binaries=share_binaries)
    assert {name is not None for name in evaluator.binaries} == {shares}


def test_what_another_process_records_meanwhile_is_not_measured_again(tmp_path):
    others = []
    taken = {"tile_m": 64, "tile_n": 64, "stages": 1, "order": "rows", "persistent": False}

    def spy(*arguments, **options):
        others.append(open_ledger(*arguments, **options))
        return open_ledger(*arguments, **options)

    def meanwhile(count):
        if count == 1:
            others[0].record_screen(taken, measured(taken, [5.0]), spent_s=1.0)

    evaluator = ScriptedEvaluator(on_answer=meanwhile)
    result = tuned(tmp_path, evaluator, sampler="exhaustive", candidates=1000, open_ledger=spy).problems[0]
    assert taken not in evaluator.screened and len(evaluator.screened) == 211
    assert result.counts.measured == 212 and taken in [dict(c.config) for c in evaluator.races[0].candidates]


def test_a_replay_does_not_go_on_with_a_gpus_study(tmp_path):
    tuned(tmp_path, ScriptedEvaluator(), candidates=5)
    replay = ScriptedEvaluator(kind="replay")
    assert tuned(tmp_path, replay, candidates=5).problems[0].counts.resumed == 0


def test_a_wrong_space_ends_the_run_before_anything_is_written(tmp_path):
    class Choosy(ScriptedTarget):
        def space(self, problem, device, narrowing):
            if problem.m == 3:
                raise ValueError("m=3")
            return super().space(problem, device, narrowing)

    problems = tuple(ScriptedWeighted(problem=ScriptedProblem(m=m)) for m in (4096, 3))
    evaluator = ScriptedEvaluator()
    with pytest.raises(ValueError, match="m=3"):
        tuned(tmp_path, evaluator, Choosy(), problems=problems)
    assert not list(tmp_path.iterdir()) and evaluator.is_closed


def test_job_ids_are_not_used_twice_in_a_run():
    stages = Stages(target=None, evaluator=None, progress=None, toolchain={})
    assert list(itertools.islice(stages.job_ids, 3)) == [0, 1, 2]
