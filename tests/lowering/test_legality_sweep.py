"""The early check against the real lowering, on random configurations, most of them illegal."""

import dataclasses
import random
import re
from collections import Counter

import jax
import pytest

from autotune.evaluate.digest import module_digest
from autotune.lint.config_audit import audit_configs, render
from hopper_matmul.config import KNOB_NAMES, Config
from hopper_matmul.facts import Facts
from hopper_matmul.hardware import KNOWN
from hopper_matmul.kernel import build
from hopper_matmul.legality import RULES, check
from hopper_matmul.problem import Problem
from hopper_matmul.random_variants import random_variant
from hopper_matmul.reference import operand_types
from hopper_matmul.scopes import PLANS, Scope, ScopePlan
from hopper_matmul.target import TARGET, HopperMatmul
from tests.helpers.real_lowering import lower_for_real

DEVICE = KNOWN["nvidia_h200"]


def disagreement(problem: Problem, config: Config) -> str | None:
    """Returns what the check and the real lowering say differently; None where they agree."""
    said = next((rejection for rejection in check(problem, config, DEVICE) if rejection.exception), None)
    real = lower_for_real(problem, config, DEVICE)
    expected = (said.stage, said.exception) if said else ("ok", None)
    if expected != (real.stage, real.exception):
        return f"{problem} {config}: check says {said and said.line()}, lowering says {real}"
    smem_bytes = Facts(problem, config, DEVICE).smem_bytes
    if real.smem_bytes not in (None, smem_bytes):
        return f"{problem} {config}: check counts {smem_bytes} bytes of SMEM, lowering {real.smem_bytes}"
    return None


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_check_agrees_with_lowering_on_random_configurations(seed):
    audit = audit_configs(TARGET, DEVICE, 90, seed)
    assert audit.agrees, render(audit)
    assert audit.legal > 0
    assert len(audit.refused) > 5
    assert audit.forgotten


def test_check_agrees_with_lowering_on_results_that_threads_store():
    # Of random configurations few can: here most knobs are as they are by default, and the sizes are odd.
    rng = random.Random(1)
    found = Counter()
    for _ in range(80):
        drawn, config = random_variant(rng)
        kept = {name: getattr(Config(), name) for name in KNOB_NAMES if rng.random() < 0.85}
        config = dataclasses.replace(config, **kept | {"edges": "direct"})
        n, layout = rng.choice([333, 1111, 4097, 514, 1036, 1000]), rng.choice(["nn", "nt", "nt", "tn"])
        k = rng.choice([drawn.k, drawn.k, 4097, 514, 7])
        problem = dataclasses.replace(drawn, m=rng.choice([64, 512, 333, 3000, 100]), n=n, k=k, layout=layout)
        assert disagreement(problem, config) is None
        rejections = check(problem, config, DEVICE)
        found[rejections[0].rule if rejections else "legal"] += 1
    assert found["legal"] > 10
    assert found["direct"] > 10


@pytest.mark.parametrize(
    ("sizes", "knobs", "copied"),
    [
        # the rhs in 33 tiles of 128 columns, and nothing else
        ({"m": 512, "n": 4097, "k": 512}, {"tile_n": 128}, {(512, 33 * 128)}),
        ({"m": 500, "n": 4097, "k": 512, "layout": "nt"}, {}, set()),
        # rows of 513 are copied into whole lines of 64
        ({"m": 512, "n": 4097, "k": 513}, {"tile_n": 128}, {(512, 576), (513, 33 * 128), (520, 33 * 128)}),
    ],
    ids=str,
)
def test_a_result_that_threads_store_is_not_copied(sizes, knobs, copied):
    problem, config = Problem(**sizes), dataclasses.replace(Config(), **knobs, edges="direct")
    assert not check(problem, config, DEVICE)
    traced = jax.make_jaxpr(build(problem, config, DEVICE))(*operand_types(problem))
    results = re.findall(r"\[(\d+),(\d+)\] = (?:pad|concatenate|slice)\[", str(traced))
    as_it_is = {one.shape for one in operand_types(problem)}  # padded by nothing
    whole = {(int(rows), int(columns)) for rows, columns in results if int(columns) >= 512} - as_it_is
    assert whole - {(problem.k, 32 * 128)} == copied  # the first part of what is put together


