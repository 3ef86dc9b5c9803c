"""The walk against the real lowering on generated kernels."""

import dataclasses

import pytest

from autotune.lint import audit, checking, model
from autotune.lint.audit import audit_scope_trees, render


@pytest.fixture(scope="module")
def found():
    return audit_scope_trees(60, seed=11)


def test_walk_agrees_with_lowering_on_sixty_generated_functions(found):
    assert found.disagreements == ()
    assert found.false_accepts == found.false_rejects == 0
    assert found.wrong_exceptions == found.wrong_messages == found.wrong_smem == 0


def test_generated_functions_are_both_legal_and_illegal(found):
    assert 15 <= found.legal <= 45
    assert sum(found.by_rule.values()) == 60 - found.legal
    assert {"main", "b", "a", "a_sem", "smem"} <= set(found.by_rule)


def test_walk_is_much_cheaper_than_lowering(found):
    assert 0 < found.walk_ms < found.lower_ms


def test_report_shows_every_count(found):
    text = render(found)
    assert text.startswith("60 generated functions, seed 11")
    assert "false accepts 0, false rejects 0" in text
    assert f"walk {found.walk_ms:.1f} ms" in text


def test_same_seed_draws_the_same_functions():
    first, second = audit_scope_trees(5, seed=2), audit_scope_trees(5, seed=2)
    assert (first.legal, first.by_rule) == (second.legal, second.by_rule)


def _walk_that_says(faults):
    def walk(traced, subject, place, **options):
        report = checking.check_traced(traced, subject, place, **options)
        return dataclasses.replace(report, faults=faults)

    return walk


def test_a_walk_that_accepts_everything_is_caught(monkeypatch):
    monkeypatch.setattr(audit, "check_traced", _walk_that_says(()))
    found = audit_scope_trees(20, seed=11)
    assert found.false_accepts > 0 and found.false_rejects == 0
    assert len(found.disagreements) == found.false_accepts + found.wrong_smem


def test_a_walk_that_refuses_everything_is_caught(monkeypatch):
    fault = model.Fault(rule="b", message="no", exception="ValueError", stage="lower", file="", line=0)
    monkeypatch.setattr(audit, "check_traced", _walk_that_says((fault,)))
    found = audit_scope_trees(20, seed=11)
    assert found.false_rejects == found.legal > 0
    assert found.wrong_messages + found.wrong_exceptions > 0
