"""Comparing samplers on a recorded space, with regrets worked out by hand."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from autotune import compare
from autotune.cli import main
from autotune.compare import arena_of, halves, median_interval, searches
from autotune.compareplot import Curve, Panel, svg
from autotune.errors import InputError
from autotune.evaluate import RecordedRow, write_recorded
from autotune.progress import Budget
from autotune.recordedtarget import RecordedTarget
from autotune.seam import Failed
from tests.helpers.recordings import DEVICE, PROBLEM, TARGET, narrowing, recording

NARROWING = narrowing(tile_n=[128, 256], stages=[2, 3, 4], cluster_m=[1], cluster_n=[1])
# By (tile_n, stages): the best takes 100 us, the next 110 and so on.
TIMES_US = {(256, 4): 100.0, (256, 3): 110.0, (128, 4): 120.0, (256, 2): 150.0, (128, 3): 200.0}


def steady(times_us: dict[tuple[int, int], float], samples: int = 4) -> dict[tuple[int, int], RecordedRow]:
    return {place: RecordedRow(samples_us=(time_us,) * samples) for place, time_us in times_us.items()}


def arena(rows: dict[tuple[int, int], RecordedRow]) -> compare.Arena:
    recorded = recording(NARROWING, rows)
    target = RecordedTarget(TARGET, recorded)
    return arena_of(target, PROBLEM, DEVICE, recorded, target.space(PROBLEM, DEVICE, NARROWING))


def test_regret_is_that_of_the_best_so_far_over_the_best_of_the_space():
    found = searches(
        arena(steady(TIMES_US)), "random", seeds=8, candidates=5, in_flight=1, budget=Budget()
    ).regret
    assert found.shape == (8, 5)
    assert set(found.round(9).flat) <= {0.0, 0.1, 0.2, 0.5, 1.0}
    assert (np.diff(found, axis=1) <= 0).all() and (found[:, -1] == 0).all()
    assert len(set(found[:, 0])) > 1  # seeds begin in different places


def test_a_space_that_ends_before_the_candidates_keeps_its_last_regret():
    found = searches(arena(steady(TIMES_US)), "random", seeds=2, candidates=9, budget=Budget()).regret
    assert found.shape == (2, 9) and (found[:, 4:] == 0).all()


def test_candidates_that_failed_count_and_leave_no_regret_until_one_is_measured():
    rows = {place: RecordedRow(failed=Failed(reason="wrong", detail="far off")) for place in TIMES_US}
    rows[256, 4] = RecordedRow(samples_us=(100.0, 100.0))
    found = searches(arena(rows), "random", seeds=6, candidates=5, in_flight=1, budget=Budget()).regret
    assert (found[:, -1] == 0).all() and np.isinf(found[:, 0]).any()


def test_what_was_lucky_in_one_half_is_scored_by_the_other():
    # Half of its samples took 10 us and half 300: chosen by luck, it costs what the other half says.
    samples = np.array([[10.0, 10.0, 300.0, 300.0], [100.0] * 4])
    seen = set()
    for seed in range(40):
        chosen_us, scored_us = halves(samples, seed)
        assert (chosen_us[1], scored_us[1]) == (100.0, 100.0)
        seen.add((chosen_us[0], scored_us[0]))
    assert seen == {(10.0, 300.0), (300.0, 10.0), (155.0, 155.0)}


def test_the_same_seed_halves_the_same_way_and_so_every_sampler_meets_the_same_times():
    samples = np.random.default_rng(0).random((5, 20))
    assert np.array_equal(halves(samples, 3), halves(samples, 3))
    assert not np.array_equal(halves(samples, 3), halves(samples, 4))


def test_the_interval_of_a_median_is_of_its_ranks():
    # 25 -+ 0.98 * sqrt(50) = 18.07 .. 31.93: ranks 18 and 31, counted from 0.
    assert median_interval(np.arange(50.0)) == (24.5, 18.0, 31.0)
    assert median_interval(np.array([7.0])) == (7.0, 7.0, 7.0)


def test_one_sample_a_configuration_cannot_be_halved():
    with pytest.raises(InputError, match="has 1 sample; comparing takes at least 2"):
        arena(steady(TIMES_US, samples=1))


def test_a_space_of_failures_is_refused():
    rows = {place: RecordedRow(failed=Failed(reason="wrong", detail="far off")) for place in TIMES_US}
    with pytest.raises(InputError, match="none of its 5 configurations was measured and is legal"):
        arena(rows)


def test_every_sampler_can_be_compared():
    for sampler in ("auto", "guided", "local", "tpe", "random", "exhaustive"):
        found = searches(
            arena(steady(TIMES_US)), sampler, seeds=1, candidates=5, in_flight=2, budget=Budget()
        ).regret
        assert found[0, -1] == 0, sampler


def test_the_plot_is_svg_with_a_panel_a_space_and_a_line_a_sampler():
    curve = Curve(name="a<b", points=((0.5, 0.1, 1.0), (0.0, -0.01, 0.02), (math.inf, 0.0, math.inf)))
    text = svg([Panel(title="4096 & more", curves=(curve, curve)), Panel(title="x", curves=(curve,))])
    root = ElementTree.fromstring(text)
    tags = [element.tag.partition("}")[2] for element in root.iter()]
    assert tags.count("polyline") == tags.count("polygon") == 3 and tags.count("g") == 2
    texts = [element.text for element in root.iter() if element.text]
    assert "4096 & more" in texts and texts.count("a<b") == 3


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Returns the path of a config whose first problem is recorded below its results folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("autotune.compareverb.recorded_folders", lambda config: [tmp_path / "recorded"])
    write_recorded(tmp_path / "recorded" / "space.json.gz", recording(NARROWING, steady(TIMES_US)))
    path = tmp_path / "tiny.yaml"
    path.write_text(
        "problems: [{m: 4096, n: 4096, k: 4096}, {m: 64, n: 64, k: 64}]\nspace: {tile_n: [128, 256]}\n"
    )
    return path


def test_the_verb_prints_random_beside_what_was_asked_for_and_writes_the_plot(config, capsys, tmp_path):
    plot = tmp_path / "deeper" / "plot.svg"
    code = main(["compare", str(config), "--samplers", "local", "--seeds", "3", "--plot", str(plot)])
    out = capsys.readouterr().out
    assert code == 0, out
    assert "64x64x64 bfloat16 nn: no recorded space, left out" in out
    assert "4096x4096x4096 bfloat16 nn: 5 configurations" in out
    names = [line.split()[0] for line in out.splitlines() if line.startswith("  ") and "[" in line]
    assert names == ["random", "local"]
    assert "0.00% [0.00%, 0.00%]" in out
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--samplers", "local,grid"],
            "--samplers='grid': allowed: auto, guided, local, tpe, random, exhaustive",
        ),
        (["--seeds", "0"], "--seeds=0: allowed: a whole number from 1 to 1000"),
        (["--plot", "a.png"], "--plot='a.png': allowed: a file whose name ends in .svg"),
        (["--candidates", "0"], "--candidates=0: allowed: a whole number from 1 to 10000"),
    ],
)
def test_a_wrong_option_is_one_line_and_nothing_is_written(config, capsys, tmp_path, options, message):
    assert main(["compare", str(config), *options]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_a_config_without_recorded_spaces_says_where_it_looked(config, capsys, tmp_path):
    config.write_text("problems: [{m: 64, n: 64, k: 64}]\n")
    assert main(["compare", str(config)]) == 2
    error = capsys.readouterr().err
    assert f"no recorded space of 64x64x64 bfloat16 nn in {tmp_path / 'recorded'}" in error
    assert "autotune record" in error


class Foresight:
    """A searcher that walks its arena and says when it expects no more."""

    def __init__(self, space, gains):
        self._rows, self._gains = iter(range(space.legal().size)), gains
        self._legal, self._told = space.legal(), 0

    def ask(self):
        row = next(self._rows, None)
        return None if row is None else self._legal.knobs(row)

    def tell(self, knobs, value_us):
        self._told += 1

    def expected_gain(self):
        return self._gains(self._told)


def test_a_search_is_stopped_where_its_expected_gain_stays_low_with_nothing_in_flight(monkeypatch):
    def made(settings, space, defaults):
        return Foresight(space, lambda told: 0.0 if told >= 2 else 1.0)

    monkeypatch.setattr("autotune.compare.make_searcher", made)
    budget = Budget(gain=0.005, fewest=1)
    found = searches(arena(steady(TIMES_US)), "auto", seeds=1, candidates=5, budget=budget, in_flight=1)
    # one in flight at a time: after two are told it is asked and none is in flight
    assert found.stopped.tolist() == [2] and found.regret.shape == (1, 5)
    off = searches(arena(steady(TIMES_US)), "auto", seeds=1, candidates=5, budget=Budget(), in_flight=1)
    assert off.stopped.tolist() == [0]
