"""best_config: which answer it gives, how it says it was found, and that it is legal for what was asked."""

from __future__ import annotations

import json
import os
import warnings

import pytest

import autotune
from autotune import lookup
from autotune.bestfile import BestFileWarning
from tests.helpers.best_entries import H200, KNOBS, TARGET, best_file, entry, problem

WIDE = {"tile_m": 128, "tile_n": 256, "tile_k": 64, "stages": 4}


@pytest.fixture(autouse=True)
def best(tmp_path, monkeypatch):
    """A folder of best files that nothing else is in, on a machine without a GPU."""
    folder = tmp_path / "results" / "best"
    folder.mkdir(parents=True)
    monkeypatch.setattr(lookup, "best_folders", lambda: (folder,))
    monkeypatch.setattr(lookup, "_kind_here", lambda: None)
    lookup._answers.clear()
    lookup._files.clear()
    return folder


def knobs(answer) -> dict:
    return answer.config.to_knobs()


def test_a_measured_problem_on_its_device_is_exact(best):
    path = best_file(best, entry(knobs=WIDE, ratio=1.1))
    for device in ("NVIDIA H200", "nvidia_h200"):
        answer = autotune.best_config(4096, 4096, 4096, device=device)
        assert (answer.match, answer.backend, answer.time_us, answer.xla_time_us) == (
            "exact",
            "kernel",
            100.0,
            110.0,
        )
        assert knobs(answer)["tile_n"] == 256
        assert (answer.problem, answer.device, answer.path) == (problem(), "NVIDIA H200", path)
        assert (answer.jax, answer.driver, answer.ratio.median) == ("0.12.0.1", "580.1", 1.1)


def test_where_xla_won_the_answer_is_xla_and_its_time(best):
    best_file(best, entry(backend="xla", ratio=0.9))
    answer = autotune.best_config(4096, 4096, 4096, device="NVIDIA H200")
    assert (answer.match, answer.backend, answer.time_us) == ("exact", "xla", 90.0)


def test_a_neighbour_answers_as_nearest_and_the_nearer_one_first(best):
    best_file(best, entry(problem(m=2048)), entry(problem(m=4096, n=6144), knobs=WIDE))
    answer = autotune.best_config(4096, 4096, 4096, device="NVIDIA H200")
    # log2(6144 / 4096) = 0.58 is less than log2(4096 / 2048) = 1
    assert (answer.match, answer.problem.n, knobs(answer)["tile_n"]) == ("nearest", 6144, 256)


def test_a_neighbour_that_xla_won_answers_xla(best):
    best_file(best, entry(problem(m=2048), backend="xla", ratio=0.8))
    answer = autotune.best_config(4096, 4096, 4096, device="NVIDIA H200")
    assert (answer.match, answer.backend) == ("nearest", "xla")


# 4 x 32 tiles of 128x128 run at once; of 384x6144 there are 3 x 48, which take two turns of 132 SMs.
SQUARE = {"tile_m": 128, "tile_n": 128, "tile_k": 64, "stages": 5, "compute_wgs": 2}


def test_a_neighbour_whose_tiles_do_not_fit_is_passed_over_for_the_untuned_choice(best):
    best_file(best, entry(problem(m=512), knobs=SQUARE))
    answer = autotune.best_config(384, 6144, 3072, device="NVIDIA H200")
    assert answer.match == "heuristic"
    asked = problem(m=384, n=6144, k=3072)
    predicted_us = [TARGET.predicted_us(asked, config, H200) for config in (answer.config, config_of(SQUARE))]
    assert predicted_us[0] < 0.8 * predicted_us[1]
    near = autotune.best_config(512, 4096, 3072, device="NVIDIA H200")
    assert (near.match, near.problem.k) == ("nearest", 4096)


def test_of_a_neighbour_that_xla_won_a_kernel_that_does_not_fit_is_not_told(best):
    best_file(best, entry(problem(m=512), backend="xla", ratio=0.9, knobs=SQUARE))
    answer = autotune.best_config(384, 6144, 3072, device="NVIDIA H200")
    assert (answer.match, answer.backend, answer.config) == ("nearest", "xla", None)


