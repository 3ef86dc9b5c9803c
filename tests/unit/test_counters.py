"""Hardware counters: what ncu's output says, which lanes are asked for, and runs of an ncu that is a script."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from autotune.bestfile import read_best
from benchmarks import counter_run, counters
from benchmarks.counter_lanes import TARGET, CounterLane, lanes_of_best, lanes_of_experiments
from benchmarks.counter_log import Kernel, by_lane, kernels_of, messages, unknown_metrics
from benchmarks.counter_table import DRAM, HEADINGS, L2_HITS, METRICS, TENSOR, TIME, json_rows, table_row
from tests.helpers.best_entries import H200, KNOBS, best_file, entry, problem
from tests.helpers.card import CARD

KEPT = Path(__file__).resolve().parents[2] / "results" / "counters"
# The raw page of two lanes, as ncu writes it into its log.
RAW = """\
==PROF== Connected to process 4711 (/usr/bin/python3.12)
==PROF== Profiling "counters_lane_0" - 0: 0%....50%....100% - 9 passes
==PROF== Profiling "hopper_matmul" - 1: 0%....50%....100% - 9 passes
==PROF== Disconnected from process 4711
==WARNING== Metric lts__t_sector_hit_rate.pct is not there for every kernel
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"dram__bytes_read.sum","gpu__time_duration.sum","launch__registers_per_thread","lts__t_sector_hit_rate.pct"
"","","","","","","","","","","","byte","ns","register/thread","%"
"0","4711","python3.12","127.0.0.1","counters_lane_0","1","7","(32, 1, 1)","(1, 1, 1)","0","9.0","0","1,120","16","n/a"
"1","4711","python3.12","127.0.0.1","hopper_matmul","1","15","(256, 1, 1)","(132, 1, 1)","0","9.0","134,217,728",\
"31,264.50","168","42.5"
"2","4711","python3.12","127.0.0.1","counters_lane_1","1","7","(32, 1, 1)","(1, 1, 1)","0","9.0","0","1,088","16","0"
"3","4711","python3.12","127.0.0.1","void gemm<(int)4, ""a"">(T1 *, int)","1","15","(384, 1, 1)","(66, 2, 1)","0",\
"9.0","67,108,864","20,000","168","50"
"4","4711","python3.12","127.0.0.1","void reduce<float>(float *, int)","1","15","(128, 1, 1)","(64, 1, 1)","0","9.0",\
"1,048,576","3,000","32","n/a"
"""


def test_the_raw_page_is_read_in_us_and_bytes_and_what_ncu_could_not_read_is_left_out():
    mark, kernel, _, gemm, reduce = kernels_of(RAW)
    assert (mark.name, kernel.name, gemm.name) == (
        "counters_lane_0",
        "hopper_matmul",
        'void gemm<(int)4, "a">(T1 *, int)',
    )
    assert kernel.metrics == {
        "dram__bytes_read.sum": 134_217_728.0,
        "gpu__time_duration.sum": pytest.approx(31.2645),
        "launch__registers_per_thread": 168.0,
        "lts__t_sector_hit_rate.pct": 42.5,
    }
    assert L2_HITS not in reduce.metrics


@pytest.mark.parametrize("unit", ["ns", "nsecond"])
def test_a_time_is_in_us_however_this_ncu_writes_its_base_unit(unit):
    kernel = kernels_of(RAW.replace('"ns"', f'"{unit}"'))[3]
    assert kernel.metrics[TIME] == pytest.approx(20.0)


def test_kernels_belong_to_the_lane_whose_mark_came_before_them():
    found = by_lane(kernels_of(RAW))
    assert {lane: len(kernels) for lane, kernels in found.items()} == {0: 1, 1: 2}
    stray = Kernel(name="before any mark", metrics={})
    assert by_lane([stray, *kernels_of(RAW)]) == found


def test_of_what_ncu_says_errors_and_warnings_are_kept_and_unknown_metrics_found():
    log = (
        "==PROF== Connected\n==ERROR== Failed to find metric regex:^lts__t_bytes(\\.sum)?$\n"
        "==ERROR== Failed to find metric regex:^lts__t_bytes(\\.sum)?$\n"
    )
    said = messages(log)
    assert said == ["==ERROR== Failed to find metric regex:^lts__t_bytes(\\.sum)?$"]
    assert unknown_metrics(said, ["lts__t_bytes.sum", "lts__t_bytes_equiv.sum", TIME]) == ["lts__t_bytes.sum"]
    assert unknown_metrics(["==ERROR== lts__t_bytes.sum is odd"], ["lts__t_bytes.sum"]) == []


def test_a_lane_s_row_has_sums_of_all_kernels_and_the_shares_of_the_longest():
    # 1024 x 1024 x 1024 in bfloat16: operands and result are 3 x 2 MiB.
    lane = CounterLane(problem=problem(1024, 1024, 1024), name="XLA plain", formulation="plain")
    main = {
        TIME: 5.0, TENSOR: 51.25, DRAM: 40.0, "dram__bytes_read.sum": 4 * 2**20, "dram__bytes_write.sum": 2**21,
        "lts__t_bytes.sum": 18 * 2**20, "sm__cycles_elapsed.max": 8000.0, "sm__cycles_active.avg": 6000.0,
        "launch__occupancy_limit_registers": 3.0, "launch__occupancy_limit_shared_mem": 1.0,
    }  # fmt: skip
    rest = {TIME: 1.5, "dram__bytes_read.sum": 2**21, "dram__bytes_write.sum": 2**20, "lts__t_bytes.sum": 0.0}
    kernels = [Kernel(name="sum | parts", metrics=rest), Kernel(name="gemm", metrics=main)]
    cells = [cell.strip() for cell in table_row(lane, kernels, None).strip("|").split("|")]
    assert len(cells) == len(HEADINGS)
    row = list(zip(HEADINGS, cells, strict=True))
    for found in [
        ("problem", "1024x1024x1024 bfloat16 nn"), ("lane", "XLA plain"), ("kernels", "2"), ("us", "6.5"),
        ("tensor %", "51.2"), ("DRAM %", "40.0"), ("DRAM MB", "9.4"), ("DRAM over least", "1.50"),
        ("L2 MB", "18.9"), ("L2 over least", "3.00"), ("SMs busy %", "75.0"), ("CTAs an SM", "1"), ("to SMs MB", "-"),
        ("main kernel", "gemm"),
    ]:  # fmt: skip
        assert found in row
    assert [line["kernel"] for line in json_rows(lane, kernels, None)] == ["sum | parts", "gemm"]
    assert table_row(lane, (), "memory: a | b").endswith("| XLA plain | memory: a / b |")
    assert table_row(lane, (), "x" * 200).endswith(f"| XLA plain | {'x' * 120} |")
    assert len(set(HEADINGS)) == len(HEADINGS)


def test_an_entry_that_went_to_xla_is_read_with_its_kernel_and_an_unknown_problem_with_the_heuristic_s(
    tmp_path,
):
    skinny = problem(16, 4096, 4096)
    found = read_best(best_file(tmp_path, entry(), entry(skinny, backend="xla", ratio=0.9)))
    lanes = lanes_of_best(found, ["16x4096x4096", "2x512x512x256"], ["plain", "cublaslt"], H200)
    assert [(lane.problem.describe(), lane.name) for lane in lanes] == [
        ("16x4096x4096 bfloat16 nn", "kernel"),
        ("16x4096x4096 bfloat16 nn", "XLA plain"),
        ("16x4096x4096 bfloat16 nn", "XLA cublaslt"),
        ("2x512x512x256 bfloat16 nn", "heuristic kernel"),
        ("2x512x512x256 bfloat16 nn", "XLA plain"),
        ("2x512x512x256 bfloat16 nn", "XLA cublaslt"),
    ]
    assert (lanes[0].config.stages, lanes[1].config) == (KNOBS["stages"], None)
    assert len(lanes_of_best(found, ["all"], ["plain"], H200)) == 4
    with pytest.raises(ValueError, match="'16x4096 float64' begins no entry's description"):
        lanes_of_best(found, ["16x4096 float64"], ["plain"], H200)


def test_variants_of_a_file_are_lanes_and_an_illegal_one_is_named():
    variants = {"base": {}, "three stages": {"stages": 3}}
    experiment = {"problem": {"m": 512, "n": 512, "k": 512}, "knobs": KNOBS, "variants": variants}
    lanes = lanes_of_experiments([experiment], ["plain"], H200)
    assert [lane.name for lane in lanes] == ["base", "three stages", "XLA plain"]
    assert [lane.config.stages for lane in lanes[:2]] == [4, 3]
    with pytest.raises(ValueError, match="512x512x512 bfloat16 nn, deep: "):
        lanes_of_experiments([experiment | {"variants": {"deep": {"stages": 40}}}], ["plain"], H200)


# An ncu that launches nothing: it says the steps of the process it should start, and writes a page at its end.
FAKE = """#!{python}
import json, os, pickle, subprocess, sys
arguments = sys.argv[1:]
open({calls!r}, "a").write(json.dumps(arguments) + "\\n")
job = pickle.loads(open(arguments[-1], "rb").read())
metrics = arguments[arguments.index("--metrics") + 1].split(",")
progress = open(job.progress, "a", buffering=1)
page = []


