"""How the benchmarks of two runs and of a later re-measurement read their races, worked out by hand."""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import subprocess
import sys
import time

import pytest

from autotune.ledger.provenance import Provenance
from autotune.ledger.storage import open_ledger
from autotune.seam import Failed, MeasureProtocol, Race, RaceEntry, Timing
from benchmarks import two_runs
from benchmarks.candidate_rate import held_lines
from benchmarks.card import Lines
from benchmarks.independent_runs import compared, final_race, ratio_of
from benchmarks.neighbour_noise import Pair, summarise
from benchmarks.remeasure import row_of, stored_race
from benchmarks.run_folder import RunFolder
from benchmarks.two_runs import Running, share_end_s, tuning_s, wait
from tests.helpers.best_entries import KNOBS, best_file, entry, problem
from tests.helpers.card import CARD
from tests.helpers.scripted import measured

OTHER = KNOBS | {"stages": 3}


def lanes(*kernels_us, plain):
    entries = [
        RaceEntry(
            finalist=index, result=us if isinstance(us, Failed) else measured({"lane": index}, [us] * 6)
        )
        for index, us in enumerate(kernels_us)
    ]
    xla = RaceEntry(finalist=None, formulation="plain", result=measured({"xla": 1}, [plain] * 6))
    return Race(entries=(*entries, xla))


@pytest.mark.parametrize(
    ("own_us", "xla_us", "change", "bound", "within"),
    [
        (100.0, 111.0, 0.0091, 0.02, True),  # 1.11 after 1.10
        (100.0, 114.0, 0.0364, 0.02, False),
        (9.0, 10.17, 0.0273, 0.03, True),  # under 10 us
    ],
)
def test_a_ratio_of_today_is_held_against_the_stored_one(own_us, xla_us, change, bound, within):
    row = row_of(entry(ratio=1.1), [lanes(own_us, plain=xla_us)] * 3)
    assert (row["change"], row["bound"], row["within"]) == (pytest.approx(change, abs=1e-4), bound, within)
    assert (row["compilations"], row["xla_us_by_process"]) == (3, [xla_us] * 3)


def test_a_stored_winner_that_fails_now_is_not_within_and_says_why():
    crashed = lanes(Failed(reason="crash", detail="signal 6"), plain=110.0)
    row = row_of(entry(), [crashed])
    assert (row["now"], row["within"], row["note"]) == (None, False, "crash: signal 6")


def test_a_stored_winner_races_by_its_own_protocol_against_its_own_formulation():
    job = stored_race(
        entry(formulation="padded", protocol={"timer": "chain", "l2": "warm", "rounds": 20, "warmup": 2}),
        CARD,
    )
    assert job.formulations == ("plain", "padded")
    assert (job.protocol.timer, job.protocol.l2) == ("chain", "warm")
    assert stored_race(entry(), CARD).formulations == ("plain",)


def test_two_kernels_and_a_kernel_and_xla_are_compared_by_the_final_race():
    kernels = [entry(), entry(knobs=OTHER)]
    assert len(final_race(problem(), CARD, kernels).candidates) == 2
    found = ratio_of(lanes(100.0, 100.5, plain=110.0), kernels)
    assert found["ratio"] == pytest.approx(1.005)
    assert found["xla_over_each"] == pytest.approx([1.1, 1.0945], abs=1e-4)
    # The first run answered XLA, so that the only finalist is the second one's kernel.
    mixed = [entry(backend="xla"), entry(knobs=OTHER)]
    assert len(final_race(problem(), CARD, mixed).candidates) == 1
    assert ratio_of(lanes(100.0, plain=102.0), mixed)["ratio"] == pytest.approx(100 / 102)
    broken = ratio_of(lanes(Failed(reason="crash", detail="signal 6"), plain=102.0), mixed)
    assert broken["ratio"] is None and broken["how"] == "crash: signal 6"


def test_one_answer_of_both_runs_needs_no_race(tmp_path):
    one, other, lost = problem(), problem(512), problem(1024)
    best_file(tmp_path / "run0" / "best", entry(one), entry(other, backend="xla"), entry(lost))
    best_file(tmp_path / "run1" / "best", entry(one), entry(other, backend="xla", knobs=OTHER))
    folders = [RunFolder(tmp_path / f"run{run}", CARD.device) for run in (0, 1)]
    rows = list(compared(folders, [one, other, lost], CARD, lambda: None, Lines(str(tmp_path / "out"))))
    assert [(row["ratio"], row["how"], row["unconfirmed"]) for row in rows] == [
        (1.0, "both answer one configuration", []),
        (1.0, "both answer xla", []),
    ]
    said = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert (said[2]["note"], said[2]["without"]) == ("not answered by both runs", [1])


def test_the_cards_of_a_run_are_read_from_its_records(tmp_path):
    (tmp_path / "trials").mkdir()
    record = json.dumps({"value": json.dumps({"conditions": {"card": "GPU-1"}}), "plain": {"card": "GPU-2"}})
    (tmp_path / "trials" / "a.journal").write_text(f"{record}\n{record}\n")
    assert RunFolder(tmp_path, CARD.device).cards() == {"GPU-1": 2, "GPU-2": 2}