def test_what_xla_won_further_off_says_nothing_where_a_kernel_won_nearer_by(best):
    further = entry(problem(m=384, n=3500), backend="xla", ratio=0.9, knobs=WIDE)
    best_file(best, entry(problem(m=512), knobs=SQUARE), further)
    answer = autotune.best_config(384, 6144, 3072, device="NVIDIA H200")
    assert (answer.match, answer.backend) == ("heuristic", "kernel")


def config_of(knobs: dict):
    return TARGET.config_from_knobs(knobs)


# 48 parts of one step each: k = 3072 has 48 steps of 64, k = 2048 has 32.
MANY_PARTS = {"tile_m": 128, "tile_n": 128, "tile_k": 64, "stages": 4, "compute_wgs": 2, "split_k": 48}


def test_a_neighbour_that_is_illegal_for_the_asked_shape_is_passed_over(best):
    best_file(best, entry(problem(k=3072), knobs=MANY_PARTS), entry(problem(k=4096), knobs=WIDE))
    answer = autotune.best_config(4096, 4096, 2048, device="NVIDIA H200")
    assert (answer.match, answer.problem.k, knobs(answer)["split_k"]) == ("nearest", 4096, 1)
    assert TARGET.check(problem(k=2048), answer.config, H200) == ()


def test_an_exact_entry_that_has_become_illegal_is_not_used(best):
    best_file(best, entry(problem(k=2048), knobs=MANY_PARTS))
    answer = autotune.best_config(4096, 4096, 2048, device="NVIDIA H200")
    assert answer.match == "heuristic"
    assert TARGET.check(problem(k=2048), answer.config, H200) == ()


@pytest.mark.parametrize(
    "asked",
    [{"dtype": "float16"}, {"out_dtype": "float32"}, {"layout": "nt"}, {"m": 65536}, {"epilogue": "bias"}],
)
def test_another_class_or_a_far_size_is_no_neighbour(best, asked):
    best_file(best, entry())
    answer = autotune.best_config(**{"m": 4096, "n": 4096, "k": 4096, "device": "NVIDIA H200", **asked})
    assert answer.match == "heuristic"


def test_another_device_answers_where_the_own_one_was_not_measured(best):
    best_file(best, entry(knobs=WIDE), kind="NVIDIA H200")
    answer = autotune.best_config(4096, 4096, 4096, device="NVIDIA H100 PCIe")
    assert (answer.match, answer.device) == ("other_device", "NVIDIA H200")
    assert autotune.best_config(4096, 4096, 2048, device="NVIDIA H100 PCIe").match == "other_device"


def test_without_a_gpu_the_shipped_file_answers_as_another_device(best):
    best_file(best, entry())
    answer = autotune.best_config(4096, 4096, 4096)
    assert (answer.match, answer.device) == ("other_device", "NVIDIA H200")


def test_the_gpu_of_this_machine_is_asked_for_where_none_is_named(best, monkeypatch):
    best_file(best, entry())
    monkeypatch.setattr(lookup, "_kind_here", lambda: "NVIDIA H200")
    assert autotune.best_config(4096, 4096, 4096).match == "exact"
    monkeypatch.setattr(lookup, "_kind_here", lambda: "NVIDIA A100-SXM4-80GB")
    assert autotune.best_config(4096, 4096, 4096).match == "other_device"


def test_with_nothing_measured_the_heuristic_answers_without_times(best):
    answer = autotune.best_config(4096, 4096, 4096, device="NVIDIA H200")
    assert answer == autotune.Heuristic(config=answer.config, backend="kernel")
    assert TARGET.check(problem(), answer.config, H200) == ()
    assert not hasattr(answer, "time_us")


def test_a_problem_that_no_kernel_computes_is_xlas(best):
    answer = autotune.best_config(4096, 4096, 4096, epilogue="bias", device="NVIDIA H200")
    assert (answer.config, answer.backend, answer.match) == (None, "xla", "heuristic")


