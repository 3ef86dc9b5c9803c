"""Samplers: what they propose, what they never propose, and how fast they find what is good."""

from __future__ import annotations

import statistics
from types import SimpleNamespace

import numpy as np
import pytest

from autotune.search import make_searcher
from autotune.search.rows import LegalRows
from tests.helpers.scripted import (
    KNOBS,
    ScriptedSearch,
    ScriptedSpace,
    ScriptedTarget,
    legal_knobs,
    smem_rule,
    smooth_time_us,
)

SAMPLERS = ("auto", "guided", "local", "tpe", "random", "exhaustive")


def space_of(knobs=KNOBS, rule=smem_rule):
    return ScriptedSpace(knobs, rule)


def drained(searcher, time_us=smooth_time_us, rule=smem_rule, in_flight=4, limit=10_000):
    """Returns the legal knobs that a driver with several candidates in flight would measure, in order."""
    flying, proposed = [], []
    while len(proposed) < limit:
        knobs = searcher.ask()
        if knobs is None:
            break
        broken = rule(knobs)
        if broken is not None:
            searcher.reject(knobs, [broken])
            continue
        proposed.append(knobs)
        flying.append(knobs)
        if len(flying) == in_flight:
            told = flying.pop(0)
            searcher.tell(told, time_us(told))
    return proposed


def frozen(many):
    return [tuple(sorted(knobs.items())) for knobs in many]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_each_legal_configuration_is_proposed_exactly_once(sampler):
    proposed = drained(make_searcher(ScriptedSearch(sampler=sampler), space_of(), []))
    assert sorted(frozen(proposed)) == sorted(frozen(legal_knobs()))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_failed_candidates_are_not_proposed_again(sampler):
    searcher = make_searcher(ScriptedSearch(sampler=sampler), space_of(), [])
    proposed = drained(searcher, time_us=lambda knobs: None)
    assert len(set(frozen(proposed))) == len(proposed) == 212


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_defaults_come_first_and_one_outside_the_space_is_left_out(sampler):
    default = {"tile_m": 128, "tile_n": 128, "stages": 4, "order": "rows", "persistent": True}
    illegal, foreign = default | {"tile_m": 256}, default | {"tile_m": 80}
    searcher = make_searcher(
        ScriptedSearch(sampler=sampler), space_of(), [illegal, foreign, default, default]
    )
    assert searcher.ask() == default
    assert default not in drained(searcher)


@pytest.mark.parametrize("sampler", ["guided", "local", "tpe", "random"])
def test_the_seed_decides_what_is_proposed(sampler):
    one, same, other = (
        frozen(drained(make_searcher(ScriptedSearch(sampler=sampler, seed=seed), space_of(), []), limit=40))
        for seed in (1, 1, 2)
    )
    assert one == same != other


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_what_an_earlier_run_measured_is_not_proposed(sampler):
    searcher = make_searcher(ScriptedSearch(sampler=sampler), space_of(), [])
    earlier = list(legal_knobs())[::2]
    for knobs in earlier:
        searcher.tell(knobs, smooth_time_us(knobs))
    assert searcher.remaining == 106
    proposed = drained(searcher)
    assert len(proposed) == 106 and not set(frozen(proposed)) & set(frozen(earlier))


def test_an_illegal_draw_is_counted_under_each_rule_and_replaced_by_its_nearest_neighbour():
    searcher = make_searcher(ScriptedSearch(sampler="tpe"), space_of(), [])
    # 192 x 4 = 768 is over 640; 192 -> 128 (512) is one knob and one step away, as is 4 -> 3 (576): no other is.
    draw = {"tile_m": 192, "tile_n": 64, "stages": 4, "order": "rows", "persistent": True}
    searcher.reject(draw, ["smem", "b"])
    assert searcher.draws_rejected == {"smem": 1, "b": 1}
    assert searcher.ask() in (draw | {"tile_m": 128}, draw | {"stages": 3})


