"""The bench's tables, worked out by hand on scripted races."""

from __future__ import annotations

import csv
import dataclasses
import io
from pathlib import Path

import pytest

from autotune import benchverb, torchrival
from autotune.benchtable import BenchRow, csv_text, geometric_means, markdown
from autotune.benchverb import filled, roofline
from autotune.errors import InputError
from autotune.runconfig import RaceSettings
from autotune.seam import Failed, MeasureProtocol, Outcome, Race, RaceEntry
from autotune.target import load_target
from tests.helpers.best_entries import KNOBS
from tests.helpers.scripted import measured

TARGET = load_target("hopper_matmul")
CONFIG = TARGET.config_from_knobs(KNOBS)
CEILINGS = {"copy_bytes_per_s": 4e12, "product_flops_per_s": 8e14}


def row(**changes):
    fields = {
        "family": "large",
        "problem": TARGET.problem_from_fields({"m": 4096, "n": 4096, "k": 4096}),
        "ours": "kernel",
        "match": "exact",
        "protocol": MeasureProtocol(),
    }
    return BenchRow(**(fields | changes))


def raced(own_us, **rivals_us):
    entries = [] if own_us is None else [RaceEntry(finalist=0, result=measured({}, [own_us] * 6))]
    entries += [
        RaceEntry(finalist=None, result=measured({name: 1}, [us] * 6), formulation=name)
        for name, us in rivals_us.items()
    ]
    return Race(entries=tuple(entries), ceilings=CEILINGS)


def test_a_row_has_both_ratios_and_the_fraction_of_the_roofline():
    found = filled(row(), CONFIG, raced(200.0, plain=220.0, cublaslt=210.0))
    assert (found.ours_us, found.plain_us, found.best_us, found.formulation) == (
        200.0,
        220.0,
        210.0,
        "cublaslt",
    )
    assert (found.plain, found.best) == ((1.1, 1.1, 1.1), (1.05, 1.05, 1.05))
    # 2 x 4096^3 flops at 800 TFLOP/s take 171.8 us
    assert found.roofline == pytest.approx(0.859, abs=1e-3)


def test_what_memory_bounds_is_held_against_the_copy():
    skinny = TARGET.problem_from_fields({"m": 16, "n": 4096, "k": 4096})
    # 33.8 MB at 4 TB/s take 8.45 us
    assert roofline(skinny, raced(10.0), 16.9) == pytest.approx(0.5, abs=1e-3)


def test_the_dispatch_to_xla_is_measured_as_xla_itself():
    found = filled(row(ours="xla"), None, raced(None, plain=100.0, padded=80.0))
    assert (found.ours_us, found.best_us, found.formulation) == (100.0, 80.0, "padded")
    assert found.plain[1] == 1.0 and found.best[1] == pytest.approx(0.8)


def test_where_the_lookup_says_xla_the_interval_is_what_the_race_could_tell_apart():
    race = Race(
        entries=(RaceEntry(finalist=None, result=measured({}, [10.2, 10.0] * 3), formulation="plain"),)
    )
    found = filled(row(ours="xla"), None, race)
    assert found.best == pytest.approx((1.0, 1.0, 1.02))
    assert "1.000 - 1.020" in markdown([found])


def test_a_kernel_that_failed_is_a_note_and_no_time():
    broken = Race(entries=(RaceEntry(finalist=0, result=Failed(reason="wrong", detail="error 0.4")),))
    found = filled(row(), CONFIG, broken)
    assert found.ours_us is None and found.note == "wrong: error 0.4"
    assert "wrong: error 0.4" in markdown([found])


def test_geometric_means_are_by_family_and_then_of_all():
    ratio = lambda value: (value, value, value)  # noqa: E731
    rows = [
        row(plain=ratio(1.0), best=ratio(1.0), roofline=0.5),
        row(plain=ratio(4.0), best=ratio(0.25), roofline=0.5),
        row(family="skinny", plain=ratio(2.0), best=ratio(0.5), roofline=0.5),
        row(family="skinny", note="not measured"),
    ]
    means = {name: (count, plain, best) for name, count, plain, best, _ in geometric_means(rows)}
    assert means["large"] == pytest.approx((2, 2.0, 0.5))
    assert means["skinny"] == pytest.approx((1, 2.0, 0.5))
    assert means["all"] == pytest.approx((3, 2.0, 0.5))


def test_the_csv_is_read_back():
    found = filled(row(), CONFIG, raced(200.0, plain=220.0))
    (read,) = csv.DictReader(io.StringIO(csv_text([found])))
    assert (read["problem"], read["ours_us"], read["ratio"]) == ("4096x4096x4096 bfloat16 nn", "200.0", "1.1")