def test_policy_exact_takes_nothing_else(best):
    best_file(best, entry())
    assert autotune.best_config(4096, 4096, 4096, device="nvidia_h200", policy="exact").match == "exact"
    with pytest.raises(LookupError) as caught:
        autotune.best_config(4096, 4096, 2048, device="nvidia_h200", policy="exact")
    assert str(caught.value).startswith("4096x4096x2048 bfloat16 nn was not measured on NVIDIA H200; ")
    assert "\n" not in str(caught.value)
    with pytest.raises(autotune.NotMeasuredError, match="this machine, which has no Hopper GPU"):
        autotune.best_config(4096, 4096, 4096, policy="exact")


def test_a_changed_file_is_read_again(best):
    best_file(best, entry(knobs=KNOBS))
    assert knobs(autotune.best_config(4096, 4096, 4096, device="NVIDIA H200"))["tile_n"] == 128
    best_file(best, entry(knobs=WIDE))
    assert knobs(autotune.best_config(4096, 4096, 4096, device="NVIDIA H200"))["tile_n"] == 256


def test_a_file_that_appears_is_seen(best):
    assert autotune.best_config(4096, 4096, 4096, device="NVIDIA H200").match == "heuristic"
    best_file(best, entry())
    assert autotune.best_config(4096, 4096, 4096, device="NVIDIA H200").match == "exact"


def test_a_repeated_question_is_not_looked_up_again(best, monkeypatch):
    best_file(best, entry())
    first = autotune.best_config(4096, 4096, 4096, device="NVIDIA H200")
    monkeypatch.setattr(lookup, "load_target", None)
    assert autotune.best_config(4096, 4096, 4096, device="NVIDIA H200") is first


@pytest.mark.parametrize("text", ["", '{"schema": 99, "entries": {}}'])
def test_a_torn_or_newer_file_warns_and_does_not_stop_a_model(best, text):
    (best / "nvidia_h200.json").write_text(text)
    with pytest.warns(BestFileWarning, match=r"nvidia_h200\.json"):
        assert autotune.best_config(4096, 4096, 4096, device="NVIDIA H200").match == "heuristic"


def test_a_broken_entry_warns_and_its_neighbour_answers(best):
    path = best_file(best, entry(knobs=WIDE), entry(problem(m=2048)))
    content = json.loads(path.read_text())
    next(iter(content["entries"].values()))["kernel_us"] = -1
    path.write_text(json.dumps(content))
    with pytest.warns(BestFileWarning, match="kernel_us=-1"):
        answer = autotune.best_config(2048, 4096, 4096, device="NVIDIA H200")
    assert (answer.match, answer.problem.m) == ("nearest", 4096)


def test_the_first_folder_wins(tmp_path, monkeypatch):
    best_file(tmp_path / "a", entry(knobs=WIDE))
    best_file(
        tmp_path / "b",
        entry(knobs=KNOBS),
        entry(problem(m=64), knobs={**KNOBS, "tile_m": 64, "compute_wgs": 1}),
    )
    monkeypatch.setattr(lookup, "best_folders", lambda: (tmp_path / "a", tmp_path / "b"))
    assert knobs(autotune.best_config(4096, 4096, 4096, device="NVIDIA H200"))["tile_n"] == 256
    assert autotune.best_config(64, 4096, 4096, device="NVIDIA H200").match == "exact"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"m": 0}, "m=0: allowed: a whole number from 1 to 2147483647"),
        ({"m": 1.5}, "m=1.5: allowed"),
        ({"m": -1}, "m=-1: allowed: a whole number from 1 to 2147483647"),
        ({"m": "64"}, "m='64': allowed: a whole number of type int, or of numpy's integers"),
        ({"n": 64.0}, "n=64.0: allowed: a whole number"),
        ({"k": True}, "k=true: allowed: a whole number"),
        ({"batch": "2"}, "batch='2': allowed: a whole number"),
        ({"groups": None}, "groups=null: allowed: a whole number"),
        ({"dtype": ["bfloat16"]}, "dtype=['bfloat16']: allowed: bfloat16"),
        ({"dtype": "bf16"}, "dtype='bf16': allowed: bfloat16"),
        ({"layout": "xx"}, "layout='xx': allowed: nn, nt, tn, tt"),
        ({"batch": 2, "broadcast": "left"}, "broadcast='left': allowed: none, lhs, rhs"),
        ({"broadcast": "rhs"}, "broadcast='rhs': allowed: none where batch is 1"),
        ({"device": "NVIDIA H20"}, "device='NVIDIA H20': allowed: NVIDIA H200"),
        ({"policy": "closest"}, "policy='closest': allowed: nearest, exact"),
    ],
)
def test_an_impossible_question_says_what_is_allowed(asked, said):
    with pytest.raises(ValueError, match="allowed") as caught:
        autotune.best_config(**{"m": 64, "n": 64, "k": 64, **asked})
    assert str(caught.value).startswith(said)