def test_illegal_draws_of_tpe_cost_no_candidate():
    proposed = drained(searcher := make_searcher(ScriptedSearch(sampler="tpe"), space_of(), []), limit=150)
    assert sum(searcher.draws_rejected.values()) > 10
    assert len(proposed) == 150 and all(smem_rule(knobs) is None for knobs in proposed)


def sum_rule(knobs):
    return "sum" if sum(knobs.values()) > 15 else None


def bowl_us(knobs):
    """Least at (4, 1, 3, 2, 5), which just keeps the rule: 10 us."""
    return 10 + sum(abs(value - best) for value, best in zip(knobs.values(), (4, 1, 3, 2, 5)))


@pytest.mark.parametrize("sampler", ["local", "tpe"])
def test_what_learns_beats_random_at_equal_budget(sampler):
    knobs = dict.fromkeys(("a", "b", "c", "d", "e"), (0, 1, 2, 3, 4, 5))

    def best_after_80(sampler, seed):
        searcher = make_searcher(ScriptedSearch(sampler=sampler, seed=seed), space_of(knobs, sum_rule), [])
        return min(bowl_us(k) for k in drained(searcher, time_us=bowl_us, rule=sum_rule, limit=80))

    learnt, uniform = ([best_after_80(one, seed) for seed in range(6)] for one in (sampler, "random"))
    # Above the floor of 10 us it must leave less than half of what random search leaves.
    assert statistics.mean(learnt) - 10 < 0.5 * (statistics.mean(uniform) - 10)


class ModelledSpace(ScriptedSpace):
    """A space whose target predicts times: those of `model_us`."""

    def __init__(self, model_us, rule=sum_rule):
        super().__init__(dict.fromkeys(("a", "b", "c", "d", "e"), (0, 1, 2, 3, 4, 5)), rule)
        self._model_us = model_us

    def predicted_us(self, codes):
        return np.array([self._model_us(dict(zip(self.knobs, row))) for row in codes.tolist()])


class TwinSpace(ModelledSpace):
    """With d = 0, configurations that differ in e alone lower to the same module."""

    def twins(self, codes):
        return [(*codes[:4], code) for code in range(6) if code != codes[4]] if codes[3] == 0 else []


def half_wrong_us(knobs):
    """A model that knows the best a, b and c, believes that d and e should be 0, and is 30% high."""
    return 1.3 * (10 + sum(abs(value - best) for value, best in zip(knobs.values(), (4, 1, 3, 0, 0))))


def guided_by(model_us, seed=0):
    return make_searcher(ScriptedSearch(sampler="guided", seed=seed), ModelledSpace(model_us), [])


def test_the_guided_sampler_begins_with_what_the_model_finds_fastest():
    assert guided_by(bowl_us).ask() == {"a": 4, "b": 1, "c": 3, "d": 2, "e": 5}
    assert guided_by(half_wrong_us).ask() == {"a": 4, "b": 1, "c": 3, "d": 0, "e": 0}


def test_the_untuned_choices_follow_the_models_own_and_are_in_flight_like_it():
    untuned = {"a": 0, "b": 0, "c": 0, "d": 0, "e": 0}
    space = TwinSpace(bowl_us, sum_rule)
    searcher = make_searcher(ScriptedSearch(sampler="guided"), space, [untuned])
    asked = [searcher.ask() for _ in range(40)]
    assert asked[:2] == [{"a": 4, "b": 1, "c": 3, "d": 2, "e": 5}, untuned]
    # With d = 0 all values of e lower alike, so that none but the untuned choice's own is proposed.
    assert not [knobs for knobs in asked[2:] if [*knobs.values()][:4] == [0, 0, 0, 0]]


def test_what_was_measured_corrects_a_model_that_is_half_wrong():
    found_us = []
    for seed in range(7):
        proposed = drained(guided_by(half_wrong_us, seed), time_us=bowl_us, rule=sum_rule, limit=60)
        found_us.append(min(map(bowl_us, proposed)))
    # The best, 10 us, is 7 steps of d and e away from the model's choice, which takes 17.
    own_order = sorted(legal_knobs_of(sum_rule), key=half_wrong_us)
    assert statistics.median(found_us) <= 13 < min(map(bowl_us, own_order[:60]))


