"""Races in several fresh processes, many in flight at once, against a scripted evaluator."""

from __future__ import annotations

import itertools

import pytest

from autotune.seam import Failed, Outcome, Race, RaceEntry, RaceJob
from autotune.sessions import as_one, compilations, raced
from tests.helpers.scripted import measured

CRASH = Failed(reason="crash", detail="signal 6")


class Card:
    """Answers race jobs in turn; `fails` names the (problem, session) pairs of which nothing comes."""

    kind = "gpu"

    def __init__(self, capacity=3, fails=(), without_rival=()):
        self.capacity, self.fails, self.without_rival = capacity, fails, without_rival
        self.jobs, self._waiting = [], []

    def submit(self, job):
        self._waiting.append(job)
        assert len(self._waiting) <= self.capacity
        self.jobs.append((job.problem, job.session, job.ceilings))

    def poll(self, timeout_s):
        job = self._waiting.pop(0)
        if (job.problem, job.session) in self.fails:
            return [Outcome(job_id=job.job_id, result=CRASH)]
        rival = CRASH if job.problem in self.without_rival else measured({"xla": 1}, [10.0 + job.session] * 5)
        entries = (
            RaceEntry(finalist=0, result=measured({"own": 1}, [9.0] * 5)),
            RaceEntry(finalist=None, result=rival, formulation="plain"),
        )
        return [Outcome(job_id=job.job_id, result=Race(entries=entries))]


def job(problem, **changes):
    return RaceJob(job_id=0, problem=problem, target="t", candidates=(), rounds=5, **changes)


def run(card, *jobs, processes=3, **options):
    races = [(each.problem, each) for each in jobs]
    return dict(raced(card, races, processes=processes, job_ids=itertools.count(), **options))


def test_each_race_has_its_sessions_and_many_are_in_flight():
    card = Card(capacity=4)
    found = run(card, job("a"), job("b"), job("c"))
    assert list(found) == ["a", "b", "c"]
    assert card.jobs == [(problem, session, False) for problem in "abc" for session in range(3)]
    assert [lane.session for lane in as_one(found["b"]).entries] == [0, 0, 1, 1, 2, 2]
    assert [compilations(results) for results in found.values()] == [3, 3, 3]


def test_what_the_card_can_do_is_measured_in_the_first_session_alone():
    card = Card()
    run(card, job("a", ceilings=True))
    assert [ceilings for *_, ceilings in card.jobs] == [True, False, False]


def test_a_session_without_a_time_of_xla_is_run_again_once():
    card = Card(fails={("a", 1), ("a", 3)})
    found = run(card, job("a"), job("b"))
    # Session 3 stands in for 1, and is not stood in for when it ends badly as well.
    assert [session for problem, session, _ in card.jobs if problem == "a"] == [0, 1, 2, 3]
    assert compilations(found["a"]) == 2 and compilations(found["b"]) == 3
    assert len(as_one(found["a"]).entries) == 4


def test_xla_that_can_be_measured_nowhere_costs_no_further_session():
    card = Card(without_rival="a")
    assert compilations(run(card, job("a"))["a"]) == 0
    assert len(card.jobs) == 3


def test_a_race_of_which_every_session_failed_is_that_failure():
    card = Card(fails={("a", 0), ("a", 1), ("a", 2)})
    assert as_one(run(card, job("a"))["a"]) == CRASH


def test_what_is_called_between_two_polls_may_end_everything():
    def stop():
        raise TimeoutError

    card = Card()
    with pytest.raises(TimeoutError):
        run(card, job("a"), between=stop)
    assert len(card.jobs) == 3