@pytest.mark.parametrize(
    ("sizes", "knobs", "message"),
    [
        ({"n": 4096}, {}, "edges=direct with n=4096: it takes a result whose rows do not fill 16 bytes"),
        ({"m": 97}, {}, "edges=direct with tile_m=128: it takes at most m=97, where the last tile ends"),
        ({"n": 97}, {}, "edges=direct with tile_n=128: it takes at most n=97, where the last tile ends"),
        (
            {"layout": "tn", "m": 4000},
            {},
            "edges=direct with tile_m=128 and layout tn: it takes a row-major lhs, or divisors of m=4000",
        ),
        (
            {},
            {"epi_n": 16},
            "edges=direct with epi_n=16: it takes multiples of 32, the threads of a warp",
        ),
        (
            {},
            {"split_k": 2},
            "edges=direct with split_k=2 with combine=kernel: it takes one part of k, or combine=cluster",
        ),
    ],
    ids=str,
)
def test_a_refusal_to_store_directly_names_the_knob_and_what_it_may_be(sizes, knobs, message):
    problem = Problem(**{"m": 4096, "n": 4097, "k": 4096} | sizes)
    config = dataclasses.replace(Config(), **knobs, edges="direct")
    assert check(problem, config, DEVICE)[0].message == message
    assert lower_for_real(problem, config, DEVICE).message == message


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 110))
def test_check_agrees_with_lowering_on_three_thousand_configurations(seed):
    audit = audit_configs(TARGET, DEVICE, 300, seed)
    assert audit.agrees, render(audit)


def test_random_configurations_are_for_shared_operands_of_both_sides_too():
    rng = random.Random(1)
    drawn = {TARGET.random_variant(rng)[0].broadcast for _ in range(200)}
    assert drawn == {"none", "lhs", "rhs"}


@pytest.mark.parametrize(
    ("broadcast", "knobs"),
    [
        ("lhs", {"cluster_n": 3}),
        ("lhs", {"cluster_m": 3}),
        ("rhs", {"cluster_n": 3}),
        ("rhs", {"cluster_m": 3}),
    ],
)
def test_a_tile_that_cannot_be_shared_is_described_without_the_batch_that_its_operand_lacks(broadcast, knobs):
    problem = Problem(batch=2, m=4096, n=4096, k=4096, broadcast=broadcast)
    config = dataclasses.replace(Config(), **knobs)
    said = [rejection for rejection in check(problem, config, DEVICE) if rejection.exception]
    assert said[0].rule == "multicast"
    assert said[0].message in lower_for_real(problem, config, DEVICE).message


class ForgetfulTarget(HopperMatmul):
    """A target whose check has lost one rule."""

    def __init__(self, lost):
        self.lost = lost

    def check(self, problem, config, device):
        return [one for one in super().check(problem, config, device) if one.rule != self.lost]


def test_audit_finds_a_rule_that_is_missing():
    audit = audit_configs(ForgetfulTarget("smem"), DEVICE, 60, 1)
    assert audit.false_accepts + audit.wrong_exceptions + audit.wrong_messages > 0
    assert not audit.agrees