def say(**step):
    progress.write(json.dumps(step) + "\\n")


def read(lane, *kernels):
    say(lane=lane, step="begin")
    page.extend(["counters_lane_%d" % lane, *kernels])
    say(lane=lane, step="done")


def end(code, *lines):
    with open(arguments[arguments.index("--log-file") + 1], "w") as log:
        print("==PROF== Disconnected from process 1", *lines, sep="\\n", file=log)
        if page:
            print(*(json.dumps(name) for name in ["ID", "Kernel Name", *metrics]), sep=",", file=log)
            print(*(json.dumps(unit) for unit in ["", "", *["ns"] * len(metrics)]), sep=",", file=log)
        for place, name in enumerate(page):
            row = [str(place), name, *["1,000"] * len(metrics)]
            print(*(json.dumps(cell) for cell in row), sep=",", file=log)
    sys.exit(code)


{body}
"""
READS_ALL = """
for lane in job.lanes:
    read(lane, "gemm", "sum")
end(0)
"""


@pytest.fixture
def run_with(tmp_path, monkeypatch, capsys):
    """Returns a function that runs the benchmark with such an ncu: exit code, stdout, JSON rows, command lines.

    Its `stderr` is what was last said there, and its `measured` the line of JSON above the rows.
    """
    best = best_file(
        tmp_path / "best", *(entry(problem(size, size, size)) for size in (512, 1024, 2048, 4096))
    )
    calls, out, folder = tmp_path / "calls", tmp_path / "out.jsonl", tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(counters, "card_of", lambda *_: CARD)

    def run(body, *options):
        script = folder / "ncu"
        script.write_text(FAKE.format(python=sys.executable, calls=str(calls), body=body))
        script.chmod(0o755)
        argv = ["counters.py", str(best), "--problems", "all", "--out", str(out), *options]
        monkeypatch.setattr(sys, "argv", argv)
        with pytest.raises(SystemExit) as ended:
            counters.main()
        printed = capsys.readouterr()
        run.stderr = printed.err
        run.measured, *rows = lines_of(out)
        return ended.value.code, printed.out, rows, lines_of(calls)

    return run


def lines_of(path: Path) -> list:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_every_kernel_of_every_lane_is_kept_with_its_problem(run_with, tmp_path):
    code, printed, rows, calls = run_with(READS_ALL)
    assert code == 0
    assert "8 of 8 lanes read" in printed
    assert [(row["problem"]["m"], row["lane"], row["kernel"]) for row in rows[:5]] == [
        (512, "kernel", "gemm"),
        (512, "kernel", "sum"),
        (512, "XLA plain", "gemm"),
        (512, "XLA plain", "sum"),
        (1024, "kernel", "gemm"),
    ]
    assert (rows[0]["metrics"][TIME], rows[0]["knobs"]["stages"], len(rows)) == (1.0, 4, 16)
    assert (tmp_path / "out.jsonl.log").read_text().count('"counters_lane_') == 8
    assert len(calls) == 2  # one problem, then the other three
    assert calls[0][calls[0].index("--clock-control") + 1] == "none"
    assert calls[0][calls[0].index("--metrics") + 1] == ",".join(METRICS)


def test_a_file_says_its_origin_and_keeps_of_a_kernel_only_what_the_table_takes(run_with):
    body = f'metrics += ["device__attribute_clock_rate"]\n{READS_ALL}'
    _, _, rows, _ = run_with(body, "--problems", "512x512x512")
    assert {name: run_with.measured[name] for name in ("device", "power_limit_w", "driver")} == {
        "device": "NVIDIA H200",
        "power_limit_w": 700.0,
        "driver": "580.1",
    }
    assert run_with.measured["command"].endswith(" --problems 512x512x512")
    assert set(run_with.measured) == {
        "date", "device", "power_limit_w", "driver", "jax", "jaxlib", "command"
    }  # fmt: skip
    assert tuple(rows[0]["metrics"]) == METRICS
    long = Kernel(name="gemm", metrics={TENSOR: 93.4567891, DRAM: 17.0})
    (row,) = json_rows(CounterLane(problem=problem(), name="kernel"), [long], None)
    assert row["metrics"] == {TENSOR: 93.4568, DRAM: 17.0}


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.jsonl")), ids=lambda path: path.name)
def test_kept_counters_say_their_origin_and_give_a_row_of_the_table_for_each_lane(path):
    origin, *rows = lines_of(path)
    assert path.name == f"{origin['device'].lower().replace(' ', '_')}-{origin['date']}.jsonl"
    lanes = {}
    for row in rows:
        assert tuple(row["metrics"]) == METRICS
        lanes.setdefault((json.dumps(row["problem"]), row["lane"]), []).append(row)
    for (fields, name), kept in lanes.items():
        lane = CounterLane(problem=TARGET.problem_from_fields(json.loads(fields)), name=name)
        kernels = [Kernel(name=row["kernel"], metrics=row["metrics"]) for row in kept]
        assert "| - |" not in table_row(lane, kernels, None)


def test_the_table_is_printed_once_and_in_one_piece_and_steps_are_said_beside_it(run_with):
    body = """