def legal_knobs_of(rule):
    legal = ModelledSpace(bowl_us, rule).legal()
    return [legal.knobs(row) for row in range(legal.size)]


def test_every_legal_configuration_is_proposed_once_with_a_model_too():
    space = ModelledSpace(half_wrong_us, lambda knobs: "sum" if sum(knobs.values()) > 4 else None)
    searcher = make_searcher(ScriptedSearch(sampler="guided"), space, [])
    legal = space.legal()
    proposed = drained(searcher, time_us=bowl_us, rule=lambda knobs: None)
    assert sorted(frozen(proposed)) == sorted(frozen(legal.knobs(row) for row in range(legal.size)))
    assert searcher.ask() is None


def test_what_is_in_flight_is_not_crowded():
    # Without results all depends on the model, which calls a thousand configurations alike: each draw shares at most
    # two of five knobs with any before it.
    searcher = guided_by(lambda knobs: 10.0)
    asked = [tuple(searcher.ask().values()) for _ in range(4)]
    shared = [sum(one == other for one, other in zip(a, b)) for i, a in enumerate(asked) for b in asked[:i]]
    assert max(shared) <= 2


def test_of_configurations_that_lower_alike_one_is_proposed():
    space = TwinSpace(bowl_us, lambda knobs: "sum" if sum(knobs.values()) > 3 else None)
    searcher = make_searcher(ScriptedSearch(sampler="guided"), space, [])
    proposed = drained(searcher, time_us=bowl_us, rule=lambda knobs: None)
    kinds = [(k["a"], k["b"], k["c"], k["d"], k["e"] if k["d"] else None) for k in proposed]
    assert len(kinds) == len(set(kinds))
    # Of 56 that sum up to 3 at most, the 35 with d = 0 are 20 kinds, whatever their e.
    assert len(kinds) == 21 + 20 and searcher.remaining == 0


ORDERED = {"tile": tuple(range(64, 4 * 64, 64)), "order": ("a", "b", "c", "d")}


def ordered_space(model_us=None, runtime_knobs=("order",)):
    """Three tiles in four orders; order c does the same as d."""
    space = ScriptedSpace(ORDERED, lambda knobs: None, runtime_knobs)
    if model_us is not None:
        space.predicted_us = lambda codes: np.array(
            [model_us({name: ORDERED[name][code] for name, code in zip(ORDERED, row)}) for row in codes]
        )
    space.twins = lambda codes: [(codes[0], 5 - codes[1])] if codes[1] in (2, 3) else []
    return space


def by_order(knobs):
    return 10.0 + "abcd".index(knobs["order"]) + knobs["tile"] / 64


def by_tile(knobs):
    return 10.0 + knobs["tile"] / 64


def test_siblings_are_those_that_are_nearly_as_promising_as_the_next_proposal():
    searcher = make_searcher(ScriptedSearch(sampler="guided"), ordered_space(by_order), [])
    slow = {"tile": 192, "order": "a"}
    searcher.tell(slow, by_order(slow))  # 13 us; its siblings take 14 and more, others 11
    assert searcher.siblings(slow) == []
    second = {"tile": 64, "order": "b"}
    searcher.tell(
        second, by_order(second)
    )  # 12 us, as a larger tile will; its sibling a takes 11, c and d 13
    assert searcher.siblings(second) == [{"tile": 64, "order": "a"}]
    assert searcher.siblings(second) == []


def test_of_siblings_that_do_the_same_one_is_proposed_and_each_only_once():
    first = {"tile": 64, "order": "a"}
    searcher = make_searcher(ScriptedSearch(sampler="guided"), ordered_space(by_tile), [])
    searcher.tell(first, by_tile(first))
    siblings = searcher.siblings(first)
    assert sorted(knobs["order"] for knobs in siblings) in (["b", "c"], ["b", "d"])
    rest = [searcher.ask() for _ in range(searcher.remaining)]
    assert not any(knobs in rest for knobs in siblings)