# One configuration for each rule, broken alone or first, so that no rule is there for nothing.
BREAKERS = {
    "problem": {"problem": {"scales": "per_tensor"}},
    "direct": {"edges": "direct"},
    "view": {"problem": {"n": 1000}, "edges": "view"},
    "threads": {"compute_wgs": 16, "tile_m": 1024},
    "swizzle": {"tile_k": 8},
    "epilogue_swizzle": {"epi_n": 8},
    "exchange_swizzle": {"split_k": 2, "combine": "cluster", "swap_ab": True, "wg_split": "n", "epi_m": 12},
    "tiling": {"epi_m": 12},
    "registers": {"memory_registers": 100},
    "smem": {"stages": 8, "tile_m": 256},
    "cluster_mask": {"cluster_n": 64},
    "barriers": {"stages": 33, "tile_k": 16, "tile_m": 64, "compute_wgs": 1, "tile_n": 64},
    "exchange_barriers": {
        # 66 pieces of 64x16 are shared out among two CTAs.
        "split_k": 2,
        "combine": "cluster",
        "compute_wgs": 3,
        "tile_m": 192,
        "tile_n": 352,
        "epi_n": 16,
        "stages": 1,
        "tile_k": 32,
    },
    "main": {"scopes": PLANS["acc_collective"]},
    "b": {"scopes": PLANS["smem_private"]},
    "discharge": {"scopes": PLANS["acc_outermost"]},
    "acc_empty": {"tile_m": 8, "compute_wgs": 11},
    "wgmma_slice": {"tile_m": 120, "compute_wgs": 2},
    "wgmma_m": {"tile_m": 96},
    "epilogue_rows": {"epi_m": 32},
    "epilogue_columns": {"tile_n": 96, "epi_n": 64},
    "epilogue_turned": {
        "problem": {"out_dtype": "float32"},
        "swap_ab": True,
        "wg_split": "n",
        "tile_m": 16,
        "epi_m": 16,
    },
    "wgmma_k": {"problem": {"layout": "tn"}, "tile_k": 32},
    "tma_box": {"tile_m": 4096, "tile_k": 16, "stages": 1, "tile_n": 64, "epi_m": 64},
    "multicast": {"cluster_n": 3},
    "wgmma_n": {"tile_n": 320, "tile_k": 32, "stages": 2},
    "register_split": {"memory_registers": 8},
    "spills": {"tile_m": 256, "tile_n": 256, "stages": 3},
    "acc_in_memory_role": {
        "scopes": ScopePlan(
            name="acc_for_all",
            scopes=(
                Scope(place="kernel", holds=("barriers", "epilogue", "ring"), collective=True),
                Scope(place="kernel", holds=("accumulator",), collective=False),
            ),
        )
    },
    "launch": {"compute_wgs": 8, "tile_m": 512, "tile_k": 32, "stages": 2, "tile_n": 64},
    "cluster": {"cluster_m": 4, "cluster_n": 4},
    # 8 rows of 32 elements are 512 bytes: 64 for each of 8 CTAs
    "multicast_part": {
        "swap_ab": True,
        "wg_split": "n",
        "tile_m": 8,
        "epi_m": 8,
        "tile_k": 32,
        "cluster_n": 8,
    },
    "memory": {"problem": {"m": 2**20, "n": 2**20}},
    "parts": {"split_k": 65},
    "combine": {"combine": "cluster"},
    "max_sms": {"max_sms": 8, "persistent": False},
    "divergent": {"scopes": PLANS["epilogue_in_compute"]},
    "peer_ring": {"scopes": PLANS["sequential"], "cluster_m": 2},
    "turns": {"wg_split": "tile", "scopes": PLANS["union"]},
    "pipeline": {"stages": 1, "delay_release": 1},
    "split": {"tile_m": 200, "compute_wgs": 3},
    "epilogue_tile": {"epi_m": 128},
}


def broken_case(rule_id: str) -> tuple[Problem, Config]:
    knobs = dict(BREAKERS[rule_id])
    sizes = {"m": 4096, "n": 4096, "k": 4096} | knobs.pop("problem", {})
    return Problem(**sizes), dataclasses.replace(Config(), **knobs)


def test_every_rule_has_a_breaker():
    assert sorted(BREAKERS) == sorted(rule.id for rule in RULES)


@pytest.mark.parametrize("rule_id", sorted(set(BREAKERS) - {"memory"}))
def test_each_rule_is_broken_and_lowering_says_so_or_forgets_it(rule_id):
    problem, config = broken_case(rule_id)
    assert rule_id in [rejection.rule for rejection in check(problem, config, DEVICE)]
    assert disagreement(problem, config) is None


@pytest.mark.parametrize("plan", sorted(PLANS))
def test_message_of_an_illegal_plan_is_the_compilers_own(plan):
    problem = Problem(m=4096, n=4096, k=4096)
    config = dataclasses.replace(Config(), scopes=PLANS[plan])
    said = [rejection for rejection in check(problem, config, DEVICE) if rejection.exception]
    assert lower_for_real(problem, config, DEVICE).message == (said[0].message if said else "")


@pytest.mark.parametrize(
    ("knobs", "smem_bytes"),
    [
        # 4 slots of 128x64 + 64x128 bfloat16, 2x2 pieces of 64x64, 8 barriers of 8 bytes
        ({}, 4 * 2 * 16_384 + 4 * 8_192 + 64),
        # the union keeps the larger of both, and has two barriers more
        ({"scopes": PLANS["union"]}, 4 * 2 * 16_384 + 80),
        ({"scopes": PLANS["sequential"]}, 4 * 2 * 16_384 + 64),
        # nested scopes add up like one
        ({"scopes": PLANS["nested"]}, 4 * 2 * 16_384 + 4 * 8_192 + 64),
        # of each warpgroup's two pieces a CTA stores one, which needs one slot, and of which three parts come in;
        # a barrier for each warpgroup's piece, and one for its room
        (
            {"split_k": 4, "combine": "cluster", "stages": 2},
            2 * 2 * 16_384 + 2 * 8_192 + 2 * 3 * 16_384 + 8 * (4 + 2 + 2),
        ),
        # one epilogue piece needs one slot: 2 warpgroups x 64x128
        ({"epi_n": 128, "stages": 2}, 2 * 2 * 16_384 + 2 * 16_384 + 32),
    ],
)
def test_smem_is_counted_to_the_byte(knobs, smem_bytes):
    problem, config = Problem(m=4096, n=4096, k=4096), dataclasses.replace(Config(), **knobs)
    assert Facts(problem, config, DEVICE).smem_bytes == smem_bytes
    assert lower_for_real(problem, config, DEVICE).smem_bytes == smem_bytes


