"""The measurement of what one budget saves: run whole on a simulated card, and its verdict worked out by hand."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import pytest

from autotune.seam import Failed, Race, RaceEntry, RaceJob
from autotune.target import load_target
from benchmarks.card import Lines
from benchmarks.choices_raced import compared, mean_ratio, rows_of, verdict
from benchmarks.shared_budget_gpu import World, asked_runs, measured
from benchmarks.simulated_search import SimulatedEvaluator, SimulatedTarget, Truth
from tests.helpers import scripted

TARGET = load_target("hopper_matmul")
H200 = TARGET.device_named("NVIDIA H200")
SIZES = [512, 1024, 2048]
PROBLEMS = [TARGET.problem_from_fields({"m": m, "n": 4096, "k": 4096}) for m in SIZES]
WORLD = World(target=TARGET, device=H200, problems=PROBLEMS, evaluator=lambda workers: None)


class Watched(SimulatedEvaluator):
    """Also keeps what it was asked, with how many workers it was made, and whether it was closed.

    Args:
        results: After so many the time is over.
    """

    def __init__(self, truth, workers, results=math.inf):
        super().__init__(truth, seed=1)
        self.results_left = results
        self.workers, self.screened, self.races, self.is_closed = workers, [], [], False

    def submit(self, job):
        if isinstance(job, RaceJob):
            self.races.append(job)
        else:
            self.screened.append((job.candidate.problem.m, job.candidate.config.to_knobs()))
        super().submit(job)

    def poll(self, timeout_s):
        if not self.results_left:
            raise TimeoutError
        self.results_left -= 1
        return super().poll(timeout_s)

    def close(self):
        self.is_closed = True


@pytest.fixture(scope="module")
def truth():
    return Truth(TARGET, H200, draw=0)


def world_of(truth, made, results=()):
    """Returns a world that appends its evaluators to `made`; the first of them end after so many results each."""
    limits = itertools.chain(results, itertools.repeat(math.inf))

    def evaluator(workers):
        made.append(Watched(truth, workers, next(limits)))
        return made[-1]

    return World(
        target=SimulatedTarget(TARGET, truth),
        device=H200,
        problems=PROBLEMS,
        evaluator=evaluator,
        each=20,
        next_each=6,
    )


@pytest.fixture(scope="module")
def whole(truth, tmp_path_factory):
    """Returns the evaluators of a whole measurement, and its file."""
    made, out = [], tmp_path_factory.mktemp("whole") / "out.jsonl"
    measured(world_of(truth, made), out, seconds=600.0)
    return made, out


def test_each_run_spends_what_it_is_given_on_workers_of_its_own(whole):
    made, out = whole
    alone, beside, shared, races = ([m for m, _ in one.screened] for one in made)
    assert alone == [512] * 20 + [1024] * 20 + [2048] * 20
    assert beside == [1024] * 6 + [2048] * 6  # the problems of which that with half the rows is another
    assert len(shared) == 24 and min(map(shared.count, SIZES)) == 8  # 0.4 of 60, and at least 8 each
    assert not races and made[-1].workers is None
    assert all(one.is_closed for one in made)
    rows = rows_of(out)
    told = {row["run"]: row["candidates"] for row in rows if row["kind"] == "run"}
    assert told == {"alone": 60, "next": 12, "shared": 24}
    (cost,) = [row for row in rows if row["kind"] == "one budget"]
    assert (cost["candidates"], cost["share"]) == ([60, 24], 0.4)


def test_what_differs_races_without_xla_and_what_is_one_does_not(whole):
    made, out = whole
    rows = {row["problem"]["m"]: row for row in rows_of(out) if row["kind"] == "race"}
    assert sorted(rows) == SIZES
    jobs = {job.problem.m: job for job in made[-1].races}
    assert {job.formulations for job in jobs.values()} == {()}
    assert {m for m, row in rows.items() if row["how"] == "raced"} == set(jobs)
    assert len(made[-1].races) == 2 * len(jobs)  # processes


def test_what_was_tuned_for_half_the_rows_is_the_first_candidate_next_to_it(whole):
    made, out = whole
    turns = [row for row in rows_of(out) if row["kind"] == "turn" and row["run"] == "alone"]
    tuned = {row["problem"]["m"]: row["knobs"] for row in turns}
    beside = made[1].screened
    assert (beside[0], beside[6]) == ((1024, tuned[512]), (2048, tuned[1024]))
    # Searched by itself, a problem begins with nothing of the others.
    assert made[0].screened[20][1] != tuned[512]


def test_a_run_chooses_what_it_screened_fastest(whole):
    made, out = whole
    turns = [row for row in rows_of(out) if row["kind"] == "turn" and row["run"] == "shared"]
    last = {row["problem"]["m"]: row["best_us"] for row in turns}
    scores = {m: min(score for problem, _, score in made[2].trace if problem.m == m) for m in SIZES}
    assert last == scores


def test_the_same_command_repeats_no_whole_run_and_no_race(whole, truth, tmp_path):
    kept = [line for line in whole[1].read_text().splitlines() if '"run": "shared"' not in line]
    out = tmp_path / "out.jsonl"
    out.write_text("".join(f"{line}\n" for line in kept if json.loads(line)["kind"] != "race"))
    made = []
    measured(world_of(truth, made), out, seconds=600.0)
    assert [len(one.screened) for one in made] == [24, 0]
    again = []
    measured(world_of(truth, again), out, seconds=600.0)
    assert again == []


def keep(whole, out, is_kept):
    """Writes those rows of a whole measurement that are to be kept."""
    lines = [line for line in whole[1].read_text().splitlines(keepends=True) if is_kept(json.loads(line))]
    out.write_text("".join(lines))


def test_a_run_that_was_stopped_goes_on_with_the_problems_it_has_not_searched(truth, tmp_path):
    out, made = tmp_path / "out.jsonl", []
    assert not measured(world_of(truth, made, results=[45]), out, seconds=600.0)
    assert [m for m, _ in made[0].screened[:45]] == [512] * 20 + [1024] * 20 + [2048] * 5
    assert not [row for row in rows_of(out) if row["kind"] == "run"]
    measured(world_of(truth, made), out, seconds=600.0)
    assert [m for m, _ in made[1].screened] == [2048] * 20
    told = {row["run"]: row["candidates"] for row in rows_of(out) if row["kind"] == "run"}
    assert told == {"alone": 60, "next": 12, "shared": 24}  # what was measured twice is counted once
    assert len([row for row in rows_of(out) if row["kind"] == "race"]) == 3


def test_what_earlier_commands_took_of_a_run_is_counted_with_it(whole, truth, tmp_path):
    out = tmp_path / "out.jsonl"
    keep(
        whole, out, lambda row: row["kind"] == "turn" and row["problem"]["m"] == 512 and row["run"] == "alone"
    )
    (row,) = rows_of(out)
    out.write_text(json.dumps(row | {"seconds": 100.0, "card_s": 7.5}) + "\n")
    measured(world_of(truth, []), out, seconds=600.0, runs=["alone"])
    (run,) = [row for row in rows_of(out) if row["kind"] == "run"]
    assert run["seconds"] >= 100.0 and (run["card_s"], run["candidates"]) == (7.5, 60)


def test_next_begins_with_what_the_file_says_of_alone_where_its_time_ended(whole, truth, tmp_path):
    out, made = tmp_path / "out.jsonl", []
    keep(whole, out, lambda row: row.get("run") == "alone")
    measured(world_of(truth, made, results=[8]), out, seconds=600.0)
    assert made[0].screened[:6] == whole[0][1].screened[:6]
    measured(world_of(truth, made), out, seconds=600.0)
    assert made[1].screened == whole[0][1].screened[6:]
    assert [len(one.screened) for one in made[2:]] == [24, 0]
    races = [row for row in rows_of(out) if row["kind"] == "race"]
    assert ["next" in row["over_alone"] for row in races] == [False, True, True]


def test_next_hears_what_the_model_got_wrong_of_alone(whole, truth, tmp_path):
    proposed = []
    for place, errors in enumerate([{}, {"errors": []}]):
        out, made = tmp_path / f"{place}.jsonl", []
        rows = [row | errors for row in rows_of(whole[1]) if row.get("run") == "alone"]
        out.write_text("".join(json.dumps(row) + "\n" for row in rows))
        world = dataclasses.replace(world_of(truth, made), next_each=20)
        measured(world, out, seconds=600.0, runs=["next"])
        proposed.append(made[0].screened)
    assert proposed[0] != proposed[1]


def test_shared_that_was_stopped_begins_anew(whole, truth, tmp_path):
    out, made = tmp_path / "out.jsonl", []
    keep(whole, out, lambda row: row.get("run") in ("alone", "next"))
    measured(world_of(truth, made, results=[20]), out, seconds=600.0)
    measured(world_of(truth, made), out, seconds=600.0)
    assert made[1].screened == whole[0][2].screened
    assert [row["candidates"] for row in rows_of(out) if row.get("run") == "shared"][-1] == 24


def test_runs_can_be_made_by_two_commands_and_race_once_all_are_there(truth, tmp_path):
    out, made = tmp_path / "out.jsonl", []
    assert not measured(world_of(truth, made), out, seconds=600.0, runs=["alone", "next"])
    assert [len(one.screened) for one in made] == [60, 12]
    assert [row["without"] for row in rows_of(out) if row["kind"] == "not raced yet"] == [["shared"]]
    measured(world_of(truth, made), out, seconds=600.0, runs=["shared"])
    assert [len(one.screened) for one in made] == [60, 12, 24, 0]
    assert len([row for row in rows_of(out) if row["kind"] == "race"]) == 3


def test_a_run_that_there_is_not_and_next_without_alone_are_refused():
    assert asked_runs("alone,next", ()) == ["alone", "next"]
    assert asked_runs("next", ["alone"]) == ["next"]
    with pytest.raises(ValueError, match="'beside' is none of alone, next, shared"):
        asked_runs("alone,beside", ())
    with pytest.raises(ValueError, match="next begins with what alone found"):
        asked_runs("next,shared", ())


def test_a_race_that_failed_is_repeated_and_its_last_row_counts(whole, truth, tmp_path):
    out, made = tmp_path / "out.jsonl", []
    again = whole[0][-1].races[0].problem
    keep(whole, out, lambda row: row["kind"] != "verdict")
    rows = [
        row | {"over_alone": {}} if row["kind"] == "race" and row["problem"]["m"] == again.m else row
        for row in rows_of(out)
    ]
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    measured(world_of(truth, made), out, seconds=600.0)
    assert [job.problem for one in made for job in one.races] == [again] * 2  # processes
    assert rows_of(out)[-1]["raced"] == "3 of 3"


def test_a_row_that_was_not_written_whole_is_cut_off(whole, truth, tmp_path):
    out, made = tmp_path / "out.jsonl", []
    out.write_text(whole[1].read_text() + '{"kind": "race", "over_al')
    before = rows_of(whole[1])
    assert rows_of(out) == before
    measured(world_of(truth, made), out, seconds=600.0)
    assert made == [] and rows_of(out)[: len(before)] == before and rows_of(out)[-1]["kind"] == "verdict"


def test_what_only_a_search_reads_is_in_the_file_and_not_said(truth, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    measured(world_of(truth, []), out, seconds=600.0)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["kind"] for row in said] == [row["kind"] for row in rows_of(out)]
    assert not any({"knobs", "errors"} & set(row) for row in said)
    (turn, *_) = rows_of(out)
    assert len(turn["errors"]) == 20 and turn["knobs"] in [knobs for knobs, _ in turn["errors"]]


def test_after_its_seconds_it_stops_with_what_it_has_told(truth, tmp_path):
    made, out = [], tmp_path / "out.jsonl"
    assert not measured(world_of(truth, made), out, seconds=0.0)
    assert [row["kind"] for row in rows_of(out)] == ["stopped", "verdict"]
    assert len(made) == 1 and made[0].is_closed


CRASH = Failed(reason="crash", detail="signal 6")
ANSWERS = {"alone": {"stages": 3}, "next": {"stages": 4}, "shared": {"stages": 3}}


def lane(place, time_us):
    result = time_us if isinstance(time_us, Failed) else scripted.measured({"lane": place}, [time_us] * 6)
    return RaceEntry(finalist=place, result=result)


def test_a_race_tells_each_time_over_that_of_the_problem_by_itself():
    row = compared(PROBLEMS[0], ANSWERS, Race(entries=(lane(0, 10.0), lane(1, 9.8))))
    assert row["over_alone"] == pytest.approx({"alone": 1.0, "next": 0.98, "shared": 1.0})
    assert row["behind"] == pytest.approx({"alone": 0.0204, "next": 0.0, "shared": 0.0204}, abs=1e-4)


@pytest.mark.parametrize(
    "result",
    [
        CRASH,
        Race(entries=(lane(0, CRASH), lane(1, 9.8))),
    ],
)
def test_a_race_that_fails_tells_why_and_no_ratio(result):
    row = compared(PROBLEMS[0], ANSWERS, result)
    assert (row["over_alone"], row["how"]) == ({}, "crash: signal 6")


def test_a_choice_next_to_a_tuned_problem_that_fails_leaves_the_others_their_ratio():
    row = compared(PROBLEMS[0], ANSWERS, Race(entries=(lane(0, 10.0), lane(1, CRASH))))
    assert (row["over_alone"], row["how"]) == ({"alone": 1.0, "shared": 1.0}, "crash: signal 6")


def test_a_mean_is_of_logarithms_by_weight_and_its_interval_of_problems():
    assert mean_ratio([1.21, 1.0], [1.0, 1.0])[0] == pytest.approx(1.1)
    assert mean_ratio([1.21, 1.0], [3.0, 1.0])[0] == pytest.approx(1.21**0.75)
    # Two problems: in a quarter of the draws both are the first, in a quarter both the second.
    assert mean_ratio([1.21, 1.0], [1.0, 1.0])[1:] == pytest.approx((1.0, 1.21))


def verdict_of(tmp_path, ratios, beside, *, candidates=(60, 24), times_us=(10.0, 10.0, 10.0)):
    out, fields = tmp_path / "out.jsonl", [problem.to_fields() for problem in PROBLEMS]
    runs = zip(("alone", "shared"), candidates)
    rows = [{"kind": "run", "run": run, "candidates": n, "seconds": n, "card_s": 0.0} for run, n in runs]
    rows += [
        {"kind": "turn", "run": "alone", "problem": one, "best_us": us, "knobs": {}}
        for one, us in zip(fields, times_us)
    ]
    for one, ratio, near in zip(fields, ratios, beside):
        over = {"alone": 1.0, "shared": ratio} | ({} if near is None else {"next": near})
        rows.append({"kind": "race", "problem": one, "over_alone": over, "behind": over})
    verdict(WORLD, rows, Lines(str(out)))
    last = rows_of(out)[-1]
    return last["one_budget_holds"], last["next_to_tuned_holds"]


@pytest.mark.parametrize(
    ("ratios", "more", "holds"),
    [
        ((1.0, 0.99, 1.01), {}, True),
        ((1.01, 1.01, 1.02), {}, False),  # slower in every draw of problems
        ((1.0, 1.0, 1.03), {}, False),  # the interval holds 1, but 1% in the mean is no tie
        ((1.0, 1.0, 1.006), {}, True),
        ((1.002, 1.003, 1.004), {}, False),  # a tie, but beyond doubt slower
        ((1.0, 0.98, 1.02), {"times_us": (1.0, 1.0, 98.0)}, False),  # slower where the time is spent
        ((0.9, 0.9, 0.9), {"candidates": (60, 25)}, False),  # more than 0.4 of the candidates
        ((1.0, 1.0), {}, False),  # one problem was not raced
    ],
)
def test_one_budget_holds_where_its_choices_are_as_fast(tmp_path, ratios, more, holds):
    assert verdict_of(tmp_path, ratios, [None] * 3, **more)[0] is holds


@pytest.mark.parametrize(
    ("beside", "holds"),
    [
        ((None, 1.009, 1.011), True),  # 1.0% in the median
        ((None, 1.012, 1.011), False),
        ((1.0, 1.0, 1.2), True),
        ((None, None, None), False),
    ],
)
def test_next_to_a_tuned_problem_holds_within_a_percent_of_the_fastest_in_the_median(tmp_path, beside, holds):
    assert verdict_of(tmp_path, (1.0, 1.0, 1.0), beside)[1] is holds
    # Of the fastest: where the shared budget found something 5% faster, it is far from it.
    assert verdict_of(tmp_path, (0.95, 0.95, 0.95), beside)[1] is False
