"""Run configs: what a good one becomes, and the one line that each kind of bad one gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.errors import InputError
from autotune.runconfig import check_space, load_run_config, override
from autotune.seam import Limits, MeasureProtocol
from autotune.searchsettings import SAMPLERS, SearchSettings
from autotune.target import load_target

MINIMAL = "problems: [{m: 64, n: 128, k: 256}]\n"
KEYS = (
    "name, target, device, evaluator, problems, suites, space, search, "
    "protocol, race, limits, gpus, results, storage"
)
FIELDS = (
    "batch, m, n, k, lhs_dtype, rhs_dtype, out_dtype, layout, accumulation, scales, epilogue, groups, "
    "broadcast, weight"
)
DTYPES = "bfloat16, float16, float32, float8_e4m3fn, float8_e5m2, int8, int4, int32"
DEVICES = "NVIDIA H200, NVIDIA H100 80GB HBM3, NVIDIA H100 PCIe, NVIDIA GH200 480GB"
SIZES = "a whole number from 1 to 2147483647"


def written(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def message(path: Path | str) -> str:
    with pytest.raises(InputError) as caught:
        load_run_config(path)
    return str(caught.value)


def test_a_minimal_config_takes_the_defaults(tmp_path):
    config = load_run_config(written(tmp_path, MINIMAL))
    assert config.name == "run"
    assert (config.target, config.device, config.evaluator, config.gpus) == (
        "hopper_matmul",
        "auto",
        "auto",
        "all",
    )
    assert [(w.problem.m, w.problem.n, w.problem.k, w.weight) for w in config.problems] == [
        (64, 128, 256, 1.0)
    ]
    assert config.problems[0].problem.lhs_dtype == "bfloat16"
    assert (config.search.sampler, config.search.seed, config.search.candidates, config.search.seconds) == (
        "auto", 0, 200, 60.0,
    )  # fmt: skip
    assert (config.search.stop_gain, config.search.min_candidates) == (0.005, 24)
    assert not config.search.is_shared
    assert config.protocol == MeasureProtocol(timer="auto", l2="auto", regime="auto", rounds=20, warmup=2)
    assert (config.results, config.storage, dict(config.space)) == (Path("results"), None, {})


def test_every_key_is_read(tmp_path):
    text = f"""
name: mine
target: hopper_matmul
device: nvidia_h100_pcie
evaluator: lower
problems: [{{m: 64, n: 128, k: 256, lhs_dtype: float16, layout: nn, weight: 2}}]
space: {{tile_n: [128, 256], persistent: [true]}}
search: {{sampler: random, seed: 7, candidates: 3, seconds: 1.5, stop_gain: false,
  total_candidates: 8, total_seconds: 9}}