def test_a_kept_answer_is_not_given_to_a_size_that_only_equals_its_own():
    assert autotune.best_config(1, 64, 64, device="NVIDIA H200") is not None
    with pytest.raises(ValueError, match="m=true: allowed"):
        autotune.best_config(True, 64, 64, device="NVIDIA H200")
    with pytest.raises(ValueError, match=r"n=64\.0: allowed"):
        autotune.best_config(1, 64.0, 64, device="NVIDIA H200")


def test_dtypes_and_sizes_of_numpy_and_jax_are_understood(best):
    import jax.numpy as jnp
    import numpy as np

    best_file(best, entry())
    for dtype in ("bfloat16", jnp.bfloat16, jnp.dtype("bfloat16")):
        assert (
            autotune.best_config(np.int64(4096), 4096, 4096, dtype=dtype, device="NVIDIA H200").match
            == "exact"
        )


def test_jax_is_never_made_to_start_a_backend(monkeypatch):
    import jax._src.xla_bridge as bridge

    monkeypatch.undo()
    monkeypatch.setattr(bridge, "_backends", {})
    monkeypatch.setattr(lookup, "_jax_kind", [])
    monkeypatch.setattr(lookup, "_driver_kind", ["NVIDIA H200"])
    monkeypatch.setattr("jax.local_devices", lambda **_: pytest.fail("started a backend"))
    assert lookup._kind_here() == "NVIDIA H200"


def test_the_checkout_comes_before_the_copy_in_the_wheel_and_a_named_folder_before_both(
    monkeypatch, tmp_path
):
    folders = lookup.best_folders
    monkeypatch.undo()
    assert lookup.best_folders is not folders
    monkeypatch.setenv("AUTOTUNE_RESULTS", str(tmp_path))
    root = os.path.dirname(os.path.dirname(os.path.abspath(lookup.__file__)))
    assert [str(folder) for folder in lookup.best_folders()] == [
        f"{tmp_path}/best",
        f"{root}/results/best",
        f"{root}/autotune/_results/best",
    ]


def test_what_ships_can_be_read_and_is_legal_where_it_was_measured(monkeypatch):
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error", BestFileWarning)
        for folder in lookup.best_folders():
            for path in folder.glob("*.json"):
                shipped = lookup.read_best(path)
                device = TARGET.device_named(shipped.device["kind"])
                for _, one in shipped.entries():
                    if one.config is not None:
                        assert not TARGET.check(one.problem, one.config, device), one.problem.describe()


def test_a_batch_of_rows_with_one_rhs_is_answered_as_the_product_that_it_is(best):
    best_file(best, entry(knobs=WIDE))
    answer = autotune.best_config(512, 4096, 4096, batch=8, broadcast="rhs", device="NVIDIA H200")
    assert (answer.match, answer.problem) == ("exact", problem())


def test_an_answer_for_a_shared_operand_is_for_no_batch_of_both(best):
    shared = problem(m=512, batch=8, broadcast="lhs")
    best_file(best, entry(shared, knobs=WIDE))
    asked = {"m": 512, "n": 4096, "k": 4096, "batch": 8, "device": "NVIDIA H200"}
    assert autotune.best_config(**asked, broadcast="lhs").problem == shared
    assert autotune.best_config(**asked).match == "heuristic"
