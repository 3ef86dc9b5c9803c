"""The cost model against measured times: all spaces that are recorded."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest

from autotune.evaluate import read_recorded
from hopper_matmul.hardware import device_named
from hopper_matmul.problem import Problem
from hopper_matmul.space import Space

RECORDED = Path(__file__).parents[2] / "results" / "recorded"
FILES = sorted(RECORDED.glob("hopper_matmul-*.json.gz"))
MOST_REGRET = 0.05  # of the model's first choice
LEAST_CORRELATION = 0.8


def rank(values: np.ndarray) -> np.ndarray:
    return values.argsort(kind="stable").argsort(kind="stable")


def test_all_eight_spaces_are_here():
    assert len(FILES) == 8


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.split("-")[1])
def test_the_first_choice_is_nearly_the_fastest_and_slow_ones_are_known(file):
    recorded = read_recorded(file)
    rows = [(codes, row) for codes, row in recorded.rows.items() if row.failed is None]
    time_us = np.array([statistics.median(row.samples_us) for _, row in rows])
    space = Space(
        Problem.from_fields(recorded.problem), device_named(recorded.device["kind"]), recorded.knobs
    )
    guess_us = space.predicted_us(np.array([codes for codes, _ in rows], dtype=np.uint8))
    first = guess_us <= guess_us.min() * (1 + 1e-9)  # what the model takes for equal counts alike
    assert time_us[first].mean() / time_us.min() - 1 < MOST_REGRET
    assert np.corrcoef(rank(guess_us), rank(time_us))[0, 1] > LEAST_CORRELATION
