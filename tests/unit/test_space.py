"""The space of variants: enumeration against a check of every single configuration, counts, narrowing."""

import itertools
import random
from collections import Counter

import numpy as np
import pytest

from hopper_matmul.config import KNOB_NAMES, Config
from hopper_matmul.dependence import knobs_read
from hopper_matmul.facts import Facts
from hopper_matmul.hardware import KNOWN
from hopper_matmul.heuristic import heuristic_configs
from hopper_matmul.legality import RULES, check
from hopper_matmul.problem import FieldError, Problem
from hopper_matmul.random_variants import random_variant
from hopper_matmul.space import legal_mask, space_of

DEVICE = KNOWN["nvidia_h200"]
PROBLEM = Problem(m=4096, n=6144, k=4096)
SMALL = {
    "tile_m": [64, 128, 192],
    "tile_n": [128, 192],
    "tile_k": [64],
    "stages": [3, 4],
    "compute_wgs": [1, 2],
    "epi_n": [64, 96],
    "epi_m": [64],
    "cluster_m": [1],
    "cluster_n": [1, 2],
    "raster_width": [8],
    "delay_release": [0],
    "persistent": [True],
    "grid_minor": ["m"],
}


def raw_configs(knobs):
    """Returns every configuration, legal or not, in the order of the knobs."""
    return [dict(zip(knobs, values, strict=True)) for values in itertools.product(*knobs.values())]


def test_enumeration_finds_exactly_what_the_check_passes():
    space = space_of(PROBLEM, DEVICE, SMALL)
    expected = [
        knobs for knobs in raw_configs(space.knobs) if not check(PROBLEM, Config.from_knobs(knobs), DEVICE)
    ]
    legal = space.legal()
    assert 0 < legal.size < space.raw_size
    assert [legal.knobs(row) for row in range(legal.size)] == expected


@pytest.mark.parametrize("problem", [PROBLEM, Problem(m=64, n=4096, k=14336), Problem(m=16, n=64, k=64)])
def test_every_raw_configuration_is_counted_once(problem):
    space = space_of(problem, DEVICE, {})
    assert space.legal().size + sum(space.legal().rejected.values()) == space.raw_size


def test_arrays_and_numbers_give_the_same_verdict():
    rng = random.Random(0)
    knobs = space_of(PROBLEM, DEVICE, {}).knobs
    drawn = [{name: rng.choice(values) for name, values in knobs.items()} for _ in range(3_000)]
    mask = legal_mask(PROBLEM, {name: np.array([one[name] for one in drawn]) for name in knobs}, DEVICE)
    assert mask.tolist() == [not check(PROBLEM, Config.from_knobs(one), DEVICE) for one in drawn]
    assert 0 < mask.sum() < len(drawn)


def test_no_configuration_breaks_a_rule_that_it_is_not_asked():
    rng, broken = random.Random(3), Counter()
    for _ in range(5000):
        problem, config = random_variant(rng)
        facts = Facts(problem, config, DEVICE)
        has = {"all": True, "clusters": facts.cluster_ctas > 1, "edges": config.edges != "pad"}
        for rule in RULES:
            if rule.breaks(facts):
                assert has[rule.asked_of], (rule.id, problem, config)
                broken[rule.asked_of] += 1
    assert min(broken[asked_of] for asked_of in ("all", "clusters", "edges")) > 100


def test_a_rule_that_is_not_asked_in_a_space_breaks_only_with_one_of_those_that_it_implies():
    rng, found = random.Random(0), set()
    implied = {rule.id: set(rule.implies) for rule in RULES if rule.implies}
    for _ in range(6_000):
        broken = {rejection.rule for rejection in check(*random_variant(rng), DEVICE)}
        for rule_id in broken & set(implied):
            found.add(rule_id)
            assert broken & implied[rule_id]
    assert found == set(implied) == {"cluster_mask", "epilogue_columns"}


def test_the_order_of_the_tiles_can_be_left_to_the_end_of_an_enumeration():
    knobs = set().union(*(knobs_read(rule, PROBLEM, DEVICE) for rule in RULES if not rule.implies))
    assert not knobs & {"grid_minor", "raster_width"}


@pytest.mark.parametrize(
    ("rule_id", "knobs"),
    [
        ("barriers", {"stages", "compute_wgs", "wg_split"}),
        ("main", {"scopes"}),
        ("problem", set()),
        ("wgmma_k", {"tile_k", "tile_n", "compute_wgs", "wg_split"}),
        ("wgmma_m", {"tile_m", "tile_n", "swap_ab", "compute_wgs", "wg_split"}),
        (
            "smem",
            # of split_k and combine, since parts of k are staged as float32, or other CTAs' come into buffers
            {"tile_m", "tile_n", "tile_k", "stages", "compute_wgs", "wg_split", "epi_m", "epi_n"}
            | {"scopes", "split_k", "combine"},
        ),
    ],
)
def test_knobs_that_a_rule_reads_are_found(rule_id, knobs):
    rule = next(rule for rule in RULES if rule.id == rule_id)
    assert knobs_read(rule, PROBLEM, DEVICE) == knobs


def test_a_cluster_that_adds_parts_is_tried_where_parts_are_and_takes_eight_ctas_at_most():
    assert space_of(PROBLEM, DEVICE, {}).knobs["combine"] == ("kernel",)
    space = space_of(
        Problem(m=64, n=4096, k=14336), DEVICE, {"cluster_m": [1, 2], "tile_m": [64], "tile_n": [64]}
    )
    codes, names = space.legal().codes, list(space.knobs)
    of = {
        name: np.array(space.knobs[name])[codes[:, names.index(name)]]
        for name in ("combine", "split_k", "cluster_m")
    }
    adds = of["combine"] == "cluster"
    assert set(of["split_k"][adds]) == {2, 3, 4, 5, 6, 8}
    assert max(of["split_k"][adds] * of["cluster_m"][adds]) == 8


