"""What a run shows while it works."""

from __future__ import annotations

import io

import pytest

from autotune.progress import Budget, PlainProgress, RichProgress, Snapshot, make_progress, top_rules


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_snapshot_reads_as_one_line():
    snapshot = Snapshot(
        done=60,
        resumed=10,
        failed=2,
        elapsed_s=25.0,
        spent_s=30.0,
        best_us=123.456,
        rejected={"smem": 7, "threads": 2, "b": 1, "c": 3, "d": 1},
    )
    # 50 candidates in 25 s are 2/s: 140 more take 70 s, but the clock ends the run after 60 - 30 = 30 s.
    assert snapshot.line(Budget(candidates=200, seconds=60)) == (
        "60/200 candidates (2 failed), 2.0/s, best 123.46 us, "
        "draws rejected: smem 7, c 3, threads 2, 2 more rules 2, 30 s left"
    )


@pytest.mark.parametrize(
    ("budget", "left_s"),
    [
        (Budget(), None),
        (Budget(candidates=100), 20.0),
        (Budget(seconds=45), 15.0),
        (Budget(candidates=100, seconds=45), 15.0),
        (Budget(candidates=20, seconds=45), 0.0),
    ],
)
def test_time_left_is_what_ends_first(budget, left_s):
    assert Snapshot(done=60, resumed=10, elapsed_s=25.0, spent_s=30.0).left_s(budget) == left_s


def test_before_the_first_candidate_there_is_no_rate():
    assert Snapshot(done=0).line(Budget(candidates=5)) == "0/5 candidates, 0.0/s, no time yet"


def test_a_line_that_was_shown_is_not_shown_again_at_the_end():
    now, stream = [0.0], io.StringIO()
    progress = PlainProgress(stream, clock=lambda: now[0])
    progress.begin("4096 cubed", Budget(candidates=4))
    for now[0] in (6.0, 6.01):  # the second has the same numbers, as they are written
        progress.update(Snapshot(done=4, elapsed_s=now[0], stopped="4 candidates"))
    progress.end()
    assert stream.getvalue() == "4096 cubed: 4/4 candidates, 0.7/s, no time yet, stopped: 4 candidates\n"


def test_plain_lines_come_every_few_seconds_and_the_last_one_always():
    now, stream = [0.0], io.StringIO()
    progress = PlainProgress(stream, clock=lambda: now[0])
    progress.begin("4096 cubed", Budget(candidates=100))
    for done in range(1, 13):
        now[0] = float(done)
        progress.update(Snapshot(done=done, elapsed_s=now[0]))
    progress.end()
    progress.end()
    assert [line.split(",")[0] for line in stream.getvalue().splitlines()] == [
        "4096 cubed: 5/100 candidates",
        "4096 cubed: 10/100 candidates",
        "4096 cubed: 12/100 candidates",
    ]


def test_a_terminal_gets_a_bar_with_the_line():
    stream = Terminal()
    progress = make_progress(stream)
    assert isinstance(progress, RichProgress)
    progress.begin("64 [bold] cubed", Budget(candidates=10))
    progress.update(Snapshot(done=4, elapsed_s=2.0, best_us=9.5))
    progress.say("a journal was [mended]")
    progress.end()
    progress.update(Snapshot(done=5))
    shown = stream.getvalue()
    assert "64 [bold] cubed" in shown and "4/10" in shown and "a journal was [mended]" in shown


def test_a_pipe_gets_plain_lines():
    assert isinstance(make_progress(io.StringIO()), PlainProgress)


def test_rules_are_listed_most_frequent_first():
    assert top_rules({"b": 1, "a": 1, "smem": 5}) == "smem 5, a 1, b 1"
    assert top_rules({"a": 4, "b": 3, "c": 2, "d": 1}) == "a 4, b 3, c 2, 1 more rule 1"
    assert top_rules({}) == ""