def study(folder, of):
    provenance = Provenance(
        target="hopper_matmul",
        problem=of.to_fields(),
        space={name: (value,) for name, value in KNOBS.items()} | {"stages": (3, 4)},
        protocol=MeasureProtocol(),
        device={"kind": "NVIDIA H200"},
        toolchain={},
        sources="abc",
        evaluator="gpu",
        title=of.describe(),
    )
    return open_ledger(provenance, results=folder)


def test_of_a_run_that_was_stopped_every_race_that_had_ended_counts(tmp_path):
    promoted, won, demoted, screened, begun, waiting = (problem(size) for size in range(1024, 7 * 1024, 1024))
    best_file(tmp_path / "best", entry(promoted))
    for of in (won, demoted, screened, begun):
        ledger = study(tmp_path, of)
        ledger.record_screen(OTHER, measured(OTHER, [100.0] * 6), 1.0)
        if of is not begun:
            ledger.finish_screening(1.0, {"reason": "candidates"})
        if of in (won, demoted):
            ledger.record_race([OTHER], 6, lanes(100.0, plain=110.0), 0, 100.0)
        if of is demoted:
            ledger.record_confirmation(OTHER, Failed(reason="wrong", detail="off by 2"))
    folder = RunFolder(tmp_path, CARD.device)
    answers = folder.answers()
    assert set(answers) == {promoted, won} and folder.unconfirmed() == {won}
    assert answers[won].config.stages == 3
    assert (answers[won].backend, answers[won].ratio.median) == ("kernel", pytest.approx(1.1))
    stages = [line.split(": ")[1] for line in folder.stages([promoted, won, screened, begun, waiting])]
    assert stages == [
        "answered",
        "raced, not confirmed",
        "1 candidates screened, the race not ended",
        "screening, after 1 candidates",
        "not begun",
    ]


@pytest.mark.parametrize(
    ("limit_s", "problems", "both_s"),
    [(260, 2, 215), (600, 10, 500), (30, 2, 0)],  # 45 s, 100 s at most, and all of 30 s go to the races
)
def test_what_one_run_leaves_is_the_next_ones(limit_s, problems, both_s):
    assert tuning_s(limit_s, problems) == both_s
    assert share_end_s(0, 0.0, both_s) == both_s / 2
    assert share_end_s(1, both_s / 4, both_s) == both_s


def test_a_run_that_takes_too_long_is_stopped_and_says_how_far_each_problem_came(tmp_path, capsys):
    study(tmp_path, problem())
    log = tmp_path / "run0.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", "import time; print('at work', flush=True); time.sleep(60)"], stdout=stream
        )
    ends_s = time.monotonic() + 30
    while not log.read_bytes() and time.monotonic() < ends_s:
        time.sleep(0.05)
    running = Running(run=0, process=process, log=log)
    wait([running], time.monotonic(), [RunFolder(tmp_path, CARD.device)], [problem()])
    assert process.returncode == -signal.SIGTERM
    said = capsys.readouterr().out
    assert "run 0, 0 s: at work\n" in said
    assert "run 0, stopped after 0 s: 4096x4096x4096 bfloat16 nn: screening, after 0 candidates\n" in said


@pytest.mark.parametrize(("answered", "runs"), [(True, [0, 1]), (False, [0])])
def test_where_the_first_run_answers_nothing_the_second_is_not_started(tmp_path, monkeypatch, answered, runs):
    if answered:
        best_file(tmp_path / "run0" / "best", entry())
    asked = []

    def started(out, run, *_):
        asked.append(run)
        (out / "log").touch()
        return Running(run=run, process=subprocess.Popen([sys.executable, "-c", ""]), log=out / "log")

    monkeypatch.setattr(two_runs, "started", started)
    folders = [RunFolder(tmp_path / f"run{run}", CARD.device) for run in (0, 1)]
    two_runs.tune(tmp_path, folders, [problem()], [CARD], argparse.Namespace(limit=90.0))
    assert asked == runs


def test_what_the_card_was_held_for_is_said_in_the_mean_and_in_quantiles():
    timing = Timing(samples_us=(400.0,) * 6, l2="clean", reference_us=(25.0,) * 6)
    steps = ({"check": 0.001, "kernels": 0.004}, {"check": 0.002, "kernels": 0.006}, {"check": 0.006})
    own = [
        dataclasses.replace(measured({}, [1.0]), timing=timing, held_s=held_s, locked_s=sum(held_s.values()))
        for held_s in steps
    ]
    assert held_lines([*own, measured({}, [1.0])], 0.038) == [
        "card held after warm-up  50% of the time, 6.33 ms (5.20, 6.00, 7.60) a candidate",
        "samples                  6.0 a candidate, 2.55 ms (2.55, 2.55, 2.55)",
        "held for check           3.00 ms (1.20, 2.00, 5.20)",
        "held for kernels         3.33 ms (0.80, 4.00, 5.60)",
    ]


def test_neighbours_count_by_the_median_of_the_pairs_ratios(capsys):
    pairs = [Pair(beside_us=100.4 + n, alone_us=100.0 + n, compiling=9) for n in range(10)]
    assert summarise(pairs, 15)
    assert "+0.383%" in capsys.readouterr().out  # 0.4 of 104.5
    assert not summarise([Pair(beside_us=100.6, alone_us=100.0, compiling=9)] * 5, 15)
