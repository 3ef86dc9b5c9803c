"""The kernel on a Hopper GPU: every allocation plan and kind of schedule, by bits; and the plan that hangs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hopper_matmul.config import Config
from hopper_matmul.hardware import KNOWN
from hopper_matmul.legality import check
from hopper_matmul.problem import Problem
from hopper_matmul.reference import tolerance
from hopper_matmul.scopes import LEGAL_PLANS
from hopper_matmul.target import TARGET

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
SIZES = {"m": 1536, "n": 3072, "k": 1024}  # 144 tiles of 128x256: more than one wave, with a ragged tail
KNOBS = {"tile_m": 128, "tile_n": 256, "stages": 3, "grid_minor": "n", "raster_width": 3}
SCHEDULES = [
    {"cluster_m": 2, "delay_release": 1},
    {"cluster_n": 2, "scopes": "union"},
    {"cluster_m": 2, "cluster_n": 2, "scopes": "ring_in_loop"},
    {"wg_split": "n", "epi_n": 32, "persistent": False},
    {"compute_wgs": 1, "tile_m": 64, "delay_release": 1},
    {"compute_wgs": 3, "tile_m": 192, "tile_n": 128},
    {"tile_k": 128, "stages": 2},
    {"tile_n": 192, "epi_n": 192, "scopes": "union_acc_outside"},
    {"tile_n": 96, "epi_n": 32, "tile_k": 32, "stages": 8, "memory_registers": 24},
]
DTYPES = [("float16", "float16"), ("bfloat16", "float32"), ("float16", "bfloat16")]


LAYOUTS = [{"layout": layout} for layout in ("nt", "tn", "tt")]
# Sizes that no tile divides: TMA fills what a load reads past an edge with zeros and drops what a store writes there.
EDGES = [
    {"m": 1, "n": 4096, "k": 4096},
    {"m": 16, "n": 320, "k": 576},
    {"m": 1000, "n": 1088, "k": 1152},
    {"m": 72, "n": 4160, "k": 8256, "layout": "nt"},
    {"m": 192, "n": 320, "k": 64, "layout": "tn", "out_dtype": "float32"},
    {"m": 7, "n": 128, "k": 128},
]

SWAPPED = {"swap_ab": True, "wg_split": "n", "tile_n": 128, "tile_m": 64, "epi_m": 16, "epi_n": 64}
# What only a GPU shows: stores of pieces and of CTAs that lie wholly outside, in matrices of a single block.
OUTSIDE = [
    ({"m": 16, "n": 1024, "k": 1024}, SWAPPED | {"split_k": 2}),
    ({"m": 1, "n": 1024, "k": 1024}, SWAPPED | {"epi_m": 8}),
    ({"m": 16, "n": 1024, "k": 1024}, SWAPPED | {"tile_m": 16, "cluster_m": 2, "split_k": 3}),
    ({"m": 200, "n": 64, "k": 1024}, {"tile_m": 128, "tile_n": 128, "cluster_n": 2}),
    ({"m": 7, "n": 24, "k": 512}, {"tile_m": 128, "tile_n": 64, "scopes": "union"}),
]
PARTS = [
    ({"m": 300, "n": 300, "k": 16384}, {"split_k": 8, "tile_n": 96, "epi_n": 32}),
    ({"m": 333, "n": 1111, "k": 2048, "out_dtype": "float32"}, {"split_k": 6, "tile_k": 128, "stages": 2}),
    ({"m": 64, "n": 4096, "k": 4096}, SWAPPED | {"split_k": 3, "persistent": False}),
    ({"batch": 3, "m": 200, "n": 136, "k": 4096, "layout": "nt"}, {"split_k": 4, "cluster_m": 2}),
]
CLUSTERS = [
    ({"m": 16, "n": 4096, "k": 4096}, SWAPPED | {"tile_m": 16, "epi_m": 8, "split_k": 4}),
    (
        {"m": 64, "n": 4096, "k": 14336},
        {"tile_m": 64, "tile_n": 64, "compute_wgs": 1, "epi_n": 32, "split_k": 2},
    ),
    ({"m": 300, "n": 300, "k": 16384}, {"tile_n": 96, "epi_n": 16, "split_k": 8}),
    ({"m": 1, "n": 8192, "k": 8192}, SWAPPED | {"tile_m": 8, "epi_m": 8, "split_k": 2, "persistent": False}),
    # 192 tiles and 66 clusters: buffers and barriers come round again
    ({"m": 1536, "n": 2048, "k": 1024}, {"tile_n": 128, "split_k": 2, "stages": 3}),
    (
        {"m": 1536, "n": 2048, "k": 1024, "out_dtype": "float32"},
        {"tile_n": 128, "split_k": 2, "scopes": "union"},
    ),
    ({"m": 1536, "n": 2048, "k": 1024}, {"tile_n": 128, "split_k": 2, "scopes": "sequential"}),
    (
        {"m": 1536, "n": 2048, "k": 1024},
        {"tile_n": 128, "split_k": 2, "cluster_m": 2, "cluster_n": 2, "stages": 3},
    ),
    (
        {"m": 333, "n": 1111, "k": 2049},
        {"tile_m": 192, "tile_n": 96, "compute_wgs": 3, "epi_n": 32, "split_k": 3},
    ),
    (
        {"batch": 3, "m": 200, "n": 136, "k": 4096, "layout": "nt"},
        {"split_k": 4, "epi_n": 32, "tile_k": 128, "stages": 2},
    ),
]
CLUSTERS = [(sizes, knobs | {"combine": "cluster"}) for sizes, knobs in CLUSTERS]
BATCHES = [
    ({"batch": 64, "m": 64, "n": 64, "k": 256}, {"tile_m": 64, "tile_n": 64, "compute_wgs": 1}),
    ({"batch": 5, "m": 257, "n": 129, "k": 65, "layout": "tt"}, {}),
    ({"batch": 3, "m": 16, "n": 512, "k": 512}, SWAPPED),
]
VIEWED = {"edges": "view", "tile_m": 128, "tile_n": 128, "wg_split": "n"}
ODD = [
    ({"m": 4097, "n": 1024, "k": 512}, {"edges": "view", "tile_n": 256, "stages": 3}),
    ({"m": 1000, "n": 1000, "k": 1000}, VIEWED | {"scopes": "union"}),
    (
        {"m": 1000, "n": 1000, "k": 1000},
        VIEWED | {"tile_m": 256, "swap_ab": True, "stages": 3, "cluster_n": 2},
    ),
    ({"m": 333, "n": 1111, "k": 2049}, VIEWED),
    ({"m": 333, "n": 1112, "k": 2040, "layout": "nt"}, {"edges": "view", "scopes": "sequential"}),
    (
        {"m": 328, "n": 1112, "k": 2041, "layout": "tn"},
        VIEWED | {"tile_m": 64, "tile_n": 64, "compute_wgs": 1},
    ),
    ({"batch": 2, "m": 77, "n": 200, "k": 100}, VIEWED | {"split_k": 2, "epi_n": 32}),
    ({"m": 333, "n": 1111, "k": 2049, "layout": "tt"}, {}),
    ({"m": 9, "n": 7, "k": 3}, {}),
    # two panels of k of the viewed lhs, and a warpgroup's own columns of the rhs
    ({"m": 4097, "n": 1024, "k": 512}, {"edges": "view", "tile_n": 64, "wg_split": "n", "epi_n": 32}),
]
# A batch of one operand only: the other is read again for each product.
SHARED = [
    ({"batch": 24, "broadcast": "lhs", "m": 256, "n": 384, "k": 512}, {"cluster_m": 2, "cluster_n": 2}),
    ({"batch": 24, "broadcast": "rhs", "m": 256, "n": 384, "k": 512, "layout": "tn"}, {"cluster_m": 2}),
    (
        {
            "batch": 7,
            "broadcast": "rhs",
            "m": 136,
            "n": 264,
            "k": 1096,
            "layout": "tt",
            "out_dtype": "float32",
        },
        {"split_k": 3, "cluster_n": 2},
    ),
    ({"batch": 5, "broadcast": "lhs", "m": 200, "n": 136, "k": 2048, "layout": "nt"}, {"split_k": 4}),
    ({"batch": 9, "broadcast": "lhs", "m": 16, "n": 1000, "k": 520}, SWAPPED | {"split_k": 2}),
    ({"batch": 9, "broadcast": "rhs", "m": 16, "n": 1024, "k": 520, "layout": "tn"}, SWAPPED),
    ({"batch": 5, "broadcast": "lhs", "m": 257, "n": 129, "k": 65, "lhs_dtype": "float16"}, {}),
    ({"batch": 5, "broadcast": "rhs", "m": 257, "n": 129, "k": 65, "layout": "tt"}, {}),
    ({"batch": 3, "broadcast": "lhs", "m": 77, "n": 200, "k": 100}, VIEWED | {"split_k": 2, "epi_n": 32}),
    ({"batch": 3, "broadcast": "rhs", "m": 333, "n": 1112, "k": 2040, "layout": "tt"}, {"scopes": "union"}),
    ({"batch": 6, "broadcast": "lhs", "m": 333, "n": 1111, "k": 2049, "layout": "nt"}, VIEWED),
    (
        {"batch": 150, "broadcast": "lhs", "m": 64, "n": 64, "k": 256},
        {"tile_m": 64, "tile_n": 64, "compute_wgs": 1},
    ),
    # folded: one product of 96 rows
    ({"batch": 32, "broadcast": "rhs", "m": 3, "n": 1111, "k": 2048}, VIEWED | {"swap_ab": True}),
]

# Threads store a result whose rows do not fill 16 bytes; its last tiles end where it does.
DIRECT = [
    ({"m": 512, "n": 1111, "k": 1024}, {"tile_m": 128, "tile_n": 128}),
    ({"m": 1023, "n": 4097, "k": 512}, {"tile_m": 256, "tile_n": 128, "cluster_n": 2, "stages": 3}),
    # 5 tiles along m and 9 along n are 6 and 10 in clusters
    ({"m": 577, "n": 1111, "k": 520}, {"cluster_m": 2, "cluster_n": 2, "tile_n": 128, "persistent": False}),
    ({"m": 64, "n": 77, "k": 100}, {"tile_m": 64, "tile_n": 64, "compute_wgs": 1}),
    ({"m": 200, "n": 1111, "k": 2047, "layout": "nt"}, {"tile_m": 128, "tile_n": 192, "scopes": "union"}),
    # two neighbours are aligned in any row, and four
    ({"m": 1000, "n": 514, "k": 1000, "layout": "nt"}, {"tile_m": 64, "tile_n": 128, "compute_wgs": 1}),
    ({"m": 500, "n": 516, "k": 1000}, {"tile_m": 64, "tile_n": 128, "epi_n": 128, "compute_wgs": 1}),
    ({"m": 512, "n": 515, "k": 512, "out_dtype": "float32"}, {"epi_n": 32, "tile_n": 96}),
    ({"m": 512, "n": 514, "k": 512, "out_dtype": "float32"}, {"epi_n": 64, "scopes": "union_acc_outside"}),
    ({"batch": 3, "m": 250, "n": 516, "k": 512}, {"tile_m": 128, "tile_n": 128, "wg_split": "n"}),
    (
        {"m": 256, "n": 333, "k": 4096},
        {"tile_m": 64, "tile_n": 128, "wg_split": "n", "split_k": 2, "combine": "cluster"},
    ),
    (
        {"m": 500, "n": 1111, "k": 1024},
        {"tile_m": 128, "tile_n": 128, "swap_ab": True, "wg_split": "n", "epi_m": 8},
    ),
    ({"m": 16, "n": 4097, "k": 4096}, SWAPPED | {"tile_m": 16, "epi_m": 8}),
    (
        {"m": 256, "n": 1111, "k": 1000, "layout": "tn"},
        {"tile_m": 64, "tile_n": 96, "compute_wgs": 1, "epi_n": 32},
    ),
    ({"m": 520, "n": 1111, "k": 1030, "layout": "nt"}, {"cluster_m": 2, "delay_release": 1}),
    ({"m": 512, "n": 1111, "k": 2049}, {"tile_n": 192, "scopes": "sequential"}),
    # several tiles a CTA, in the bytes that the loads of the next one write
    ({"m": 2048, "n": 2049, "k": 256}, {"tile_n": 128, "scopes": "union"}),
    ({"m": 2048, "n": 2049, "k": 256}, {"tile_n": 128, "scopes": "sequential"}),
    ({"m": 2048, "n": 5025, "k": 256}, {"tile_n": 256, "stages": 3, "scopes": "acc_outside"}),
]
DIRECT = [(sizes, {"compute_wgs": 2} | knobs | {"edges": "direct"}) for sizes, knobs in DIRECT]

# Each compute warpgroup has tiles of its own, so that one stores while another multiplies.
TURNS = [
    ({"m": 4096, "n": 4096, "k": 512}, {}),
    ({"m": 4096, "n": 4096, "k": 512}, {"tile_m": 64, "tile_n": 256, "cluster_m": 2, "delay_release": 1}),
    (
        {"m": 4000, "n": 3000, "k": 136},
        {"stages": 6, "scopes": "acc_outside", "cluster_n": 2, "edges": "view", "tile_n": 64},
    ),
    (
        {"m": 2048, "n": 4096, "k": 1024, "layout": "tn"},
        {"tile_m": 64, "compute_wgs": 3, "scopes": "scratch"},
    ),
    ({"m": 2048, "n": 4097, "k": 1024}, {"edges": "direct"}),
    ({"m": 2000, "n": 5025, "k": 256}, {"edges": "direct", "scopes": "acc_outside"}),
    ({"batch": 32, "m": 1024, "n": 1024, "k": 128}, {"stages": 5}),
    ({"batch": 24, "m": 250, "n": 500, "k": 256, "out_dtype": "float32"}, {"epi_n": 32, "scopes": "nested"}),
    ({"m": 512, "n": 512, "k": 8192}, {"split_k": 22}),
    ({"m": 64, "n": 64, "k": 512}, {"tile_m": 64, "tile_n": 64}),  # one tile for two
    (
        {"m": 16, "n": 40000, "k": 512},
        {"tile_m": 16, "epi_m": 16, "epi_n": 64, "tile_n": 64, "swap_ab": True},
    ),
]
TURNS = [(sizes, {"compute_wgs": 2} | knobs | {"wg_split": "tile"}) for sizes, knobs in TURNS]

# Swapped tiles whose rows fit m, and copies whose rows are whole lines of 128 bytes.
FITTING = [
    (
        {"m": 1000, "n": 1000, "k": 1000},
        {"tile_m": 72, "epi_m": 72, "cluster_m": 2, "cluster_n": 2, "edges": "view", "stages": 6},
    ),
    (
        {"m": 768, "n": 3072, "k": 512},
        {"tile_m": 96, "epi_m": 96, "tile_n": 192, "compute_wgs": 3, "cluster_m": 2},
    ),
    (
        {"m": 400, "n": 400, "k": 3001},
        {"tile_m": 200, "epi_m": 40, "split_k": 4, "cluster_m": 2, "edges": "view"},
    ),
    (
        {"m": 300, "n": 300, "k": 8192},
        {"tile_m": 160, "epi_m": 32, "tile_n": 64, "compute_wgs": 1, "split_k": 12, "edges": "view"},
    ),
    ({"m": 1200, "n": 900, "k": 800}, {"tile_m": 80, "epi_m": 80, "edges": "direct"}),
    ({"m": 1023, "n": 2049, "k": 1535}, {"tile_m": 176, "epi_m": 88, "edges": "direct", "stages": 3}),
    ({"m": 1023, "n": 2049, "k": 1535}, {"tile_m": 128, "edges": "view", "cluster_n": 2}),
    (
        {"m": 48, "n": 1024, "k": 520},
        {"tile_m": 48, "epi_m": 48, "tile_n": 64, "compute_wgs": 1, "tile_k": 128},
    ),
]
FITTING = [
    (sizes, {"tile_n": 128, "compute_wgs": 2, "wg_split": "n", "swap_ab": True} | knobs)
    for sizes, knobs in FITTING
]

# No registers change hands, so that several CTAs may be on an SM at once.
UNSPLIT = [
    # By SMEM 4 CTAs of 64x64 tiles fit an SM, 3 of the deeper ones, and 2 of the others; by registers it depends.
    ({"m": 16384, "n": 256, "k": 256}, {"tile_m": 64, "tile_n": 64, "compute_wgs": 1, "stages": 2}),
    (
        {"m": 4096, "n": 1024, "k": 1024},
        {"tile_m": 64, "tile_n": 64, "compute_wgs": 1, "tile_k": 128, "stages": 2},
    ),
    ({"m": 16384, "n": 256, "k": 256}, {"tile_n": 128, "compute_wgs": 2, "stages": 2, "epi_n": 32}),
    ({"m": 1536, "n": 2048, "k": 1024}, {"tile_n": 128, "cluster_m": 2, "stages": 3, "persistent": True}),
    ({"batch": 32, "m": 256, "n": 256, "k": 128}, {"tile_n": 64, "stages": 2, "scopes": "union"}),
]
UNSPLIT = [(sizes, {"persistent": False} | knobs | {"memory_registers": 0}) for sizes, knobs in UNSPLIT]


def start(cases: list[dict]) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.gpu_case", json.dumps(cases)],
        cwd=ROOT,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")]
            ),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(cases: list[dict]) -> list[dict]:
    for case in cases:
        problem = Problem.from_fields(case["problem"])
        assert not check(problem, Config.from_knobs(case["knobs"]), KNOWN["nvidia_h200"]), case
    process = start(cases)
    try:
        stdout, stderr = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 0, f"after {stdout.count(chr(10))} of {len(cases)} cases: {stderr[-3000:]}"
    return [json.loads(line) for line in stdout.splitlines()]


def assert_exact(cases: list[dict]) -> None:
    results = run(cases)
    assert len(results) == len(cases)
    for case, result in zip(cases, results, strict=True):
        assert (result["differing"], result["unwritten"]) == (0, 0), case
        assert 0.0 <= result["error"] < tolerance(Problem.from_fields(case["problem"])), case


def test_each_plan_gives_the_right_bits_twenty_times():
    assert_exact([{"problem": SIZES, "knobs": KNOBS | {"scopes": plan.name}} for plan in LEGAL_PLANS])


def test_each_schedule_gives_the_right_bits_twenty_times():
    assert_exact([{"problem": SIZES, "knobs": KNOBS | knobs} for knobs in SCHEDULES])


def test_tiles_walked_by_a_table_give_the_right_bits_twenty_times():
    cases = [{"problem": SIZES, "knobs": KNOBS | knobs, "by_table": True} for knobs in SCHEDULES[:5]]
    ends = [PARTS[-1], DIRECT[-1], TURNS[0]]
    assert_exact([*cases, *({"problem": sizes, "knobs": knobs, "by_table": True} for sizes, knobs in ends)])


def test_each_dtype_gives_the_right_bits_twenty_times():
    assert_exact(
        [
            {"problem": SIZES | {"lhs_dtype": lhs, "out_dtype": out}, "knobs": KNOBS | {"tile_n": 128}}
            for lhs, out in DTYPES
        ]
    )


def test_each_layout_gives_the_right_bits_twenty_times():
    assert_exact([{"problem": SIZES | layout, "knobs": KNOBS} for layout in LAYOUTS])


def test_edges_are_clipped_and_give_the_right_bits_twenty_times():
    legal = [
        (sizes, TARGET.default_configs(Problem.from_fields(sizes), KNOWN["nvidia_h200"])) for sizes in EDGES
    ]
    # The largest tile and the smallest: one CTA that clips, and many.
    ends = [(sizes, knobs) for sizes, choices in legal for knobs in (choices[0], choices[-1])]
    assert_exact([{"problem": sizes, "knobs": knobs} for sizes, knobs in ends])


FAMILIES = {
    "outside": OUTSIDE,
    "parts": PARTS,
    "clusters": CLUSTERS,
    "batches": BATCHES,
    "odd": ODD,
    "direct": DIRECT,
    "unsplit": UNSPLIT,
    "turns": TURNS,
    "fitting": FITTING,
    "shared": SHARED,
}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_each_family_gives_the_right_bits_twenty_times(family):
    assert_exact([{"problem": sizes, "knobs": knobs} for sizes, knobs in family])


def test_a_collective_scope_in_the_compute_role_hangs_as_the_check_says():
    knobs = KNOBS | {"scopes": "epilogue_in_compute", "tile_n": 128}
    rejections = check(Problem.from_fields(SIZES), Config.from_knobs(knobs), KNOWN["nvidia_h200"])
    assert [rejection.rule for rejection in rejections] == ["divergent"]
    process = start([{"problem": SIZES, "knobs": knobs}])
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=45)
    finally:
        process.kill()
        process.wait()
