"""Which evaluator and device a run takes, and the line that says so."""

from __future__ import annotations

import pytest

from autotune import choice, machine
from autotune.errors import InputError
from autotune.evaluate import RecordedSpace, write_recorded
from autotune.runconfig import load_run_config
from autotune.target import load_target
from tests.unit.test_machine import gpu

TARGET = load_target("hopper_matmul")
PROBLEM = TARGET.problem_from_fields({"m": 64, "n": 128, "k": 256})


@pytest.fixture
def on(monkeypatch, tmp_path):
    """Returns a function that chooses for a config text on a machine with the given GPUs."""
    monkeypatch.setattr(machine, "has_cuda_jax", lambda: True)
    monkeypatch.setattr(choice, "recorded_folders", lambda config: [tmp_path / "recorded"])

    def choose(*gpus, text: str = ""):
        monkeypatch.setattr(machine, "gpus", lambda: list(gpus))
        path = tmp_path / "run.yaml"
        path.write_text("problems: [{m: 64, n: 128, k: 256}]\n" + text)
        return choice.choose(load_run_config(path), TARGET)

    return choose


def recorded(folder, kind: str = "NVIDIA H200") -> None:
    space = RecordedSpace(
        target="hopper_matmul",
        problem=PROBLEM.to_fields(),
        device={"kind": kind},
        date="2026-11-30",
        versions={},
        source_digest="x",
        protocol={"timer": "cupti", "l2": "clean", "rounds": 20, "warmup": 2},
        command="test",
        knobs={"tile_m": (64, 128), "stages": (2, 3, 4)},
        rows={},
    )
    write_recorded(folder / "recorded" / f"{kind[-3:]}.json.gz", space)


def test_auto_takes_the_hopper_gpu_as_it_is(on):
    chosen = on(gpu(0, "GPU-a"))
    assert (chosen.kind, chosen.gpu.index, chosen.device.sm_count) == ("gpu", 0, 132)
    assert chosen.why == "evaluator gpu: NVIDIA H200 (GPU 0, driver 580.159.04)"


def test_auto_replays_without_a_gpu_where_every_problem_is_recorded(on, tmp_path):
    recorded(tmp_path)
    chosen = on()
    assert (chosen.kind, chosen.device.kind, list(chosen.recorded)) == ("replay", "NVIDIA H200", [PROBLEM])
    assert chosen.why.startswith(
        "evaluator replay: no Hopper GPU here; times were recorded on NVIDIA H200 (2026-11-30)"
    )


def test_auto_lowers_where_nothing_is_recorded(on):
    chosen = on()
    assert (chosen.kind, chosen.device.kind) == ("lower", "NVIDIA H200")
    assert chosen.why == (
        "evaluator lower: no Hopper GPU here, and no recorded space of 64x128x256 bfloat16 nn; "
        "candidates are lowered for NVIDIA H200, nothing is measured"
    )


def test_a_recording_of_another_device_is_not_taken_for_a_named_one(on, tmp_path):
    recorded(tmp_path)
    chosen = on(text="device: NVIDIA H100 PCIe")
    assert (chosen.kind, chosen.device.kind) == ("lower", "NVIDIA H100 PCIe")


def test_a_gpu_of_another_architecture_is_named_as_the_reason(on):
    assert "no Hopper GPU here, only NVIDIA A100" in on(gpu(0, "GPU-a", "NVIDIA A100", (8, 0))).why


def test_a_gpu_that_jax_cannot_use_is_not_taken_silently(on, monkeypatch):
    monkeypatch.setattr(machine, "has_cuda_jax", lambda: False)
    chosen = on(gpu(0, "GPU-a"))
    assert chosen.kind == "lower"
    assert "NVIDIA H200 is here, but jax has no CUDA plugin (install hopper-autotune[cuda12]" in chosen.why
    with pytest.raises(InputError, match="jax has no CUDA plugin"):
        on(gpu(0, "GPU-a"), text="evaluator: gpu")


def test_what_was_asked_for_and_is_not_here_is_an_error(on, tmp_path):
    with pytest.raises(
        InputError, match=r"run\.yaml: evaluator=gpu: no Hopper GPU here; use auto, replay or lower"
    ):
        on(text="evaluator: gpu")
    with pytest.raises(
        InputError, match=r"evaluator=replay: no recorded space of 64x128x256 bfloat16 nn; use"
    ):
        on(text="evaluator: replay")
    with pytest.raises(InputError, match=r"evaluator=gpu: the GPU here is NVIDIA H200, not NVIDIA H100 PCIe"):
        on(gpu(0, "GPU-a"), text="evaluator: gpu\ndevice: NVIDIA H100 PCIe")
    with pytest.raises(InputError, match=r"gpus: there is no Hopper GPU 3 here; allowed: 0, 1"):
        on(gpu(0, "GPU-a"), gpu(1, "GPU-b"), text="gpus: [3]")


def test_the_gpus_of_the_config_are_taken_in_its_order(on):
    assert on(gpu(0, "GPU-a"), gpu(1, "GPU-b"), text="gpus: [1]").gpu.index == 1


def test_a_replay_searches_what_was_recorded_within_what_was_asked(on, tmp_path):
    recorded(tmp_path)
    chosen = on(text="space: {stages: [3, 4, 6]}")
    config = load_run_config(tmp_path / "run.yaml")
    space = choice.narrowed(config, chosen.recorded[PROBLEM], TARGET).space
    assert {name: space[name] for name in ("stages", "tile_m")} == {"stages": (3, 4), "tile_m": (64, 128)}
    # what came after the recording, and what it left out, is neutral
    assert (space["split_k"], space["swap_ab"]) == ((1,), (False,))
    assert choice.unrecorded(config, chosen.recorded[PROBLEM]) == {"stages": [6]}
    on(text="space: {stages: [5, 6]}")
    config = load_run_config(tmp_path / "run.yaml")
    with pytest.raises(
        InputError, match=r"space\.stages=5, 6: the recorded space has none of these; allowed: 2, 3, 4"
    ):
        choice.narrowed(config, chosen.recorded[PROBLEM], TARGET)