import time
print("==WARNING== " + "w" * 200)
for lane in job.lanes:
    read(lane, "gemm")
time.sleep(3 * LOOK_S)
end(0)
""".replace("LOOK_S", str(counter_run.LOOK_S))
    _, printed, _, _ = run_with(body)
    first, *table, last = printed.splitlines()
    assert first.startswith("8 lanes by ") and last.startswith("8 of 8 lanes read")
    assert [row.split(" | ")[:2] for row in table] == [
        ["| problem", "lane"],
        ["|" + "---|" * len(HEADINGS)],
        *(
            [f"| {m}x{m}x{m} bfloat16 nn", lane]
            for m in (512, 1024, 2048, 4096)
            for lane in ("kernel", "XLA plain")
        ),
    ]
    said = run_with.stderr.splitlines()
    assert said[:2] == ["0 begin", "0 done"] and "7 done" in said
    assert said.count("==WARNING== " + "w" * 108) == 2  # one of each process, and its beginning alone


def test_ncu_looks_into_the_process_alone_and_not_into_what_xla_starts(run_with):
    _, _, _, calls = run_with(READS_ALL)
    assert calls[0][calls[0].index("--target-processes") + 1] == "application-only"


def test_a_metric_that_ncu_does_not_know_is_left_out_and_the_others_are_read(run_with):
    body = f"""
