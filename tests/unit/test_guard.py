"""Batches during which the card misbehaved are thrown away and taken again, but not for ever."""

from __future__ import annotations

import itertools

import pytest

from autotune import gpuwatch
from autotune.evaluate.guard import CardWatch, Guard, Reading, stands_out

FINE = Reading(sm_mhz=1980.0, throttle=("gpu_idle",), others=(), xids=())


def reading(**changes) -> Reading:
    return Reading(**{name: changes.get(name, getattr(FINE, name)) for name in FINE.__dataclass_fields__})


class ScriptedWatch:
    card, clock = "GPU-1", "spin"

    def __init__(self, *readings):
        self._readings = itertools.chain(readings, itertools.repeat(FINE))

    def read(self):
        return next(self._readings)

    def power_and_heat(self):
        return 512.0, 61


def measured(*readings, batches=1, **options):
    """Returns what each batch gave and the conditions; the n-th run of any batch gives n."""
    guard, runs = Guard(ScriptedWatch(*readings), **options), itertools.count(1)
    return [guard(lambda: next(runs)) for _ in range(batches)], guard.conditions()


def test_a_quiet_card_gives_the_first_samples_and_says_what_it_did():
    samples, conditions = measured(reading(throttle=("sw_power_cap",)), batches=2)
    assert samples == [1, 2]
    assert conditions.card == "GPU-1"
    assert (conditions.sm_mhz, conditions.clock) == ((1980.0, 1980.0), "spin")
    assert (conditions.power_w, conditions.temperature_c) == (512.0, 61)
    assert (conditions.throttle, conditions.others) == (("sw_power_cap",), ())
    assert (conditions.vetoes, conditions.unsettled, conditions.shared) == ((), (), False)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"throttle": ("hw_thermal_slowdown",)}, "the clock is held down: hw_thermal_slowdown"),
        ({"others": ("pid 7 (train)",)}, "another process on the card: pid 7 (train)"),
        ({"xids": (79,)}, "Xid 79"),
        # 10% below the median of the batches before, 1,980 MHz, is 1,782.
        ({"sm_mhz": 1700.0}, "SM clock 1700 MHz, 1980 before"),
    ],
)
def test_a_batch_that_stands_out_is_repeated_and_counted(changed, reason):
    samples, conditions = measured(FINE, FINE, reading(**changed), batches=3)
    assert samples == [1, 2, 4]
    assert (conditions.vetoes, conditions.unsettled) == ((reason,), ())


@pytest.mark.parametrize(
    "changed", [{"sm_mhz": 1790.0}, {"sm_mhz": None}, {"throttle": None}, {"xids": (31,)}]
)
def test_what_is_normal_or_not_told_vetoes_nothing(changed):
    samples, conditions = measured(FINE, FINE, reading(**changed), batches=3)
    assert samples == [1, 2, 3]
    assert conditions.vetoes == ()


def test_an_old_xid_vetoes_once():
    lost = reading(xids=(79,))
    samples, conditions = measured(lost, lost, lost, batches=2)
    assert samples == [2, 3]
    assert conditions.vetoes == ("Xid 79",)


def test_a_batch_is_repeated_three_times_at_most_and_then_kept_aloud():
    hot = reading(throttle=("hw_slowdown",))
    samples, conditions = measured(*[hot] * 4)
    assert samples == [4]
    assert conditions.vetoes == ("the clock is held down: hw_slowdown",) * 3
    assert conditions.unsettled == ("the clock is held down: hw_slowdown",)


def test_a_job_is_repeated_twenty_times_at_most():
    samples, conditions = measured(*[reading(throttle=("hw_slowdown",))] * 100, batches=10)
    # Six batches take four runs, the seventh three, and then each takes one: 24 + 3 + 3.
    assert samples[-1] == 30
    assert len(conditions.vetoes) == 20
    assert len(conditions.unsettled) == 10


def test_a_lasting_fall_of_the_clock_is_accepted_after_a_while():
    # Sustained, the power cap brings 1,980 MHz down to 1,500 for good.
    samples, conditions = measured(FINE, FINE, *[reading(sm_mhz=1500.0)] * 20, batches=8)
    # With two fast and two slow neighbours the median is 1,740, of which 90% are 1,566; with three slow it is 1,500.
    assert samples == [1, 2, 6, 7, 8, 9, 10, 11]
    assert conditions.sm_mhz[2:] == (1500.0,) * 6


def test_on_a_shared_card_others_veto_nothing_and_stand_in_the_record():
    samples, conditions = measured(reading(others=("pid 7 (train)",)), shared=True)
    assert samples == [1]
    assert (conditions.shared, conditions.others) == (True, ("pid 7 (train)",))


def test_processes_that_nvml_hides_are_unknown_and_not_none():
    assert measured(reading(others=None))[1].others is None


def test_each_repetition_is_reported_since_it_takes_time_anew():
    reports = []
    measured(reading(throttle=("hw_slowdown",)), progress=lambda: reports.append(1))
    assert len(reports) == 1


def test_a_batch_within_a_batch_is_part_of_it():
    guard = Guard(ScriptedWatch(reading(throttle=("hw_slowdown",))))
    runs = itertools.count(1)
    assert guard(lambda: guard(lambda: next(runs))) == 2
    assert len(guard.conditions().vetoes) == 1


def test_a_new_job_begins_with_an_empty_record():
    guard = Guard(ScriptedWatch(reading(throttle=("hw_slowdown",))))
    guard(lambda: None)
    guard.begin()
    assert guard.conditions().vetoes == guard.conditions().sm_mhz == ()


def test_a_clock_is_not_judged_before_it_has_neighbours():
    assert stands_out(reading(sm_mhz=600.0), None) is None


class ScriptedNvml:
    """A card on which another process is seen the first time that it is asked for them, and never again."""

    def __init__(self, uuid, **_):
        self.asked = 0

    def processes(self):
        self.asked += 1

    def others(self, _):
        return ("pid 7 (train)",) if self.asked == 1 else ()

    def throttle(self):
        return ()

    xids = throttle

    def sm_mhz(self):
        return 1980

    def power_w(self):
        return 500.0

    temperature_c = sm_mhz


def test_a_repeated_batch_is_judged_by_who_is_on_the_card_then(monkeypatch):
    monkeypatch.setattr(gpuwatch, "GpuWatch", ScriptedNvml)
    guard, runs = Guard(CardWatch("GPU-1")), itertools.count(1)
    assert [guard(lambda: next(runs)) for _ in range(3)] == [2, 3, 4]
    conditions = guard.conditions()
    assert conditions.vetoes == ("another process on the card: pid 7 (train)",)
    assert conditions.unsettled == ()