@pytest.mark.parametrize(
    ("knobs", "same"),
    [
        ({"compute_wgs": 1, "tile_m": 64}, {"wg_split": "n"}),  # one warpgroup has nothing to share out
        ({"tile_m": 512, "tile_n": 32, "epi_n": 32, "tile_k": 32}, {"persistent": False}),  # one tile a CTA
        ({}, {"combine": "cluster"}),  # one part has nothing to be combined with
    ],
)
def test_knobs_that_change_nothing_give_the_same_module(knobs, same):
    problem = Problem(m=4096, n=512, k=512)
    digests = [
        module_digest(
            jax.jit(build(problem, dataclasses.replace(Config(), **knobs, **extra), DEVICE))
            .trace(*operand_types(problem))
            .lower(lowering_platforms=("cuda",))
        )
        for extra in ({}, same)
    ]
    assert digests[0] == digests[1]


@pytest.mark.parametrize(("memory_registers", "changes"), [(40, 2), (0, 0)])
def test_registers_change_hands_unless_none_are_asked_for(memory_registers, changes):
    problem, config = Problem(m=512, n=512, k=512), Config(memory_registers=memory_registers)
    traced = jax.make_jaxpr(build(problem, config, DEVICE))(*operand_types(problem))
    assert str(traced).count("set_max_registers") == changes
    assert disagreement(problem, config) is None


def test_an_accumulator_has_its_even_share_of_the_registers_where_none_change_hands():
    # 65,536 registers over 384 threads are 168 each, of which 40 are for all else: 256x128 over 256 threads takes 128.
    problem = Problem(m=4096, n=4096, k=4096)
    fits, spills = (
        check(problem, Config(tile_m=256, tile_n=tile_n, stages=3, memory_registers=0), DEVICE)
        for tile_n in (128, 192)
    )
    assert not fits
    assert [rejection.rule for rejection in spills] == ["spills"]
    assert not check(problem, Config(tile_m=256, tile_n=192, stages=3), DEVICE)


@pytest.mark.parametrize("tile_n", [96, 128])
def test_a_piece_of_odd_rows_in_one_of_several_planes_is_refused_by_what_is_met_first(tile_n):
    problem = Problem(batch=3, m=4096, n=4096, k=4096)
    assert disagreement(problem, dataclasses.replace(Config(), tile_n=tile_n, epi_m=24)) is None


def test_a_warpgroups_own_columns_are_read_panel_after_panel_of_the_other_operands_k():
    # A swizzle of 64 bytes: 32 columns of the rhs each, and two panels of k in the lhs, whose 4,097 rows are viewed.
    problem = Problem(m=4097, n=4096, k=4096)
    config = dataclasses.replace(Config(), edges="view", tile_n=64, wg_split="n", epi_n=32)
    assert not check(problem, config, DEVICE)
    assert disagreement(problem, config) is None


def test_of_two_faults_of_a_wgmma_the_first_that_the_compiler_meets_is_named_first():
    problem = Problem(m=4096, n=96, k=4096, layout="tn")
    config = dataclasses.replace(Config(), tile_n=512, tile_k=8)
    said = [rejection for rejection in check(problem, config, DEVICE) if rejection.exception]
    assert [rejection.rule for rejection in said[:2]] == ["wgmma_n", "wgmma_k"]
    assert said[0].message in lower_for_real(problem, config, DEVICE).message


SMALL = {
    "compute_wgs": 1,
    "tile_m": 64,
    "tile_n": 64,
    "tile_k": 32,
    "epi_n": 8,
    "stages": 2,
    "combine": "cluster",
}