def test_no_more_siblings_than_are_worth_it(monkeypatch):
    monkeypatch.setattr("autotune.search.guided.MOST_SIBLINGS", 1)
    searcher = make_searcher(ScriptedSearch(sampler="guided"), ordered_space(by_tile), [])
    assert len(searcher.siblings({"tile": 64, "order": "a"})) == 1


@pytest.mark.parametrize("runtime_knobs", [(), ("order",)])
def test_without_a_model_or_runtime_knobs_there_are_no_siblings(runtime_knobs):
    model_us = None if runtime_knobs else by_tile
    searcher = make_searcher(ScriptedSearch(), ordered_space(model_us, runtime_knobs), [])
    assert searcher.siblings({"tile": 128, "order": "a"}) == []


def test_failures_are_neither_repeated_nor_learnt_from():
    proposed = drained(guided_by(bowl_us), time_us=lambda knobs: None, rule=sum_rule, limit=100)
    assert len(set(frozen(proposed))) == 100


def test_without_a_model_the_default_is_the_local_sampler():
    searchers = [
        make_searcher(ScriptedSearch(sampler=sampler), space_of(), [])
        for sampler in ("auto", "guided", "local")
    ]
    assert len({type(searcher) for searcher in searchers}) == 1
    guided = make_searcher(ScriptedSearch(sampler="auto"), ModelledSpace(bowl_us), [])
    assert type(guided) is not type(searchers[0])


@pytest.mark.parametrize("seed", range(5))
def test_nearest_prefers_fewer_knobs_then_shorter_steps(seed):
    legal = {(10, 1), (40, 1), (20, 2)}
    space = ScriptedSpace(
        {"x": (10, 20, 30, 40), "y": (1, 2)}, lambda knobs: None if tuple(knobs.values()) in legal else "no"
    )
    rows, rng = LegalRows(space), np.random.default_rng(seed)
    found = []
    for _ in legal:
        row = rows.nearest((2, 0), rng)  # of x=30, y=1
        found.append(rows.knobs(row)["x"])
        rows.spend(row)
    # x=40 is one step away and x=10 two; (20, 2) is one step in x but differs in two knobs.
    assert found == [40, 10, 20]
    assert rows.nearest((2, 0), rng) is None and rows.remaining == 0


def test_rows_are_found_where_the_keys_of_the_space_overflow_64_bits():
    names = [f"k{index}" for index in range(24)]
    codes = np.random.default_rng(0).integers(0, 8, size=(500, 24), dtype=np.uint8)

    legal = SimpleNamespace(codes=codes, size=500)
    knobs = {name: tuple(range(8)) for name in names}  # 8**24 = 2**72 points
    rows = LegalRows(SimpleNamespace(knobs=knobs, legal=lambda: legal))
    assert [rows.find(tuple(row)) for row in codes.tolist()] == list(range(500))
    assert rows.find((7,) * 24) is None


def test_true_is_not_mistaken_for_one():
    space = ScriptedSpace({"count": (1, 2), "flag": (False, True)}, lambda knobs: None)
    rows = LegalRows(space)
    assert rows.encode({"count": 1, "flag": True}) == (0, 1)
    assert rows.encode({"count": 3, "flag": True}) is None
    assert rows.encode({"count": 1}) is None


def test_an_unknown_sampler_is_named():
    with pytest.raises(
        ValueError, match="sampler='grid': allowed are auto, guided, local, tpe, random, exhaustive"
    ):
        make_searcher(ScriptedSearch(sampler="grid"), space_of(), [])


def test_a_check_that_refuses_everything_ends_the_search():
    searcher = make_searcher(ScriptedSearch(sampler="tpe"), space_of(), [])
    asked = 0
    while (knobs := searcher.ask()) is not None:
        searcher.reject(knobs, ["main"])
        asked += 1
    assert asked == searcher.draws_rejected["main"] == ScriptedTarget().space(None, None, {}).legal().size


