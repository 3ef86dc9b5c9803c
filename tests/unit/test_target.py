"""The seam: devices, distance, and untuned choices that are legal without jax or numpy."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.errors import InputError
from autotune.target import load_target
from hopper_matmul.hardware import device_named
from hopper_matmul.problem import FieldError

TARGET = load_target("hopper_matmul")
DEVICE = device_named("NVIDIA H200")


def problem(m, n, k, **fields):
    return TARGET.problem_from_fields({"m": m, "n": n, "k": k} | fields)


@pytest.mark.parametrize("name", ["nvidia_h200", "NVIDIA H200"])
def test_a_device_is_found_by_kind_and_by_slug(name):
    assert device_named(name).slug == "nvidia_h200"


def test_unknown_device_names_the_nearest():
    with pytest.raises(FieldError) as caught:
        device_named("NVIDIA H20")
    assert "did you mean 'NVIDIA H200'" in caught.value.allowed


def test_unknown_target_names_the_nearest():
    with pytest.raises(InputError, match="did you mean 'hopper_matmul'"):
        load_target("hoper_matmul")


@pytest.mark.parametrize(
    "sizes",
    [
        (4096, 4096, 4096),
        (64, 4096, 14336),
        (1024, 1024, 1024),
        (64, 32, 16),
        (8192, 1280, 8192),
        (1, 8192, 8192),
        (4097, 4096, 4096),
        (1, 1, 1),
        (300, 300, 65536),
    ],
)
def test_untuned_choices_are_legal(sizes):
    choices = TARGET.default_configs(problem(*sizes), DEVICE)
    assert choices
    for knobs in choices:
        assert not TARGET.check(problem(*sizes), TARGET.config_from_knobs(knobs), DEVICE)


def test_few_tiles_and_a_long_k_are_split_over_the_device():
    # 300 x 300 has at most 50 tiles of 64x32; 132 SMs want parts of k as well
    assert TARGET.heuristic_config(problem(300, 300, 65536), DEVICE)["split_k"] >= 8
    assert TARGET.heuristic_config(problem(4096, 4096, 4096), DEVICE)["split_k"] == 1


def test_a_skinny_product_has_its_few_rows_in_the_accumulators_columns():
    knobs = TARGET.heuristic_config(problem(1, 8192, 8192), DEVICE)
    assert (knobs["swap_ab"], knobs["tile_m"]) == (True, 8)


def test_a_large_tile_is_chosen_where_it_fills_the_device():
    assert TARGET.heuristic_config(problem(4096, 4096, 4096), DEVICE)["tile_n"] == 256


def test_distance_is_of_sizes_within_a_numerics_class():
    a = problem(4096, 4096, 4096)
    assert TARGET.distance(a, a) == 0.0
    assert TARGET.distance(a, problem(8192, 4096, 4096)) == 1.0
    assert TARGET.distance(a, problem(4096, 4096, 4096, lhs_dtype="float16")) == math.inf


def test_checking_needs_neither_jax_nor_numpy():
    code = (
        "import sys; from hopper_matmul.target import TARGET as t; d = t.device_named('nvidia_h200');"
        "p = t.problem_from_fields({'m': 4096, 'n': 4096, 'k': 4096}); t.heuristic_config(p, d);"
        "assert not {'jax', 'numpy'} & set(sys.modules), 'imported'"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2] / "kernels")},
    )


def test_an_illegal_plan_is_mended_and_the_rest_of_the_knobs_kept():
    knobs = TARGET.default_configs(problem(4096, 4096, 4096), DEVICE)[0]
    assert TARGET.mended_knobs(knobs | {"scopes": "acc_in_scratch"}) == knobs | {"scopes": "scratch"}
    assert TARGET.mended_knobs(knobs) == knobs


def test_a_configuration_is_explained_in_one_line():
    config = TARGET.config_from_knobs(TARGET.heuristic_config(problem(4096, 4096, 4096), DEVICE))
    text = TARGET.explain(problem(4096, 4096, 4096), config, DEVICE)
    assert " us, bound by power (power " in text and "\n" not in text


def test_a_shared_operand_sets_a_problem_apart_from_a_batch_of_both():
    shared = problem(128, 128, 64, batch=4, broadcast="lhs")
    assert TARGET.distance(shared, problem(128, 128, 64, batch=4)) == math.inf
    assert TARGET.distance(shared, problem(128, 128, 64, batch=8, broadcast="lhs")) == 1.0


@pytest.mark.parametrize(
    ("fields", "activations", "weights"),
    [
        ({"broadcast": "lhs"}, 128 * 64 * 2, 4 * 64 * 256 * 2),
        ({"broadcast": "rhs", "layout": "tn"}, 4 * 128 * 64 * 2, 64 * 256 * 2),
    ],
)
def test_the_bytes_of_a_shared_operand_are_those_of_one(fields, activations, weights):
    roles = TARGET.operand_roles(problem(128, 256, 64, batch=4, **fields))
    assert roles == {"activations": activations, "weights": weights}


@pytest.mark.parametrize(
    "fields",
    [
        {"broadcast": "lhs"},
        {"broadcast": "lhs", "layout": "tt", "m": 16},
        {"broadcast": "rhs", "layout": "tn", "n": 4100},
        {"broadcast": "rhs", "layout": "tt", "m": 1},
    ],
)
def test_a_shared_operand_has_a_legal_untuned_choice_in_its_space(fields):
    shared = problem(**({"m": 512, "n": 4096, "k": 1000, "batch": 6} | fields))
    knobs = TARGET.heuristic_config(shared, DEVICE)
    assert not TARGET.check(shared, TARGET.config_from_knobs(knobs), DEVICE)
    space = TARGET.space(shared, DEVICE, {name: [value] for name, value in knobs.items()})
    assert space.legal().size == 1
