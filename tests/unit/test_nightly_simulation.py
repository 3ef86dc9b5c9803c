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


@pytest.mark.parametrize("sampling", ["CALLS", "BLOCKS"])
@pytest.mark.parametrize("seed", range(3))
def test_fifty_nights_of_noise_and_drift_page_nobody(simulation, seed, sampling):
    sampling = getattr(simulation, sampling)
    assert simulation.pages_of_noise(seed, nights=50, problems=40, sampling=sampling) == 0


@pytest.mark.parametrize("sampling", ["CALLS", "BLOCKS"])
def test_a_regression_of_five_percent_is_found_by_the_second_night(simulation, sampling):
    sampling = getattr(simulation, sampling)
    found = [simulation.is_found(seed, problems=20, quiet_nights=5, sampling=sampling) for seed in range(100)]
    assert sum(found) >= 96


def test_a_thousand_entries_are_decided_within_two_seconds(simulation):
    assert simulation.decision_seconds(1000, nights=14) < 2.0