protocol: {{timer: cupti, l2: warm, rounds: 5, warmup: 0}}
gpus: [1, 0]
results: {tmp_path}/out
storage: sqlite:///trials.db
"""
    config = load_run_config(written(tmp_path, text))
    assert (config.name, config.device, config.evaluator) == ("mine", "NVIDIA H100 PCIe", "lower")
    assert (config.problems[0].problem.lhs_dtype, config.problems[0].weight) == ("float16", 2.0)
    assert dict(config.space) == {"tile_n": (128, 256), "persistent": (True,)}
    assert (config.search.sampler, config.search.seed, config.search.candidates) == ("random", 7, 3)
    assert (config.search.seconds, config.search.stop_gain) == (1.5, 0.0)
    assert (config.search.total_candidates, config.search.total_seconds) == (8, 9.0)
    assert config.search.is_shared
    assert config.protocol == MeasureProtocol(l2="warm", regime="auto", rounds=5, warmup=0)
    assert (config.gpus, config.results) == ((1, 0), tmp_path / "out")
    assert config.storage == "sqlite:///trials.db"
    assert not (tmp_path / "out").exists()


def test_limits_are_read_and_the_others_keep_their_defaults(tmp_path):
    config = load_run_config(written(tmp_path, MINIMAL + "limits: {run_s: 2.5, memory_gib: 4}\n"))
    assert config.limits == Limits(run_s=2.5, memory_gib=4.0)
    assert config.limits.compile_s == 120.0


def test_suites_lie_beside_the_config_and_add_to_its_problems(tmp_path):
    (tmp_path / "suites").mkdir()
    written(tmp_path / "suites", "family,m,n,k,weight\nlarge,64,128,256,9\nlarge,512,512,512,3\n", "a.csv")
    config = load_run_config(written(tmp_path, MINIMAL + "suites: [suites/a.csv]\n"))
    assert [(w.problem.m, w.weight) for w in config.problems] == [(64, 1.0), (512, 3.0)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("problem: []", f"problem: unknown key (did you mean 'problems'?); allowed: {KEYS}"),
        ("12: x", f"12: unknown key; allowed: {KEYS}"),
        ("", f"holds null; allowed: a mapping with the keys {KEYS}"),
        ("[1, 2]", f"holds a list of 2; allowed: a mapping with the keys {KEYS}"),
        ("name: x", "names no problem; give `problems` (a list), `suites` (CSV files) or both"),
        (
            "problems: []",
            "problems=[]: allowed: a list of at least one problem, such as {m: 4096, n: 4096, k: 4096}",
        ),
        ("problems: [3]", f"problems[0]=3: allowed: a mapping with the keys {FIELDS}"),
        ("problems: [{m: 64, n: 64}]", "problems[0].k: is missing; m, n and k must be given"),
        ("problems: [{m: 0, n: 64, k: 64}]", f"problems[0].m=0: allowed: {SIZES}"),
        ("problems: [{m: -1, n: 64, k: 64}]", f"problems[0].m=-1: allowed: {SIZES}"),
        ("problems: [{m: 99999999999, n: 64, k: 64}]", f"problems[0].m=99999999999: allowed: {SIZES}"),
        ("problems: [{m: true, n: 64, k: 64}]", "problems[0].m=true: allowed: a whole number or a name"),
        ("problems: [{m: 64.0, n: 64, k: 64}]", "problems[0].m=64.0: allowed: a whole number or a name"),
        ("problems: [{m: .nan, n: 64, k: 64}]", "problems[0].m=nan: allowed: a whole number or a name"),
        (
            "problems: [{m: [64], n: 64, k: 64}]",
            "problems[0].m=a list of 1: allowed: a whole number or a name",
        ),
        (
            "problems: [{m: 64, n: 64, k: 64, lhs_dtype: bfloat61}]",
            f"problems[0].lhs_dtype='bfloat61': allowed: {DTYPES} (did you mean 'bfloat16'?)",
        ),
        (
            "problems: [{m: 64, n: 64, k: 64, layout: nnn}]",
            "problems[0].layout='nnn': allowed: nn, nt, tn, tt (did you mean 'nn'?)",
        ),
        (
            "problems: [{m: 64, n: 64, k: 64, batch: 2, broadcast: both}]",
            "problems[0].broadcast='both': allowed: none, lhs, rhs",
        ),
        (
            "problems: [{m: 64, n: 64, k: 64, broadcast: lhs}]",
            "problems[0].broadcast='lhs': allowed: none where batch is 1, since nothing shares an operand",
        ),
        (
            "problems: [{m: 64, n: 64, k: 64, batch: 2, broadcast: rhs}, {m: 128, n: 64, k: 64}]",
            "problems[1]: is the same problem as problems[0]; remove one, or raise its weight",
        ),
        (
            "problems: [{m: 64, n: 64, k: 64, weigth: 2}]",
            f"problems[0].weigth: unknown key (did you mean 'weight'?); allowed: {FIELDS}",
        ),
        (
            "problems: [{m: 64, n: 64, k: 64, dtype: float16}]",
            f"problems[0].dtype: unknown key (did you mean 'lhs_dtype'?); allowed: {FIELDS}",
        ),
        (
            "problems: [{m: 64, n: 64, k: 64, weight: 0}]",
            "problems[0].weight=0: allowed: a number above 0, up to 1e+12",
        ),
        (
            "problems: [{m: 64, n: 64, k: 64, weight: .inf}]",
            "problems[0].weight=inf: allowed: a number above 0, up to 1e+12",
        ),
        (
            "problems: [{m: 64, n: 64, k: 64}, {m: 64, n: 64, k: 64, weight: 2}]",
            "problems[1]: is the same problem as problems[0]; remove one, or raise its weight",
        ),
        (
            MINIMAL + "target: hoper_matmul",
            "target='hoper_matmul': allowed: hopper_matmul (did you mean 'hopper_matmul'?)",
        ),
        (
            MINIMAL + "device: NVIDIA H201",
            f"device='NVIDIA H201': allowed: {DEVICES} (did you mean 'NVIDIA H200'?)",
        ),
        (
            MINIMAL + "evaluator: gpus",
            "evaluator='gpus': allowed: auto, gpu, replay, lower (did you mean 'gpu'?)",
        ),
        (
            MINIMAL + "search: {sampler: tpu}",
            f"search.sampler='tpu': allowed: {', '.join(SAMPLERS)} (did you mean 'tpe'?)",
        ),
        (
            MINIMAL + "search: {candidates: 0}",
            "search.candidates=0: allowed: a whole number from 1 to 1000000",
        ),
        (
            MINIMAL + "search: {candidates: 1.5}",
            "search.candidates=1.5: allowed: a whole number from 1 to 1000000",
        ),
        (
            MINIMAL + "search: {candidates: true}",
            "search.candidates=true: allowed: a whole number from 1 to 1000000",
        ),
        (MINIMAL + "search: {seed: -1}", "search.seed=-1: allowed: a whole number from 0 to 4294967295"),
        (MINIMAL + "search: {seconds: .nan}", "search.seconds=nan: allowed: a number above 0, up to 604800"),
        (MINIMAL + "search: {seconds: -3}", "search.seconds=-3: allowed: a number above 0, up to 604800"),
        (
            MINIMAL + "search: {seconds: 1 min}",
            "search.seconds='1 min': allowed: a number above 0, up to 604800",
        ),
        (
            MINIMAL + "search: 3",
            "search=3: allowed: a mapping with the keys " + ", ".join(SearchSettings.__dataclass_fields__),
        ),
        *[
            (
                MINIMAL + f"search: {{stop_gain: {value}}}",
                f"search.stop_gain={shown}: allowed: a share of the time from 0 to 1, such as 0.005, or false",
            )
            for value, shown in (
                ("2", "2"),
                ("-0.1", "-0.1"),
                ("0.5%", "'0.5%'"),
                ("true", "true"),
                ("null", "null"),
            )
        ],
        (
            MINIMAL + "search: {min_candidates: 0}",
            "search.min_candidates=0: allowed: a whole number from 1 to 1000000",
        ),
        (
            MINIMAL + "search: {total_seconds: 0}",
            "search.total_seconds=0: allowed: a number above 0, up to 604800",
        ),
        (
            MINIMAL + "search: {total_candidates: 1.5}",
            "search.total_candidates=1.5: allowed: a whole number from 1 to 1000000",
        ),
        (
            "problems: [{m: 64, n: 128, k: 256}, {m: 128, n: 128, k: 256}]\nsearch: {total_candidates: 15}",
            "search.total_candidates=15: allowed: at least 16, 8 for each of the 2 problems",
        ),
        (
            MINIMAL + "limits: {run_s: 0}",
            "limits.run_s=0: allowed: a number above 0, up to 86400",
        ),
        (
            MINIMAL + "limits: {run: 3}",
            "limits.run: unknown key (did you mean 'run_s'?); allowed: lower_s, compile_s, run_s, memory_gib",
        ),
        (
            MINIMAL + "limits: {memory_gib: many}",
            "limits.memory_gib='many': allowed: a number above 0, up to 1e+06",
        ),
        (MINIMAL + "protocol: {timer: events}", "protocol.timer='events': allowed: auto, cupti, chain"),
        (
            MINIMAL + "protocol: {l2: cold}",
            "protocol.l2='cold': allowed: auto, clean, activations_warm, warm",
        ),
        (
            MINIMAL + "protocol: {l2: cleen}",
            "protocol.l2='cleen': allowed: auto, clean, activations_warm, warm (did you mean 'clean'?)",
        ),
        (MINIMAL + "protocol: {rounds: 0}", "protocol.rounds=0: allowed: a whole number from 1 to 10000"),
        (
            MINIMAL + "space: {tile_n: []}",
            "space.tile_n=[]: allowed: a list of at least one value, such as [128, 256]",
        ),
        (
            MINIMAL + "space: {tile_n: 128}",
            "space.tile_n=128: allowed: a list of at least one value, such as [128, 256]",
        ),
        (MINIMAL + "space: {tile_n: [128, 128]}", "space.tile_n[1]=128: allowed: each value once"),
        (
            MINIMAL + "space: {tile_n: [1.5]}",
            "space.tile_n[0]=1.5: allowed: a whole number, a name, true or false",
        ),
        (MINIMAL + "gpus: none", "gpus='none': allowed: all, or a list of GPU indices such as [0, 1]"),
        (MINIMAL + "gpus: [0, 0]", "gpus[1]=0: allowed: each GPU once"),
        (MINIMAL + "gpus: [-1]", "gpus[0]=-1: allowed: a whole number from 0 to 1023"),
        (
            MINIMAL + "name: a/b",
            "name='a/b': allowed: up to 100 letters, digits, '.', '_' and '-', since files are named after it",
        ),
        (
            MINIMAL + "storage: trials.db",
            "storage='trials.db': allowed: null, or an Optuna storage URL such as postgresql://user@host/name",
        ),
        (
            MINIMAL + "search: {share_binaries: 1}",
            "search.share_binaries=1: allowed: true, false",
        ),
        (MINIMAL + "results: 7", "results=7: allowed: a folder"),
        # XLA's fastest of three compilations counts, each in a process of its own.
        (MINIMAL + "race: {processes: 2}", "race.processes=2: allowed: a whole number from 3 to 100"),
        (
            MINIMAL + "suites: x.csv",
            "suites='x.csv': allowed: a list of at least one CSV file, relative to this one",
        ),
    ],
)
def test_a_bad_value_is_refused_in_one_line(tmp_path, text, expected):
    path = written(tmp_path, text)
    assert message(path) == f"{path}: {expected}"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["run.yaml"]


def test_an_unknown_knob_names_the_nearest(tmp_path):
    path = written(tmp_path, MINIMAL + "space: {tile_nn: [128]}")
    assert message(path).startswith(
        f"{path}: space.tile_nn: unknown key (did you mean 'tile_n'?); allowed: tile_m, "
    )


@pytest.mark.parametrize(("batch", "fits"), [(23, True), (24, False)])
def test_a_problem_that_the_device_has_no_memory_for_is_refused(tmp_path, batch, fits):
    # Three matrices of 32,768 x 32,768 bfloat16 are 6 GiB each time; an H200 has 140.4 GiB: 23 times.
    config = load_run_config(
        written(tmp_path, f"problems: [{{m: 32768, n: 32768, k: 32768, batch: {batch}}}]")
    )
    target = load_target("hopper_matmul")
    device = target.device_named("NVIDIA H200")
    if fits:
        check_space(config, target, device)
        return
    with pytest.raises(InputError) as caught:
        check_space(config, target, device)
    assert str(caught.value) == (
        f"{config.path}: 24x32768x32768x32768 bfloat16 nn: operands and result take 144 GiB; allowed: at most the "
        "140 GiB of NVIDIA H200"
    )


def test_a_knob_value_that_the_target_does_not_know_is_named(tmp_path):
    path = written(tmp_path, MINIMAL + "space: {wg_split: [k]}")
    config, target = load_run_config(path), load_target("hopper_matmul")
    with pytest.raises(InputError, match=r"run\.yaml: space\.wg_split=.*allowed: .*m.*n") as caught:
        check_space(config, target, target.device_named("NVIDIA H200"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\nname: b\n", "is not valid YAML: line 2, column 1: key 'name' stands twice"),
        ("problems: [{m: 1, m: 2}]", "is not valid YAML: line 1, column 19: key 'm' stands twice"),
        ("a: [1", "is not valid YAML: line 1, column 6: expected ',' or ']', but got '<stream end>'"),
        (
            "a: !!python/object/apply:os.system [x]",
            "is not valid YAML: line 1, column 4: could not determine a constructor",
        ),
        ("a: 1\n---\nb: 2", "is not valid YAML: line 2, column 1: but found another document"),
        ("a: &x [*x]\n*x : 1", "is not valid YAML: "),
        ("[" * 5000, "is not valid YAML: nested too deeply"),
        ("a: " + "9" * 5000, "holds a value that cannot be read: Exceeds the limit"),
        ("a: 2024-13-45", "holds a value that cannot be read: month must be in 1..12"),
    ],
)
def test_what_is_not_yaml_is_refused_in_one_line(tmp_path, text, expected):
    path = written(tmp_path, text)
    said = message(path)
    assert said.startswith(f"{path}: {expected}")
    assert "\n" not in said


def test_a_value_too_long_to_print_is_cut(tmp_path):
    path = written(tmp_path, MINIMAL + "evaluator: " + "x" * 500)
    assert message(path) == f"{path}: evaluator='{'x' * 56}...: allowed: auto, gpu, replay, lower"
    path = written(tmp_path, "problems: [{m: 0x" + "f" * 5000 + ", n: 64, k: 64}]")
    assert (
        message(path)
        == f"{path}: problems[0].m=a number of 20000 bits: allowed: a whole number of at most 64 bits"
    )


def test_files_that_are_no_text_are_refused(tmp_path):
    assert message(tmp_path) == f"{tmp_path}: is a folder; allowed: a file"
    assert message(tmp_path / "none.yaml") == f"{tmp_path}/none.yaml: no such file"
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: \xff\xfe")
    assert message(binary) == f"{binary}: is not text in UTF-8 (byte 3)"
    binary.write_bytes(b"a: \0")
    assert message(binary) == f"{binary}: is not text (byte 3 is zero)"
    with binary.open("wb") as stream:
        stream.truncate(4_000_001)
    assert message(binary) == f"{binary}: has 4000001 bytes; allowed: at most 4000000"
    os.mkfifo(tmp_path / "pipe")
    assert message(tmp_path / "pipe") == f"{tmp_path}/pipe: is not a regular file"
    assert message("/dev/zero") == "/dev/zero: is not a regular file"


def test_a_misspelt_file_names_the_nearest(tmp_path):
    written(tmp_path, MINIMAL, "quickstart.yaml")
    assert message(tmp_path / "quickstar.yaml").endswith("no such file (did you mean 'quickstart.yaml'?)")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("m,n,k\n", ": holds no rows; allowed: a line of column names, then at least one row"),
        ("m,n,q\n1,2,3\n", ": unknown column 'q'; allowed: family, weight, batch, m, n, k"),
        ("m,n,k,m\n1,2,3,4\n", ": column 'm' stands twice"),
        ("m,n,k\n1,2\n", ": line 2 has 2 cells; allowed: 3, one for each column"),
        ("m,n,k\n64,64,64\n64,64,0\n", f": line 3: k=0: allowed: {SIZES}"),
        ("m,n,k\n64,64,6.5\n", f": line 2: k='6.5': allowed: {SIZES}"),
        ("m,n,k,weight\n64,64,64,x\n", ": line 2: weight='x': allowed: a number above 0, up to 1e+12"),
        (
            "m,n,k,broadcast\n64,64,64,lhs\n",
            ": line 2: broadcast='lhs': allowed: none where batch is 1, since nothing shares an operand",
        ),
        (
            "m,n,k\n64,64,64\n\n64,64,64\n",
            ": line 4: is the same problem as {file}: line 2; remove one, or raise its weight",
        ),
    ],
)
def test_a_bad_suite_names_its_file_and_line(tmp_path, table, expected):
    file = written(tmp_path, table, "suite.csv")
    said = message(written(tmp_path, "suites: [suite.csv]"))
    assert said.startswith(f"{tmp_path}/run.yaml: suites[0]: {file}{expected.format(file=file)}")
    assert "\n" not in said


def test_a_missing_suite_is_named_with_its_key(tmp_path):
    written(tmp_path, "m,n,k\n64,64,64\n", "dev.csv")
    path = written(tmp_path, "suites: [dev.csv, dew.csv]")
    assert message(path) == (f"{path}: suites[1]: {tmp_path}/dew.csv: no such file (did you mean 'dev.csv'?)")


def test_what_named_the_results_is_known_for_later_errors(tmp_path):
    config = load_run_config(written(tmp_path, MINIMAL + "results: here"))
    assert str(config.results_place.refuses("here", "x")) == f"{config.path}: results='here': allowed: x"
    changed = override(config, results="there")
    assert str(changed.results_place.refuses("there", "x")) == "--results='there': allowed: x"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "{m: 010, n: 64, k: 64}",
            "line 1, column 16: '010' could be meant as octal; write the decimal number",
        ),
        ("{m: 0777, n: 64, k: 64}", "line 1, column 16: '0777' could be meant as octal"),
        ("{m: 08, n: 64, k: 64}", "line 1, column 16: '08' could be meant as octal"),
        ("{m: 0_10, n: 64, k: 64}", "line 1, column 16: '0_10' could be meant as octal"),
        ("{m: 1:30, n: 64, k: 64}", "line 1, column 16: '1:30' could be meant as base 60"),
        ("{m: 64, n: 64, k: -1:30.5}", "line 1, column 30: '-1:30.5' could be meant as base 60"),
        ("{m: 1e3, n: 64, k: 64}", "problems[0].m=1000.0: allowed: a whole number or a name"),
        ("{m: 0o17, n: 64, k: 64}", f"problems[0].m='0o17': allowed: {SIZES}"),
        ("{m: yes, n: 64, k: 64}", "problems[0].m=true: allowed: a whole number or a name"),
        ("{m: 1:30 min, n: 64, k: 64}", f"problems[0].m='1:30 min': allowed: {SIZES}"),
    ],
)
def test_a_size_never_changes_its_value_without_a_word(tmp_path, text, expected):
    path = written(tmp_path, f"problems: [{text}]")
    assert message(path).startswith(f"{path}: {expected}")


@pytest.mark.parametrize("size", ["0x40", "6_4", "'64'", "0b1000000"])
def test_other_ways_to_write_a_size_are_read_as_they_look(tmp_path, size):
    (weighted,) = load_run_config(written(tmp_path, f"problems: [{{m: {size}, n: 1, k: 1}}]")).problems
    assert weighted.problem.m == 64


def test_an_exponent_needs_no_point_and_no_sign(tmp_path):
    config = load_run_config(written(tmp_path, MINIMAL + "search: {seconds: 1e3}\nlimits: {run_s: 1.5e1}"))
    assert (config.search.seconds, config.limits.run_s) == (1000.0, 15.0)


def test_files_of_other_systems_are_read(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfm,n,k\r\n64,64,64\r\n")
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x\r\nsuites: [a.csv]\r\n")
    assert [weighted.problem.m for weighted in load_run_config(path).problems] == [64]
    path.write_bytes("name: x\n".encode("utf-16"))
    assert message(path) == f"{path}: is not text in UTF-8 (byte 0)"


def test_a_name_is_made_of_the_files_own_where_none_is_given(tmp_path):
    assert load_run_config(written(tmp_path, MINIMAL, "my model (1).yaml")).name == "my_model_1_"
    path = written(tmp_path, MINIMAL, "\u00e9\u00e8.yaml")
    assert message(path).startswith(f"{path}: name: is missing, and the file's own name holds no letter")


def test_a_storage_url_is_refused_without_showing_its_password(tmp_path):
    path = written(tmp_path, MINIMAL + "storage: Postgresql://me:se/cr@et@host/db?password=x")
    assert message(path).startswith(f"{path}: storage='Postgresql://me:***@host/db': allowed: null, or")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_a_storage_that_ends_with_the_command_is_refused(tmp_path, url):
    path = written(tmp_path, MINIMAL + f"storage: '{url}'")
    assert message(path) == (
        f"{path}: storage='{url}': allowed: a storage that outlives the command, such as sqlite:///trials.db"
    )


@pytest.mark.parametrize("key", ["space", "search", "protocol", "race", "limits"])
def test_a_mapping_without_content_is_refused_as_null_and_read_as_empty(tmp_path, key):
    assert load_run_config(written(tmp_path, MINIMAL + f"{key}: {{}}")).space == {}
    path = written(tmp_path, MINIMAL + f"{key}:\n")
    assert message(path).startswith(f"{path}: {key}=null: allowed: a mapping with the keys ")


@pytest.mark.parametrize("key", ["problems", "suites"])
@pytest.mark.parametrize(("value", "shown"), [("", "null"), ("[]", "[]")])
def test_an_empty_list_of_problems_is_refused(tmp_path, key, value, shown):
    other = {"problems": "suites: [a.csv]\n", "suites": MINIMAL}[key]
    path = written(tmp_path, f"{other}{key}: {value}\n")
    assert message(path).startswith(f"{path}: {key}={shown}: allowed: a list of at least one ")


def test_options_of_the_command_line_replace_what_the_config_says(tmp_path):
    config = load_run_config(written(tmp_path, MINIMAL + "search: {sampler: random, seed: 3}"))
    changed = override(config, evaluator="lower", candidates=5, seconds=2.0, results=str(tmp_path / "r"))
    assert (changed.evaluator, changed.search.candidates, changed.search.seconds) == ("lower", 5, 2.0)
    assert (changed.search.sampler, changed.search.seed, changed.results) == ("random", 3, tmp_path / "r")


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"candidates": 0}, "--candidates=0: allowed: a whole number from 1 to 1000000"),
        ({"seconds": float("nan")}, "--seconds=nan: allowed: a number above 0, up to 604800"),
        ({"total_candidates": 7}, "--total-candidates=7: allowed: at least 8"),
        ({"seed": -1}, "--seed=-1: allowed: a whole number from 0 to 4294967295"),
        (
            {"evaluator": "gpus"},
            "--evaluator='gpus': allowed: auto, gpu, replay, lower (did you mean 'gpu'?)",
        ),
    ],
)
def test_a_bad_option_is_refused_like_a_bad_key(tmp_path, option, expected):
    config = load_run_config(written(tmp_path, MINIMAL))
    with pytest.raises(InputError) as caught:
        override(config, **option)
    assert str(caught.value) == expected


SHIPPED = sorted([*Path("configs").glob("*.yaml"), *Path("configs/record").glob("*.yaml")])


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_the_shipped_configs_hold_problems_that_the_kernel_can_compute(path):
    config, target = load_run_config(path), load_target("hopper_matmul")
    device = target.device_named("NVIDIA H200")
    check_space(config, target, device)
    for weighted in config.problems:
        assert target.heuristic_config(weighted.problem, device) is not None, weighted.problem.describe()
