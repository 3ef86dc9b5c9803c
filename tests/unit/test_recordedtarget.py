"""A replay's target: it proposes what was recorded and is legal today, and nothing else."""

import pytest

from autotune.evaluate import RecordedRow, RecordedSpace
from autotune.recordedtarget import UNRECORDED, RecordedTarget
from autotune.target import load_target

TARGET = load_target("hopper_matmul")
DEVICE = TARGET.device_named("nvidia_h200")
PROBLEM = TARGET.problem_from_fields({"m": 4096, "n": 4096, "k": 4096})
NARROWING = {name: [value] for name, value in TARGET.default_configs(PROBLEM, DEVICE)[0].items()}
NARROWING |= {"tile_n": [128, 256], "stages": [3, 4, 8]}  # 8 stages fit no tile of 128x256
KNOBS = {name: tuple(values) for name, values in TARGET.space(PROBLEM, DEVICE, NARROWING).knobs.items()}


def recording(*asked: tuple[int, int]) -> RecordedSpace:
    """Returns a recording of the configurations with these (tile_n, stages)."""
    names = list(KNOBS)
    rows = {}
    for tile_n, stages in asked:
        codes = [0] * len(names)
        codes[names.index("tile_n")] = KNOBS["tile_n"].index(tile_n)
        codes[names.index("stages")] = KNOBS["stages"].index(stages)
        rows[tuple(codes)] = RecordedRow(samples_us=(10.0,), digest="d")
    return RecordedSpace(
        target="hopper_matmul",
        problem=PROBLEM.to_fields(),
        device={"kind": "NVIDIA H200"},
        date="2026-11-30",
        versions={},
        source_digest="s",
        protocol={"timer": "cupti", "l2": "clean", "rounds": 1, "warmup": 0},
        command="record",
        knobs=KNOBS,
        rows=rows,
    )


@pytest.fixture
def target():
    return RecordedTarget(TARGET, recording((128, 3), (256, 4), (256, 8)))


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
    base = {name: values[0] for name, values in KNOBS.items()}
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
