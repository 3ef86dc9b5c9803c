"""The kernel's numbers and its synchronisation, in Pallas's GPU interpret mode on a CPU, with race detection.

What that mode cannot do is checked on a GPU instead (tests/gpu/test_kernel.py):
- It has no store into an accumulator, so a plan that keeps the accumulator across tiles runs here with one tile a CTA.
- Each CTA copies for itself where a cluster would multicast. In a cluster of 2x2 a CTA's barrier counts the peers of
  its row and of its column; that a row's peer does not arrive twice before the column's has arrived once follows from
  the data it waits for, half of which the CTA itself multicasts. Without that it can happen, and values go wrong.
- A scope in the tile loop gets new memory for each tile, which a peer may then write before it is there.
- It refuses to read bytes in one view that were written in the other (`edges: view`; where `direct` views something, it
  is seen one way here, which tests/helpers/interpret_case.py arranges).
- It has no stores to a peer's memory: tests/helpers/interpret_peers.py adds them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hopper_matmul.scopes import LEGAL_PLANS

ROOT = Path(__file__).parents[2]
LIMIT_S = 120
HALF_STEP = {"bfloat16": 2.0**-9, "float16": 2.0**-12, "float32": 1e-6}


def interpret(**case) -> dict:
    """Returns what one case gave."""
    done = interpreted(case)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def interpreted(case: dict) -> subprocess.CompletedProcess[str]:
    """Runs one case in a process that is killed at its limit: a deadlock fails the test."""
    return subprocess.run(
        [sys.executable, "-m", "tests.helpers.interpret_case", json.dumps(case)],
        cwd=ROOT,
        env=os.environ
        | {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}",
            "JAX_PLATFORMS": "cpu",
            # A warpgroup that waits holds a thread of XLA's pool, of which there are as many as cores otherwise: on two
            # cores a cluster, whose warpgroups wait for each other, hung.
            "PJRT_NPROC": "16",
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def assert_right(result: dict, out_dtype: str = "bfloat16") -> None:
    assert result["rejected"] == []
    assert not result["races"]
    # Rounding once leaves 0.4 of half a step; a wrong or unwritten tile leaves 0.1 and more.
    assert 0.0 < result["error"] < HALF_STEP[out_dtype]


@pytest.mark.parametrize("plan", [plan.name for plan in LEGAL_PLANS if not plan.acc_outside_loop])
def test_each_plan_is_right_and_free_of_races_over_several_tiles(plan):
    # 8 tiles on 2 CTAs: the ring, the phases of the barriers and the epilogue slots come round again.
    assert_right(interpret(sm_count=2, knobs={"scopes": plan}))


@pytest.mark.parametrize("plan", [plan.name for plan in LEGAL_PLANS if plan.acc_outside_loop])
def test_accumulator_outside_of_the_loop_is_right_with_one_tile_a_cta(plan):
    assert_right(interpret(sm_count=8, knobs={"scopes": plan}))


@pytest.mark.parametrize(
    "knobs",
    [
        {"cluster_m": 2, "delay_release": 1},
        {"cluster_n": 2, "scopes": "union"},
        {"wg_split": "n", "epi_n": 32, "persistent": False},
        {"compute_wgs": 1, "tile_m": 64, "delay_release": 1, "stages": 3, "raster_width": 3},
        {"compute_wgs": 3, "tile_m": 192, "grid_minor": "n"},
    ],
    ids=str,
)
def test_schedules_are_right_and_free_of_races(knobs):
    problem = {"m": 192 * 2} if knobs.get("compute_wgs") == 3 else {}
    assert_right(interpret(sm_count=4, knobs=knobs, problem=problem))


@pytest.mark.parametrize(
    ("lhs_dtype", "out_dtype"), [("float16", "float16"), ("bfloat16", "float32"), ("float16", "float32")]
)
def test_dtypes_are_right(lhs_dtype, out_dtype):
    problem = {"lhs_dtype": lhs_dtype, "out_dtype": out_dtype}
    assert_right(interpret(sm_count=2, knobs={}, problem=problem), out_dtype)


@pytest.mark.parametrize("layout", ["nt", "tn", "tt"])
def test_layouts_are_right(layout):
    assert_right(interpret(sm_count=2, knobs={}, problem={"layout": layout}))


@pytest.mark.parametrize("sizes", [{"m": 200, "n": 192, "k": 192}, {"m": 16, "n": 320, "k": 576}], ids=str)
def test_edges_are_clipped(sizes):
    assert_right(interpret(sm_count=2, knobs={}, problem=sizes))


SWAPPED = {"swap_ab": True, "wg_split": "n", "tile_m": 16, "tile_n": 128, "epi_m": 16, "epi_n": 64}


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_swapped_operands_are_right_in_every_layout(layout):
    problem = {"m": 48, "n": 256, "k": 192, "layout": layout}
    assert_right(interpret(sm_count=2, knobs=SWAPPED, problem=problem))


@pytest.mark.parametrize(
    ("knobs", "problem"),
    [
        # 3 x 2 tiles of 72 rows; m ends within the third
        ({"tile_m": 72, "epi_m": 72}, {"m": 150, "n": 256}),
        ({"tile_m": 72, "epi_m": 24, "cluster_m": 2}, {"m": 288, "n": 256, "k": 136}),
        # rows that fill no 16 bytes are copied into whole lines
        ({"tile_m": 96, "epi_m": 48, "edges": "direct"}, {"m": 100, "n": 1023, "k": 515}),
    ],
    ids=str,
)
def test_swapped_tiles_of_any_eight_rows_are_right(knobs, problem):
    assert_right(interpret(sm_count=4, knobs=SWAPPED | knobs, problem=problem))


@pytest.mark.parametrize(
    ("knobs", "problem"),
    [
        # 5 steps in parts of 2: the last part ends a step beyond k
        ({"split_k": 3}, {"k": 320}),
        ({"split_k": 2, "persistent": False}, {"out_dtype": "float32"}),
        (SWAPPED | {"split_k": 2}, {"m": 17, "n": 256}),
        ({"split_k": 2}, {"batch": 3, "m": 64, "n": 64, "k": 128, "layout": "tn"}),
    ],
    ids=str,
)
def test_parts_of_k_are_added_up(knobs, problem):
    assert_right(interpret(sm_count=2, knobs=knobs, problem=problem), problem.get("out_dtype", "bfloat16"))


@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_batch_is_right(layout):
    problem = {"batch": 3, "m": 136, "n": 96, "k": 72, "layout": layout}
    assert_right(interpret(sm_count=2, knobs={"epi_n": 32}, problem=problem))


SHARED = [
    # each layout of the shared operand, and sizes that are clipped
    ({"broadcast": "lhs", "m": 136, "n": 96, "k": 72}, {"epi_n": 32}),
    ({"broadcast": "lhs", "m": 64, "n": 160, "k": 72, "layout": "tt"}, {"epi_n": 32, "scopes": "union"}),
    ({"broadcast": "rhs", "m": 136, "n": 96, "k": 72, "layout": "tn"}, {"epi_n": 32}),
    ({"broadcast": "rhs", "m": 72, "n": 64, "k": 72, "layout": "tt"}, {"persistent": False}),
    # parts of k, of which the batch's index is the rest
    ({"broadcast": "lhs", "m": 64, "n": 64, "k": 320, "layout": "nt"}, {"split_k": 3}),
    ({"broadcast": "rhs", "m": 17, "n": 256, "k": 192, "layout": "tn"}, SWAPPED | {"split_k": 2}),
    ({"broadcast": "lhs", "m": 48, "n": 256, "k": 64}, SWAPPED),
    # each CTA of a cluster brings half of what is shared
    ({"broadcast": "lhs", "m": 128, "n": 256, "k": 128}, {"cluster_n": 2}),
    # odd sizes
    ({"broadcast": "lhs", "m": 65, "n": 131, "k": 33}, {}),
    ({"broadcast": "rhs", "m": 65, "n": 131, "k": 33, "layout": "tn"}, {}),
]


@pytest.mark.parametrize(("problem", "knobs"), SHARED, ids=str)
def test_an_operand_that_the_batch_shares_is_read_for_each_product(problem, knobs):
    assert_right(interpret(sm_count=2, knobs=knobs, problem={"batch": 3} | problem))


def test_a_batch_of_rows_with_one_rhs_is_computed_as_one_product():
    problem = {"batch": 3, "m": 5, "n": 128, "k": 128, "broadcast": "rhs"}
    assert_right(interpret(sm_count=2, knobs={}, problem=problem, leading=[3, 5]))


@pytest.mark.parametrize("broadcast", ["none", "lhs", "rhs"])
def test_a_batch_may_have_several_dimensions(broadcast):
    problem = {"batch": 6, "m": 24, "n": 64, "k": 64, "broadcast": broadcast, "layout": "tn"}
    assert_right(interpret(sm_count=2, knobs={}, problem=problem, leading=[2, 3]))


@pytest.mark.parametrize(
    "sizes",
    [
        {"m": 201, "n": 99, "k": 77},
        {"m": 9, "n": 7, "k": 1, "layout": "tn"},
        {"batch": 2, "m": 65, "n": 131, "k": 33, "layout": "nt"},
    ],
    ids=str,
)
def test_sizes_that_tma_refuses_are_padded(sizes):
    assert_right(interpret(sm_count=2, knobs={}, problem=sizes))


@pytest.mark.parametrize(
    ("knobs", "order", "problem"),
    [
        ({}, {"raster_width": 3, "grid_minor": "n"}, {"n": 320}),
        ({"persistent": False, "cluster_m": 2}, {"raster_width": 1}, {}),
        ({"cluster_n": 2, "delay_release": 1}, {"raster_width": 16, "grid_minor": "n"}, {}),
        ({"split_k": 2}, {"raster_width": 1, "grid_minor": "n"}, {"batch": 2, "k": 128}),
        (
            {"edges": "direct", "epi_n": 32},
            {"raster_width": 1, "grid_minor": "n"},
            {"m": 200, "n": 131, "k": 135},
        ),
    ],
    ids=str,
)
def test_tiles_walked_by_a_table_are_right_and_free_of_races(knobs, order, problem):
    assert_right(interpret(sm_count=4, knobs=knobs, problem=problem, walked_as=order))


def test_a_cap_on_sms_leaves_the_others_idle():
    assert_right(interpret(sm_count=4, knobs={"max_sms": 1}))


@pytest.mark.parametrize(
    ("knobs", "problem", "sm_count"),
    [
        # 8 tiles on 2 clusters, two pieces a warpgroup: each CTA sends one and stores one
        ({"split_k": 2, "epi_n": 32}, {}, 4),
        # one piece a warpgroup: one CTA stores, and the other only sends
        ({"split_k": 2, "persistent": False}, {"m": 128, "out_dtype": "float32"}, 4),
        # 8 steps in parts of 3: the last part ends a step beyond k; 3 CTAs share one piece of a warpgroup
        ({"split_k": 3, "compute_wgs": 3, "tile_m": 192}, {"m": 384, "n": 128, "k": 512}, 6),
        (SWAPPED | {"split_k": 2, "epi_m": 8}, {"m": 17, "n": 256}, 4),
        (SWAPPED | {"split_k": 2, "scopes": "union"}, {"m": 40, "n": 256, "layout": "tn"}, 4),
        (
            {"split_k": 2, "epi_n": 32, "scopes": "sequential"},
            {"batch": 3, "m": 64, "n": 64, "k": 128, "layout": "nt"},
            4,
        ),
    ],
    ids=str,
)
def test_parts_of_k_are_added_up_in_a_cluster(knobs, problem, sm_count):
    result = interpret(sm_count=sm_count, knobs=knobs | {"combine": "cluster"}, problem=problem)
    assert_right(result, problem.get("out_dtype", "bfloat16"))


@pytest.mark.parametrize(
    ("knobs", "problem", "sm_count"),
    [
        # 2 x 3 tiles on 2 CTAs
        ({}, {"m": 256, "n": 131}, 2),
        # the last tile ends where m does too, at any row
        ({}, {"m": 197, "n": 131}, 2),
        # 3 tiles along n are 4 in clusters, and 3 along m: nothing is stored of the fourth
        ({"cluster_n": 2}, {"m": 256, "n": 131}, 4),
        ({"cluster_m": 2, "persistent": False}, {"m": 320, "n": 65, "k": 128}, 4),
        # two elements are aligned in any row, and four; columns shared out, a batch
        ({"tile_m": 64, "tile_n": 128, "wg_split": "n"}, {"batch": 2, "m": 64, "n": 258}, 2),
        ({"tile_m": 64, "tile_n": 128, "epi_n": 128, "compute_wgs": 1}, {"m": 65, "n": 260}, 2),
        # turned on its way, 8 rows at a time
        ({"swap_ab": True, "wg_split": "n", "tile_n": 128, "epi_m": 8}, {"m": 130, "n": 133}, 2),
        ({"tile_m": 64, "compute_wgs": 1, "split_k": 2, "combine": "cluster"}, {"m": 64, "n": 77}, 4),
        ({"epi_n": 32, "scopes": "union"}, {"m": 128, "n": 70, "out_dtype": "float32"}, 2),
        ({"epi_n": 32, "scopes": "sequential"}, {"m": 128, "n": 70, "out_dtype": "float32"}, 2),
        # several tiles in the same bytes: TMA writes where threads have read
        ({"scopes": "union"}, {"m": 128, "n": 131}, 1),
        ({"scopes": "union", "cluster_n": 2}, {"m": 256, "n": 131, "layout": "nt"}, 2),
        # three pieces in two staging slots
        ({"compute_wgs": 1, "tile_m": 64, "tile_n": 96, "epi_n": 32}, {"m": 128, "n": 193}, 1),
        ({}, {"m": 150, "n": 77, "layout": "nt"}, 2),
        ({}, {"m": 256, "n": 77, "layout": "tn", "k": 130}, 2),
        # k is odd as well
        ({}, {"batch": 2, "m": 130, "n": 133, "k": 131}, 2),
    ],
    ids=str,
)
def test_a_result_that_threads_store_is_right_and_free_of_races(knobs, problem, sm_count):
    result = interpret(sm_count=sm_count, knobs=knobs | {"edges": "direct"}, problem=problem)
    assert_right(result, problem.get("out_dtype", "bfloat16"))


@pytest.mark.parametrize(
    ("knobs", "problem", "sm_count"),
    [
        # 4 x 4 tiles, 8 for each CTA and 4 for a warpgroup; more steps than slots, and fewer
        ({"tile_m": 64}, {}, 2),
        ({"tile_m": 64, "stages": 6, "delay_release": 1}, {"k": 128}, 2),
        ({"tile_m": 64, "stages": 3, "scopes": "nested"}, {"n": 64}, 2),
        # three warpgroups; 5 tiles for one CTA, so that they end unevenly
        ({"tile_m": 64, "compute_wgs": 3, "scopes": "scratch"}, {"m": 320, "n": 64}, 1),
        # fewer tiles than warpgroups
        ({"tile_m": 64}, {"m": 64, "n": 64}, 1),
        ({"tile_m": 64, "cluster_m": 2}, {}, 4),
        ({"tile_m": 64, "cluster_n": 2, "delay_release": 1, "scopes": "nested"}, {}, 2),
        ({"tile_m": 64, "split_k": 2}, {"m": 128}, 2),
        ({"tile_m": 64, "epi_n": 32, "edges": "direct"}, {"m": 197, "n": 131}, 2),
        (SWAPPED, {"m": 40, "n": 512}, 2),
        ({"tile_m": 64}, {"batch": 3, "m": 64, "n": 128, "k": 64, "layout": "nt"}, 2),
    ],
    ids=str,
)
def test_warpgroups_that_take_turns_at_tiles_are_right_and_free_of_races(knobs, problem, sm_count):
    assert_right(
        interpret(sm_count=sm_count, knobs={"compute_wgs": 2} | knobs | {"wg_split": "tile"}, problem=problem)
    )


@pytest.mark.parametrize(
    "knobs",
    [
        {"edges": "pad"},
        {"edges": "pad", "split_k": 2},
        {"edges": "view", "wg_split": "n", "tile_n": 128},
        {"edges": "pad", "swap_ab": True, "wg_split": "n", "tile_n": 128},
        {"edges": "direct", "epi_n": 32},
    ],
    ids=str,
)
def test_what_lies_behind_the_columns_of_a_rhs_reaches_no_result(knobs):
    # What the copy leaves unwritten is NaN here.
    problem = {"m": 128, "n": 377, "k": 128}
    assert_right(interpret(sm_count=2, knobs=knobs, problem=problem, widens_all=True))


def test_parts_sent_before_those_of_the_tile_before_were_read_are_found():
    knobs = {"split_k": 2, "combine": "cluster"}
    done = interpreted({"sm_count": 4, "knobs": knobs, "without_awaiting_room": True})
    if done.returncode == 0:
        assert json.loads(done.stdout.splitlines()[-1])["races"]
    else:  # both tiles' parts had come before a warpgroup looked
        assert "but barrier is already at phase 2" in done.stderr


def test_a_tile_of_three_pieces_leaves_no_store_in_flight_that_the_next_tile_overwrites():
    # Two staging slots: the last piece of a tile and the first of the next lie in the same one.
    knobs = {"compute_wgs": 1, "tile_m": 64, "tile_n": 192, "epi_n": 64}
    assert_right(interpret(sm_count=1, knobs=knobs, problem={"m": 128, "n": 384, "k": 64}))


def test_union_without_its_barriers_is_a_race_that_is_found():
    assert interpret(sm_count=2, knobs={"scopes": "union"}, without_union_barriers=True)["races"]