if {L2_HITS!r} in metrics:
    say(lane=0, step="begin")
    end(9, "==ERROR== Failed to find metric {L2_HITS}")
{READS_ALL}"""
    code, printed, rows, _ = run_with(body)
    assert (code, len(rows)) == (0, 16)
    assert f"without {L2_HITS}, which this ncu does not know" in printed
    assert L2_HITS not in rows[0]["metrics"] and TIME in rows[0]["metrics"]


def test_where_counters_are_denied_ncu_s_line_is_shown_and_no_other_process_is_started(run_with):
    denied = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"
    code, printed, rows, calls = run_with(f"say(lane=0, step='begin')\nend(1, {denied!r})")
    assert (code, len(calls), len(rows)) == (1, 1, 1)
    assert f"ncu reads no counters here: {denied}" in printed


def test_an_ncu_that_reads_nothing_is_given_up_after_two_processes(run_with):
    body = "for lane in job.lanes:\n    say(lane=lane, step='begin')\n    say(lane=lane, step='done')\nend(0)"
    code, printed, rows, calls = run_with(body)
    assert (code, len(calls)) == (1, 2)
    assert all(row["failed"].startswith("ncu reported no kernel") for row in rows)
    assert "0 of 8 lanes read" in printed


def test_a_lane_that_ends_its_process_costs_itself_alone(run_with):
    body = """
