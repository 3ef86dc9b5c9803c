"""A replay's target: it proposes what was recorded and is legal today, and nothing else."""

import pytest

from autotune.evaluate import RecordedRow
from autotune.recordedtarget import UNRECORDED, RecordedTarget
from tests.helpers.recordings import DEVICE, PROBLEM, TARGET, narrowing, recording

NARROWING = narrowing(tile_n=[128, 256], stages=[3, 4, 8])  # 8 stages fit no tile of 128x256
ROW = RecordedRow(samples_us=(10.0,), digest="d")


@pytest.fixture
def target():
    return RecordedTarget(TARGET, recording(NARROWING, dict.fromkeys([(128, 3), (256, 4), (256, 8)], ROW)))


def test_only_what_was_recorded_and_is_legal_is_proposed(target):
    legal = target.space(PROBLEM, DEVICE, NARROWING).legal()
    found = [(legal.knobs(row)["tile_n"], legal.knobs(row)["stages"]) for row in range(legal.size)]
    assert sorted(found) == [(128, 3), (256, 4)]
    assert len(legal.codes) == 2


def test_what_was_not_recorded_counts_as_rejected_with_an_example(target):
    space = target.space(PROBLEM, DEVICE, NARROWING)
    legal = space.legal()
    assert legal.size + sum(legal.rejected.values()) == space.raw_size
    example = target.config_from_knobs(legal.examples[UNRECORDED])
    assert [one.rule for one in target.check(PROBLEM, example, DEVICE)] == [UNRECORDED]


def test_an_illegal_configuration_keeps_its_own_rules(target):
    base = {name: values[0] for name, values in NARROWING.items()}
    config = target.config_from_knobs(base | {"tile_n": 256, "stages": 8})
    assert [one.rule for one in target.check(PROBLEM, config, DEVICE)] == ["smem"]


def test_untuned_choices_that_were_not_recorded_are_left_out(target):
    choices = target.default_configs(PROBLEM, DEVICE)
    assert all((knobs["tile_n"], knobs["stages"]) in [(128, 3), (256, 4)] for knobs in choices)


def test_the_recorded_rows_are_predicted_as_the_target_predicts_them(target):
    whole = TARGET.space(PROBLEM, DEVICE, NARROWING)
    space = target.space(PROBLEM, DEVICE, NARROWING)
    codes = space.legal().codes
    assert space.predicted_us(codes).tolist() == whole.predicted_us(codes).tolist()