def test_problems_come_from_sizes_and_from_a_suite_with_its_families(tmp_path):
    suite = tmp_path / "suite.csv"
    suite.write_text("family,m,n,k\nlarge,4096,4096,4096\nsmall,64,64,64\n")
    assert [family for family, _ in benchverb.asked_problems(str(suite), [512, 512, 512])] == [
        "large",
        "small",
        "given",
    ]
    for suite_name, sizes in ((None, [1, 2]), (None, []), (None, [0, 1, 1])):
        with pytest.raises(InputError, match="bench: "):
            benchverb.asked_problems(suite_name, sizes)


def test_kernel_only_takes_a_kernel_where_the_lookup_says_xla(monkeypatch):
    device = TARGET.device_named("NVIDIA H200")
    monkeypatch.setattr(benchverb.lookup, "best_config", lambda *_, **__: _XlaAnswer())
    problem = TARGET.problem_from_fields({"m": 4096, "n": 4096, "k": 4096})
    assert benchverb.chosen(problem, TARGET, device, kernel_only=False)[0] == "xla"
    ours, _, config = benchverb.chosen(problem, TARGET, device, kernel_only=True)
    assert ours == "kernel" and not TARGET.check(problem, config, device)


def test_a_shared_operand_is_looked_up_as_such(monkeypatch):
    asked = {}
    monkeypatch.setattr(benchverb.lookup, "best_config", lambda **given: asked.update(given) or _XlaAnswer())
    problem = TARGET.problem_from_fields({"batch": 4, "m": 64, "n": 96, "k": 128, "broadcast": "lhs"})
    benchverb.chosen(problem, TARGET, TARGET.device_named("NVIDIA H200"), kernel_only=False)
    assert {name: asked[name] for name in ("batch", "m", "n", "k", "dtype", "broadcast")} == {
        "batch": 4, "m": 64, "n": 96, "k": 128, "dtype": "bfloat16", "broadcast": "lhs",
    }  # fmt: skip


class _XlaAnswer:
    backend, match, config = "xla", "exact", None


def test_torch_says_its_time_or_why_there_is_none():
    assert torchrival.parsed(0, "warming\n12.5\n", "") == {"torch_us": 12.5}
    assert torchrival.parsed(0, '"two operands of one dtype"', "") == {"note": "two operands of one dtype"}
    assert torchrival.parsed(1, "", "Traceback\nRuntimeError: no CUDA\n") == {
        "note": "torch: RuntimeError: no CUDA"
    }


class Ceilings:
    """An evaluator that races at once; what the card can do comes only where it was asked for."""

    kind, capacity = "gpu", 4

    def __init__(self):
        self.asked, self._waiting = [], []

    def submit(self, job):
        self._waiting.append(job)
        self.asked.append((job.problem.m, job.ceilings))

    def poll(self, timeout_s):
        job = self._waiting.pop()  # the last one first
        race = raced(200.0, plain=220.0)
        ceilings = CEILINGS if job.ceilings else None
        return [Outcome(job_id=job.job_id, result=dataclasses.replace(race, ceilings=ceilings))]


def test_what_the_card_can_do_is_measured_once_and_serves_every_row_of_its_kind():
    device = TARGET.device_named("NVIDIA H200")
    problems = [TARGET.problem_from_fields({"m": m, "n": 4096, "k": 4096}) for m in (4096, 8192)]
    settings = RaceSettings(processes=2)
    asked = [
        benchverb.asked_row("large", problem, TARGET, device, settings, kernel_only=True)
        for problem in problems
    ]
    evaluator = Ceilings()
    rows = dict(benchverb.measured_rows(asked, evaluator, settings))
    assert [ceilings for _, ceilings in evaluator.asked].count(True) == 1
    # 2 m 4096^2 flops at 800 TFLOP/s over 200 us
    assert rows[0].roofline == pytest.approx(0.859, abs=1e-3)
    assert rows[1].roofline == pytest.approx(1.718, abs=1e-3)


def test_a_bench_says_before_it_measures_where_it_cannot_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(benchverb.machine, "hopper_gpus", lambda: [object()])
    monkeypatch.setattr(benchverb.machine, "has_cuda_jax", lambda: True)
    (tmp_path / "out" / "bench.md").mkdir(parents=True)
    refused = {
        "x" * 300: "File name too long",
        "/proc/x": "/proc/x cannot",
        "out": "out/bench.md is a folder",
    }
    for out, said in refused.items():
        with pytest.raises(
            InputError, match=r"--out=.*: allowed: a folder that can be written, but "
        ) as caught:
            benchverb.bench([], out=Path(out))
        assert said in str(caught.value)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["bench.md"]
