"""How often noise pages, and how surely a regression is found: seeded, on the decision logic alone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "nightly_simulation.py"


@pytest.fixture(scope="module")
def simulation():
    spec = importlib.util.spec_from_file_location("nightly_simulation", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("problems", [10, 40, 100])
def test_fifty_nights_of_noise_and_drift_page_nobody(simulation, problems):
    assert simulation.pages_of_noise(0, nights=50, problems=problems) == 0


@pytest.mark.parametrize("kind", ["long", "middling", "settled", "chain", "short chain"])
def test_a_regression_of_5_percent_is_found_by_the_second_night(simulation, kind):
    found = [simulation.night_found(seed, 10, quiet_nights=5, kind=kind, share=0.05) for seed in range(25)]
    assert 25 - found.count(None) >= 24


def test_a_thousand_entries_are_decided_within_two_seconds(simulation):
    assert simulation.decision_seconds(1000, nights=14) < 2.0


def test_two_real_nights_with_nothing_changed_leave_time_in_four_minutes(simulation):
    decisions, (least_s, most_s) = simulation.replayed()
    assert {one.verdict for one in decisions.values()} == {"unchanged"}
    # On the record there were 12 further races, and 158 s; its samples are gone, and with them some doubt.
    assert sum(one.ask > 0 for one in decisions.values()) == 0
    assert 138 < least_s <= most_s < 158