def test_knobs_round_trip():
    knobs = Config().to_knobs()
    assert tuple(knobs) == KNOB_NAMES
    assert Config.from_knobs(knobs) == Config()


def test_a_missing_knob_is_neutral():
    assert Config.from_knobs({"tile_m": 64}) == Config(tile_m=64)


@pytest.mark.parametrize(
    ("narrowing", "key", "says"),
    [
        ({"tile_mm": [64]}, "knob", "did you mean 'tile_m'"),
        ({"tile_m": []}, "tile_m", "1 to 255 values"),
        ({"tile_m": 64}, "tile_m", "1 to 255 values"),
        ({"tile_m": [64, 64]}, "tile_m", "once"),
        ({"tile_m": [64.0]}, "tile_m", "whole number"),
        ({"tile_m": [-1]}, "tile_m", "whole number"),
        ({"persistent": [1]}, "persistent", "true, false"),
        ({"scopes": ["jiont"]}, "scopes", "did you mean 'joint'"),
        ({"wg_split": ["k"]}, "wg_split", "m, n"),
        ({"combine": ["clusters"]}, "combine", "did you mean 'cluster'"),
    ],
)
def test_wrong_narrowing_is_named_with_what_is_allowed(narrowing, key, says):
    with pytest.raises(FieldError) as caught:
        space_of(PROBLEM, DEVICE, narrowing)
    assert caught.value.key == key
    assert says in caught.value.allowed


def test_values_outside_of_the_default_ones_are_taken():
    assert space_of(PROBLEM, DEVICE, {"tile_n": [48]}).knobs["tile_n"] == (48,)


def test_each_rule_that_rejects_has_an_example_that_breaks_it():
    legal = space_of(PROBLEM, DEVICE, {}).legal()
    assert set(legal.examples) == set(legal.rejected)
    for rule_id, knobs in legal.examples.items():
        broken = [rejection.rule for rejection in check(PROBLEM, Config.from_knobs(knobs), DEVICE)]
        assert rule_id in broken


@pytest.mark.parametrize(
    "problem",
    [
        PROBLEM,
        Problem(m=1, n=8192, k=8192),
        Problem(m=300, n=300, k=65536),
        Problem(m=3, n=5, k=7),
        Problem(m=333, n=1111, k=2049, layout="tt"),
        Problem(batch=128, m=128, n=128, k=128),
        Problem(m=64, n=4096, k=14336, layout="nt", out_dtype="float32"),
    ],
    ids=Problem.describe,
)
def test_untuned_choices_lie_in_the_space(problem):
    knobs = space_of(problem, DEVICE, {}).knobs
    choices = list(heuristic_configs(problem, DEVICE))
    assert choices
    for config in choices:
        assert {name for name, value in config.to_knobs().items() if value not in knobs[name]} == set()


def test_one_computing_warpgroup_shares_out_nothing_so_that_its_split_makes_a_twin():
    problem = Problem.from_fields({"m": 4096, "n": 4096, "k": 4096})
    space = space_of(problem, KNOWN["nvidia_h200"], {"compute_wgs": [1, 2], "wg_split": ["m", "n"]})
    names = list(space.knobs)
    codes = [0] * len(names)
    (twin,) = space.twins(tuple(codes))
    assert [name for name, a, b in zip(names, codes, twin) if a != b] == ["wg_split"]
    codes[names.index("compute_wgs")] = 1
    assert space.twins(tuple(codes)) == []


def coded(space, **knobs):
    """Returns the codes of a configuration; knobs that are left out have their first value."""
    return tuple(values.index(knobs.get(name, values[0])) for name, values in space.knobs.items())


def test_orders_that_are_the_same_make_twins():
    problem = Problem.from_fields({"m": 1024, "n": 4096, "k": 4096})
    narrowed = {"compute_wgs": [2], "grid_minor": ["m", "n"], "raster_width": [1, 4, 8, 16]}
    space = space_of(problem, KNOWN["nvidia_h200"], narrowed)
    eight_rows = {"tile_m": 128, "tile_n": 128, "cluster_m": 1}

    def twins(**order):
        return set(space.twins(coded(space, **eight_rows, **order)))

    # Of 8 tiles along m a band of 8 and of 16 holds all; of 32 along n a band of 16 holds half.
    same = coded(space, **eight_rows, grid_minor="m", raster_width=16)
    assert twins(grid_minor="m", raster_width=8) == {same}
    assert twins(grid_minor="m", raster_width=4) == twins(grid_minor="n", raster_width=16) == set()
    # One row of tiles has one order.
    one_row = {"tile_m": 256, "cluster_m": 2, "grid_minor": "n", "raster_width": 4}
    low = space_of(Problem.from_fields({"m": 512, "n": 8192, "k": 8192}), KNOWN["nvidia_h200"], narrowed)
    assert len(low.twins(coded(low, **one_row))) == 7


def test_the_order_of_tiles_is_a_runtime_knob_where_there_is_a_choice():
    device = KNOWN["nvidia_h200"]
    large = Problem.from_fields({"m": 4096, "n": 8192, "k": 4096})
    assert space_of(large, device, {}).runtime_knobs == ("grid_minor", "raster_width")
    assert space_of(large, device, {"raster_width": [8]}).runtime_knobs == ()
    skinny = Problem.from_fields({"m": 16, "n": 8192, "k": 4096})
    assert space_of(skinny, device, {}).runtime_knobs == ()