for lane in job.lanes:
    if lane == 3:
        say(lane=lane, step="begin")
        page.extend(["counters_lane_3", "half of it"])
        print("CUDA_ERROR_LAUNCH_FAILED")
        end(6, "==ERROR== The application returned an error code (6).")
    if lane == 4:
        say(lane=lane, step="begin")
        say(lane=lane, step="failed", detail="compile: no such tile")
        continue
    read(lane, "gemm")
end(0)
"""
    code, _, rows, calls = run_with(body)
    failed = {(row["problem"]["m"], row["lane"]): row["failed"] for row in rows if "failed" in row}
    assert failed == {
        (1024, "XLA plain"): "ended the process: ==ERROR== The application returned an error code (6).; "
        "CUDA_ERROR_LAUNCH_FAILED",
        (2048, "kernel"): "compile: no such tile",
    }
    assert (code, len(rows), len(calls)) == (1, 8, 3)


def test_a_process_that_hangs_is_ended_and_what_ncu_read_before_is_kept(run_with, monkeypatch):
    monkeypatch.setattr(counter_run, "STEP_S", 2.0)
    body = """
lanes = list(job.lanes)
if 2 not in lanes:
    read(0, "gemm"), read(1, "gemm")
    end(0)
read(2, "gemm")
if 3 in lanes:
    process = subprocess.Popen(["sleep", "60"])
    say(pid=process.pid)
    say(lane=3, step="begin")
    end(process.wait() and 9)
"""
    code, _, rows, calls = run_with(body, "--problems", "512x512x512,1024x1024x1024")
    assert (code, len(calls)) == (1, 2)
    assert [row.get("kernel") for row in rows] == ["gemm", "gemm", "gemm", None]
    assert rows[3]["failed"].startswith("ended the process")


def test_no_process_is_started_that_could_not_end_in_time(run_with):
    code, printed, _, calls = run_with(READS_ALL, "--seconds", "10")
    assert (code, calls) == (1, [])
    assert "stopped after 10 s, before 8 lanes" in printed


def test_without_ncu_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setattr(counters, "found_ncu", lambda: None)
    monkeypatch.setattr(sys, "argv", ["counters.py"])
    with pytest.raises(SystemExit) as ended:
        counters.main()
    assert ended.value.code == 2
    assert "there is no ncu on PATH" in capsys.readouterr().err
