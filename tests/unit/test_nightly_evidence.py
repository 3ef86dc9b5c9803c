"""What several processes say of one winner, and which of its times is believed."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from autotune.nightly.evidence import Sight, sharper, together
from autotune.nightly.history import History, closing_record, history_file, problem_record, read_history
from autotune.nightly.reference import Reference, Tonight, protocol_mark, reference
from autotune.nightly.spread import centre, error_of_night, measured_spread
from autotune.nightly.values import Machine, Seen, fingerprint
from tests.helpers.best_entries import entry, problem
from tests.helpers.night_world import ScriptedMeter, World, key

SENTINELS = {"copy": 450.0, "fixed_kernel": 1200.0}
HERE = Machine(
    card="GPU-one", kind="NVIDIA H200", power_limit_w=700.0, driver="580.1", jax="0.11.2", jaxlib="0.11.2"
)


class OneSlowProcess(ScriptedMeter):
    """The first process that races the winner of m=128 sees its kernel a tenth slower."""

    def _seen(self, stored, rounds):
        seen = super()._seen(stored, rounds)
        if stored.problem.m == 128 and self.world.verified.count(key(128)) == 1:
            return dataclasses.replace(seen, kernel_us=tuple(1.1 * us for us in seen.kernel_us))
        return seen


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    made.store(64, 128)
    made.nights_pass(3)
    made.verified.clear()
    return made


def verdict(world, m):
    latest = json.loads((world.results / "nightly" / "reports" / "latest.json").read_text())
    return next(line["verdict"] for line in latest["problems"] if line["key"] == key(m))


def against(protocol, kernel_us, **changes):
    facts = {
        "log_ratio": 0.2,
        "error": 0.01,
        "kernel_us": kernel_us,
        "kernel_error": 0.01,
        "sentinels": SENTINELS,
        "spread": measured_spread(protocol, kernel_us),
        "is_here": True,
        "moved": (),
    }
    return Reference(**{**facts, **changes})


@pytest.mark.parametrize(
    ("values", "middle"),
    [([1.0], 1.0), ([1.0, 3.0], 2.0), ([0.0, 0.0, 0.0, 0.0, 10.0], 0.0), ([1.0, 2.0, 6.0], 2.75)],
)
def test_the_centre_is_the_median_of_the_means_of_all_pairs(values, middle):
    assert centre(values) == middle  # of 1, 2, 6: 1, 1.5, 2, 3.5, 4, 6


def test_more_processes_tell_more_but_never_what_a_night_has_of_its_own():
    # 0.08 / sqrt(4) = 0.04, with 0.003 of the night: 0.0401.
    assert error_of_night(0.08, 4) == pytest.approx(0.04011, abs=1e-5)
    assert error_of_night(0.08, 10**6) == pytest.approx(0.003, abs=1e-4)


def test_what_raised_a_doubt_does_not_testify():
    doubted = Seen(kernel_us=(130.0,), xla_us=(110.0,), digest="a")
    asked = doubted.plus(Seen(kernel_us=(100.0,), xla_us=(121.0,))).plus(
        Seen(kernel_us=(104.0,), xla_us=(110.0,))
    )
    assert asked.processes == 2
    assert asked.kernel_median_us == pytest.approx(math.sqrt(100 * 104))
    assert asked.log_ratio()[0] == pytest.approx((math.log(1.21) + math.log(110 / 104)) / 2)
    assert Seen.from_json(json.loads(json.dumps(asked.to_json()))) == asked


def test_xlas_fastest_process_is_what_a_kernel_has_to_beat():
    seen = (
        Seen().plus(Seen(kernel_us=(100.0,), xla_us=(121.0,))).plus(Seen(kernel_us=(100.0,), xla_us=(90.0,)))
    )
    assert seen.xla_median_us == 90.0
    assert seen.log_lead()[0] == pytest.approx(math.log(0.9))
    assert seen.log_ratio()[0] == pytest.approx((math.log(1.21) + math.log(0.9)) / 2)


def test_a_failure_in_any_process_counts():
    seen = Seen(kernel_us=(1.0,)).plus(Seen(failure=("crash", "signal 6"))).plus(Seen(kernel_us=(1.0,)))
    assert seen.failure == ("crash", "signal 6")


def test_one_slow_process_is_put_right_by_two_others(world):
    assert world.run(OneSlowProcess(world)) == 0
    assert verdict(world, 128) == "unchanged"
    assert (world.verified.count(key(128)), world.verified.count(key(64))) == (3, 1)


def test_a_suspect_is_asked_ten_times_the_next_night(world):
    world.slower = {128: 1.06}
    world.run()
    assert world.verified.count(key(128)) == 1 + 2 + 4
    world.verified.clear()
    world.slower = {}
    assert world.run() == 0
    assert world.verified.count(key(128)) == 1 + 10, "though its first process saw nothing"


def test_what_xla_alone_explains_is_not_asked_again(world):
    world.xla_slower = {128: 0.9}
    world.run()
    assert world.verified.count(key(128)) == 1


def test_a_new_driver_with_a_faster_xla_is_not_held_against_the_kernel(world):
    world.driver, world.xla_slower = "590.2", {128: 0.9}
    assert world.nights_pass(3) == [0, 0, 0]


@pytest.mark.parametrize(
    ("protocol", "kernel_us", "by"),
    [
        ({"timer": "chain"}, 8.0, "kernel"),  # 0.050 against 0.090 from process to process
        ({"timer": "cupti"}, 200.0, "ratio"),  # 0.004 against 0.006 and what sentinels disagree
    ],
)
def test_the_sharper_evidence_is_believed(protocol, kernel_us, by):
    sight = Sight(
        log_ratio=(0.1, 0.003),
        kernel_us=kernel_us * 1.1 * 1.2,
        processes=1,
        shifts={"copy": math.log(1.2), "fixed_kernel": math.log(1.2)},
    )
    fall = sharper(sight, against(protocol, kernel_us))
    assert fall.by == by
    assert fall.value == pytest.approx(math.log(1.1) if by == "kernel" else 0.1)


def test_without_sentinels_the_kernels_own_time_says_next_to_nothing():
    sight = Sight(log_ratio=(0.1, 0.003), kernel_us=8.0, processes=1, shifts={})
    assert sharper(sight, against({"timer": "chain"}, 8.0)).by == "ratio"


def test_nights_together_weigh_as_much_as_each_is_certain():
    one = sharper(
        Sight(log_ratio=(0.1, 0.0), kernel_us=None, processes=1, shifts={}),
        against({"timer": "cupti"}, 200.0),
    )
    surer = dataclasses.replace(one, value=0.04, own=one.own / 2)
    both = together([one, surer])
    assert both.value == pytest.approx((0.1 + 4 * 0.04) / 5)
    assert both.own == pytest.approx(one.own / math.sqrt(5))
    assert both.common == one.common


def test_a_quiet_night_enters_the_reference_as_it_was_seen_at_first():
    stored = entry(problem(m=64))
    facts = {
        "verdict": "unchanged",
        "config": fingerprint(stored.config.to_knobs()),
        "protocol": protocol_mark(stored.protocol),
        "kernel_us": 100.0,
        "xla_us": 110.0,
        "log_ratio": 0.10,
        "log_ratio_error": 0.002,
        "processes": 2,
    }
    first = {"kernel_us": 104.0, "xla_us": 110.0, "log_ratio": 0.06, "log_ratio_error": 0.002, "processes": 1}
    records = [problem_record("one", "one", key(64), HERE, **facts, first=first)]
    nights = {"one": closing_record("one", "one", HERE, SENTINELS, 0)}
    tonight = Tonight(machine=HERE, sentinels=SENTINELS, history=History(nights=nights), z=3.0)
    assert reference(stored, records, tonight).log_ratio == pytest.approx(0.06)
    assert reference(stored, records, tonight).kernel_us == pytest.approx(104.0)
    slower = [{**records[0], "verdict": "regression"}]
    assert reference(stored, slower, tonight).log_ratio == pytest.approx(0.10), (
        "of a new level the answer counts"
    )


@pytest.mark.parametrize("wrong", [{"first": "soon"}, {"first": {"kernel_us": -1.0}}, {"processes": 0}])
def test_a_record_that_says_nonsense_of_its_processes_is_left_out(tmp_path, wrong):
    file = history_file(tmp_path, "nvidia_h200")
    good = problem_record("one", "one", "a", HERE, verdict="unchanged", kernel_us=1.0)
    bad = problem_record("one", "one", "b", HERE, verdict="unchanged", kernel_us=1.0, **wrong)
    file.append([good, bad, closing_record("one", "one", HERE, SENTINELS, 0)])
    assert list(read_history(file).problems) == ["a"]