def test_a_mended_draw_is_replaced_by_its_mend():
    searcher = make_searcher(ScriptedSearch(sampler="tpe"), space_of(), [])
    draw = {"tile_m": 192, "tile_n": 64, "stages": 4, "order": "rows", "persistent": True}
    mended = draw | {"stages": 2}  # legal, and farther away than the nearest neighbours are
    searcher.reject(draw, ["smem"], mended)
    assert searcher.ask() == mended


def test_a_mend_that_leaves_the_space_is_not_followed():
    searcher = make_searcher(ScriptedSearch(sampler="tpe"), space_of(), [])
    draw = {"tile_m": 192, "tile_n": 64, "stages": 4, "order": "rows", "persistent": True}
    searcher.reject(draw, ["smem"], draw | {"stages": 99})
    assert searcher.ask() in (draw | {"tile_m": 128}, draw | {"stages": 3})


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_seed_comes_before_the_defaults_and_once(sampler):
    default = {"tile_m": 128, "tile_n": 128, "stages": 4, "order": "rows", "persistent": True}
    seed = default | {"stages": 2}
    searcher = make_searcher(ScriptedSearch(sampler=sampler), space_of(), [default])
    searcher.seed(default)
    searcher.seed(seed)
    assert [searcher.ask(), searcher.ask()] == [seed, default]
    assert default not in drained(searcher) and seed not in drained(searcher)


def test_an_illegal_seed_stands_for_the_legal_configuration_nearest_to_it():
    searcher = make_searcher(ScriptedSearch(sampler="random"), space_of(), [])
    # 192 x 4 is over 640; 192 -> 128 and 4 -> 3 are both one knob and one step away, of three and of four steps.
    searcher.seed({"tile_m": 192, "tile_n": 64, "stages": 4, "order": "rows", "persistent": True})
    found = {"tile_m": 192, "tile_n": 64, "stages": 3, "order": "rows", "persistent": True}
    assert searcher.ask() == found
    searcher.seed({"tile_m": 192, "tile_n": 64, "stages": 4, "order": "rows", "persistent": True})
    assert searcher.ask() != found  # nothing is measured twice


def test_values_that_the_space_lacks_stand_for_their_nearest():
    rows = LegalRows(space_of())
    row = rows.nearest_legal({"tile_m": 140, "tile_n": 512, "stages": 4, "order": "diagonal", "other": 1})
    assert rows.knobs(row) == {
        "tile_m": 128, "tile_n": 256, "stages": 4, "order": "rows", "persistent": False,
    }  # fmt: skip


def test_errors_heard_of_a_near_problem_correct_the_model_before_anything_is_measured():
    best = {"a": 4, "b": 1, "c": 3, "d": 2, "e": 5}
    first = guided_by(half_wrong_us)
    for knobs in drained(first, time_us=bowl_us, rule=sum_rule, limit=60):
        first.tell(knobs, bowl_us(knobs))
    first.tell(best, bowl_us(best))
    assert 40 < len(first.errors()) <= 60 and first.errors()[0][0] == best
    near, far, deaf = (guided_by(half_wrong_us) for _ in range(3))
    near.hear([(0.5, first.errors())])
    far.hear([(8.0, first.errors())])
    asked = [min(bowl_us(one.ask()) for _ in range(8)) for one in (near, far, deaf)]
    assert asked[0] < asked[2] and asked[0] <= asked[1]


def test_asking_what_may_be_gained_changes_no_proposal():
    def proposals(asks):
        searcher = guided_by(half_wrong_us)
        found = []
        for _ in range(30):
            found.append(searcher.ask())
            searcher.tell(found[-1], bowl_us(found[-1]))
            if asks:
                searcher.expected_gain()
        return found

    assert proposals(True) == proposals(False)


def test_the_expected_gain_falls_as_the_space_is_known():
    searcher = guided_by(lambda knobs: 14.0)  # which knows nothing
    assert searcher.expected_gain() is None
    gains = []
    for _ in range(120):
        knobs = searcher.ask()
        searcher.tell(knobs, bowl_us(knobs))
        gains.append(searcher.expected_gain())
    assert gains[4] > 0.02 > 0.005 > gains[-1]