@pytest.mark.parametrize(
    ("knobs", "is_refused"),
    [
        # CTAs are numbered along the parts of k first, then n, then m: bits 31 * 2 and 32 * 2, 7 * 8 and 7 * 9
        ({"cluster_m": 32, "cluster_n": 2}, False),
        ({"cluster_m": 64}, True),
        ({"cluster_n": 64}, True),
        ({"cluster_m": 32, "split_k": 2}, False),
        ({"cluster_m": 64, "split_k": 2}, True),
        ({"cluster_n": 8, "split_k": 8}, False),
        ({"cluster_n": 8, "split_k": 9}, True),
        ({"cluster_m": 2, "split_k": 33}, False),
        # met before more than 32 barriers in a group and before any scope, after SMEM that does not suffice
        ({"cluster_m": 64, "stages": 33, "tile_k": 16, "tile_n": 32}, True),
        ({"cluster_m": 4, "cluster_n": 8, "split_k": 4, "scopes": PLANS["acc_in_scratch"]}, True),
        ({"cluster_m": 4, "cluster_n": 8, "split_k": 4, "scopes": PLANS["union"]}, True),
        ({"cluster_m": 64, "stages": 8, "tile_k": 256}, False),
    ],
)
def test_a_cluster_whose_mask_does_not_fit_64_bits_is_refused(knobs, is_refused):
    problem = Problem(m=4096, n=4096, k=4096, out_dtype="float32")
    config = dataclasses.replace(Config(), **(SMALL | knobs))
    said = [rejection.rule for rejection in check(problem, config, DEVICE) if rejection.exception]
    assert (said[:1] == ["cluster_mask"]) is is_refused
    assert disagreement(problem, config) is None


# Tiles 96 wide where a swizzle is 64 columns; and 80 wide, their rows, where it is 32: parts of k that lie turned.
UPRIGHT = {"tile_n": 96, "epi_n": 64}
TURNED = {"swap_ab": True, "tile_m": 80, "tile_n": 128, "wg_split": "n", "epi_m": 64, "split_k": 2}


@pytest.mark.parametrize(
    ("sizes", "knobs", "is_refused"),
    [
        # the single tile of one of several planes; not one tile of two, nor that of the only plane
        ({"m": 128, "n": 96, "batch": 3}, UPRIGHT, False),
        ({"m": 128, "n": 96}, UPRIGHT | {"split_k": 2}, False),
        ({"m": 100, "n": 8, "batch": 3}, UPRIGHT, False),
        ({"m": 80, "n": 128}, TURNED, False),
        ({"m": 128, "n": 97, "batch": 3}, UPRIGHT, True),
        ({"m": 129, "n": 96, "batch": 3}, UPRIGHT, True),
        ({"m": 128, "n": 96}, UPRIGHT, True),
        ({"m": 81, "n": 128}, TURNED, True),
        # bands of one tile, along the rows of a result that is one tile wide
        ({"m": 4096, "n": 96}, UPRIGHT | {"raster_width": 1}, False),
        ({"m": 4096, "n": 96, "batch": 3}, UPRIGHT | {"raster_width": 1}, False),
        ({"m": 80, "n": 4096}, TURNED | {"raster_width": 1, "grid_minor": "n"}, False),
        ({"m": 4096, "n": 97}, UPRIGHT | {"raster_width": 1}, True),
        ({"m": 4096, "n": 96}, UPRIGHT | {"raster_width": 1, "grid_minor": "n"}, True),
        ({"m": 4096, "n": 96}, UPRIGHT | {"raster_width": 2}, True),
        ({"m": 80, "n": 4096}, TURNED | {"raster_width": 1}, True),
        # CTAs of a cluster, even those that share one tile, add their own number to the tile's
        ({"m": 128, "n": 96, "batch": 3}, UPRIGHT | {"split_k": 2, "combine": "cluster", "stages": 2}, True),
        ({"m": 256, "n": 96, "batch": 3}, UPRIGHT | {"cluster_m": 2}, True),
        # a warpgroup's own columns begin at its own number too
        ({"m": 64, "n": 192, "batch": 3}, {"tile_m": 64, "tile_n": 192, "wg_split": "n", "epi_n": 64}, True),
    ],
)
def test_an_odd_width_is_refused_unless_the_compiler_sees_that_every_tile_begins_at_column_0(
    sizes, knobs, is_refused
):
    problem, config = Problem(k=4096, **sizes), dataclasses.replace(Config(), **knobs)
    said = [rejection.rule for rejection in check(problem, config, DEVICE) if rejection.exception]
    assert said == ["epilogue_columns"] * is_refused
    assert disagreement(problem, config) is None
