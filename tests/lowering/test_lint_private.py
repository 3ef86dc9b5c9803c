"""The private parts of jax that the walk relies on, and what happens when they change."""

import dataclasses
from pathlib import Path

import jax
import pytest

from autotune.lint import check, checking, jax_private, known_jax
from tests.helpers.lint_kernels import OPERAND, accumulator, kernel, legal_body, scoped

MAIN = kernel(scoped(accumulator()))


def test_this_jax_is_one_the_walk_knows():
    changed = (jax_private.MISSING,) if jax_private.MISSING else jax_private.changed_functions()
    assert jax_private.distrust() == "", (
        f"jax {jax.__version__} is not one of {sorted(known_jax.KNOWN)}: read {', '.join(changed)} again, change"
        " autotune/lint where they behave differently, run the audit, and add its digests to known_jax.py;"
        " until then every check lowers for real."
    )


def test_every_known_version_has_every_digest():
    for rules in known_jax.KNOWN.values():
        assert set(rules.digests) == set(jax_private.MIRRORED)


@pytest.fixture
def changed_jax(monkeypatch):
    """A jax in which one mirrored function has another source."""
    altered = {
        version: dataclasses.replace(
            rules, digests={**rules.digests, "lowering._run_scoped_lowering_rule": "0" * 12}
        )
        for version, rules in known_jax.KNOWN.items()
    }
    monkeypatch.setattr(jax_private, "KNOWN", altered)
    jax_private.known_version.cache_clear()
    yield
    jax_private.known_version.cache_clear()


def test_changed_function_is_named(changed_jax):
    assert jax_private.distrust() == (
        f"jax {jax.__version__} changed lowering._run_scoped_lowering_rule, which the walk mirrors"
    )


def test_unknown_jax_lowers_for_real_and_says_so(changed_jax):
    report = check(MAIN, OPERAND)
    [fault] = report.faults
    assert (report.tier, fault.tier, fault.rule, fault.stage) == ("lowering", "lowering", "main", "lower")
    assert fault.message.startswith("WGMMA accumulators can only be allocated non-collectively.")
    assert fault.file.endswith("lint_kernels.py")
    assert "lowered for real, since jax" in report.notes[0]
    assert check(kernel(legal_body), OPERAND).ok


def test_missing_private_module_lowers_for_real(monkeypatch):
    monkeypatch.setattr(jax_private, "MISSING", "No module named 'jax._src.pallas.mpmd'")
    jax_private.known_version.cache_clear()
    try:
        report = check(MAIN, OPERAND)
    finally:
        jax_private.known_version.cache_clear()
    assert report.tier == "lowering" and report.faults[0].rule == "main"
    assert "has moved what the walk needs (No module named" in report.notes[0]


def test_walk_that_fails_lowers_for_real(monkeypatch):
    def broken(call):
        raise KeyError("jaxpr")

    monkeypatch.setattr(checking, "check_kernel", broken)
    report = check(MAIN, OPERAND)
    assert report.tier == "lowering" and report.faults[0].rule == "main"
    assert "the walk stopped at test_lint_private.py:" in report.notes[0]


def test_only_one_module_imports_private_parts_of_jax():
    folder = Path(jax_private.__file__).parent
    users = {path.name for path in folder.glob("*.py") if "jax._src" in path.read_text()}
    assert users == {"jax_private.py"}
