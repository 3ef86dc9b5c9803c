"""The verb compare: samplers side by side on the recorded spaces of a config's problems."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from autotune import fields, runconfig
from autotune.choice import narrowed, recorded_folders
from autotune.compare import Arena, Searches, arena_of, median_interval, searches
from autotune.compareplot import Curve, Panel, svg
from autotune.errors import InputError
from autotune.evaluate import RecordedSpace, find_recorded
from autotune.fields import Place
from autotune.recordedtarget import RecordedTarget
from autotune.runconfig import RunConfig
from autotune.searchsettings import SAMPLERS
from autotune.target import load_target
from autotune.writable import require_writable

BASELINE = "random"
SHOWN = (1, 4, 16, 60, 200)  # candidates
GOAL = 0.01  # of regret
MOST_SEEDS, MOST_CANDIDATES = 1_000, 10_000


def compare(
    path: str,
    *,
    samplers: str = "auto",
    seeds: int = 50,
    candidates: int = 100,
    plot: str | None = None,
    results: str | None = None,
) -> None:
    """Prints the regret of each sampler by candidates measured, and writes the plot.

    Args:
        path: A run config; those of its problems that are recorded count.
        samplers: Names with commas between.
        plot: An SVG file; None: below the results folder.
        results: In place of the config's results folder.

    Raises:
        InputError: An unknown sampler, no seeds or candidates, or none of the problems is recorded.
    """
    fields.whole(seeds, Place(path="--seeds"), 1, MOST_SEEDS)
    fields.whole(candidates, Place(path="--candidates"), 1, MOST_CANDIDATES)
    names = _samplers(samplers)
    config = runconfig.override(runconfig.load_run_config(path), results=results)
    if plot and Path(plot).suffix != ".svg":
        raise Place(path="--plot").refuses(plot, "a file whose name ends in .svg, which the plot is")
    file = Path(plot) if plot else config.results / "compare" / f"{config.name}.svg"
    arenas = arenas_of(config)
    require_writable(file.parent, Place(path="--plot") if plot else config.results_place)
    print(
        f"regret of the best so far, median of {seeds} seeds [95% interval of the median], by candidates measured",
        flush=True,
    )
    panels = []
    for arena in arenas:
        done = {name: searches(arena, name, seeds, candidates, config.search.budget) for name in names}
        curves = {name: one.regret for name, one in done.items()}
        print(f"{arena.title}: {arena.size:,} configurations\n{_table(curves)}", flush=True)
        for name, one in done.items():
            if line := _stop_line(one):
                print(f"  {name} {line}", flush=True)
        panels.append(_panel(arena, curves))
    if len(panels) > 1:
        print(f"all {len(panels)} spaces: mean and worst of the medians\n{_summary(panels)}", flush=True)
    file.write_text(svg(panels), encoding="utf-8")
    print(f"plot: {file}", flush=True)


def _samplers(text: str) -> list[str]:
    """Returns the samplers that were asked for, each once, and the baseline before them."""
    asked = [name.strip() for name in text.split(",")]
    for name in asked:
        fields.choice(name, Place(path="--samplers"), SAMPLERS)
    return list(dict.fromkeys([BASELINE, *asked]))


def arenas_of(config: RunConfig) -> list[Arena]:
    """Returns the recorded spaces of a config's problems; names on standard output the problems that have none.

    Raises:
        InputError: None of the problems is recorded.
    """
    target = load_target(config.target)
    kind = None if config.device == "auto" else config.device
    arenas, missing = [], []
    for weighted in config.problems:
        problem = weighted.problem
        folders = recorded_folders(config)
        found = (find_recorded(folder, problem, target.name, kind) for folder in folders)
        recorded = next((space for space in found if space is not None), None)
        if recorded is None:
            missing.append(problem.describe())
        else:
            arenas.append(_arena(config, target, problem, recorded))
    on = f" on {kind}" if kind else ""
    if not arenas:
        raise InputError(
            f"{config.path}: problems: no recorded space{on} of {', '.join(missing)} in "
            f"{' or '.join(map(str, recorded_folders(config)))}; record one with autotune record on a Hopper GPU"
        )
    for title in missing:
        print(f"{title}: no recorded space{on}, left out", flush=True)
    return arenas


def _arena(config: RunConfig, target: Any, problem: Any, recorded: RecordedSpace) -> Arena:
    device = target.device_named(recorded.device["kind"])
    searched = RecordedTarget(target, recorded)
    narrow = narrowed(dataclasses.replace(config, evaluator="replay"), recorded, target)
    space = searched.space(problem, device, narrow.space)
    return arena_of(searched, problem, device, recorded, space)


def _shown(candidates: int) -> list[int]:
    return [count for count in SHOWN if count <= candidates] or [candidates]


def _table(curves: dict[str, np.ndarray]) -> str:
    counts = _shown(next(iter(curves.values())).shape[1])
    lines = [f"  {'':10}" + "".join(f"{count:>25}" for count in counts) + f"{'until 1%':>11}"]
    for sampler, regret in curves.items():
        cells = (_cell(regret[:, count - 1]) for count in counts)
        lines.append(f"  {sampler:10}" + "".join(f"{cell:>25}" for cell in cells) + f"{_until(regret):>11}")
    return "\n".join(lines)


def _cell(values: np.ndarray) -> str:
    median, low, high = median_interval(values)
    return f"{_percent(median)} [{_percent(low)}, {_percent(high)}]"


def _percent(share: float) -> str:
    return f"{round(share, 4) + 0.0:.2%}" if np.isfinite(share) else "none yet"


def _until(regret: np.ndarray) -> str:
    """Returns after how many candidates the median is at the goal to stay."""
    above = np.flatnonzero(np.median(regret, axis=0) > GOAL)
    first = int(above[-1]) + 2 if len(above) else 1
    return str(first) if first <= regret.shape[1] else f"over {regret.shape[1]}"


def _stop_line(done: Searches) -> str:
    """Returns after how many candidates the expected gain ends the searches, and with what regret."""
    rows = np.flatnonzero(done.stopped)
    if not len(rows):
        return ""
    ends = done.stopped[rows]
    regret = done.regret[rows, ends - 1]
    text = (
        f"stops by its expected gain after {np.median(ends):.0f} candidates ({ends.min()} to {ends.max()}), "
        f"at a regret of {_cell(regret)}, at most {_percent(regret.max())}"
    )
    others = len(done.stopped) - len(rows)
    return f"{text}; not yet for {others} of {len(done.stopped)} seeds" if others else text


def _panel(arena: Arena, curves: dict[str, np.ndarray]) -> Panel:
    return Panel(
        title=arena.title,
        curves=tuple(
            Curve(
                name=sampler,
                points=tuple(median_interval(regret[:, column]) for column in range(regret.shape[1])),
            )
            for sampler, regret in curves.items()
        ),
    )


def _summary(panels: list[Panel]) -> str:
    counts = _shown(len(panels[0].curves[0].points))
    lines = [f"  {'':10}" + "".join(f"{count:>25}" for count in counts)]
    for place, curve in enumerate(panels[0].curves):
        cells = []
        for count in counts:
            medians = [panel.curves[place].points[count - 1][0] for panel in panels]
            cells.append(f"{_percent(float(np.mean(medians)))}, {_percent(max(medians))}")
        lines.append(f"  {curve.name:10}" + "".join(f"{cell:>25}" for cell in cells))
    return "\n".join(lines)
