"""Fits the constants of the cost model to measured times, and says how well it ranks problems it was not fitted to.

    PYTHONPATH=.:kernels python benchmarks/fit_cost.py [FILE ...]

A file is a recorded space (.json.gz), a study of a run (.journal), or a list of {"p": problem, "kw": knobs, "us": time}
(.json); without files the spaces of results/recorded are taken. Prints, for each problem, what a model fitted to all
others says of it, then the constants as `kernels/hopper_matmul/rates.py` holds them. Takes ten seconds a problem.
With --shipped, prints what the constants that ship say of the files, and fits nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from scipy.optimize import least_squares
from scipy.stats import spearmanr

from autotune.evaluate import read_recorded
from hopper_matmul.config import Config
from hopper_matmul.cost import DRAINED, terms, total_us
from hopper_matmul.hardware import Device, device_named
from hopper_matmul.problem import Problem
from hopper_matmul.rates import Rates, rates_of
from hopper_matmul.space import Columns

NAMES = tuple(field.name for field in dataclasses.fields(Rates))
COUNTS = ("clusters_of_4",)  # whole numbers, which a fit by slopes does not see
LEAST_ROWS = 20
PRIOR_SD = 17.0  # of a constant's logarithm, in the units of a residual: it holds what no row speaks of
MOST_ERROR = 4e-3  # relative, of rows in a list that say how wrong their results were

# Where a fit begins: round figures that owe nothing to what it is fitted to, or judged by, but for two: the count, and
# that a request for a row of half a swizzle takes as long as for a whole one.
START = Rates(
    launch_us=2.0,
    sm_macs=3e6,
    powered_sms=110.0,
    wgmma_columns=4.0,
    sm_smem_bytes=2e5,
    bubble_us=0.03,
    step_us=0.03,
    wg_us=0.01,
    copy_us=0.02,
    sm_read_bytes=1e5,
    l2_bytes=7e6,
    line_parts=2.0,
    outside_bytes=2e6,
    latency_us=0.5,
    miss_us=0.5,
    peer_us=0.1,
    hbm_bytes=4e6,
    uneven=0.3,
    sm_store_bytes=1e5,
    direct_elements=2.2e4,
    piece_us=0.1,
    tile_us=0.5,
    cta_us=1.0,
    cluster_us=0.3,
    add_us=2.0,
    add_bytes=4e6,
    exchange_us=2.0,
    exchange_bytes=3e4,
    pad_us=2.0,
    pad_bytes=4e6,
    narrow=0.3,
    narrow_read=1.0,
    clusters_of_4=30.0,
    sharpness=6.0,
    overlap=6.0,
)

Row = tuple[Mapping[str, Any], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The measured configurations of one problem in one file."""

    source: str
    problem: Problem
    columns: Columns
    drained: np.ndarray
    time_us: np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--device", default="NVIDIA H200", metavar="KIND")
    parser.add_argument("--skip-judging", action="store_true", help="only print the constants")
    parser.add_argument("--shipped", action="store_true", help="judge the constants that ship, and fit none")
    arguments = parser.parse_args()
    device = device_named(arguments.device)
    files = [Path(file) for file in arguments.files] or sorted(Path("results/recorded").glob("*.json.gz"))
    groups = [group for file in files for group in groups_of(file)]
    if not groups:
        sys.exit(
            f"no problem with {LEAST_ROWS} measured configurations in {', '.join(map(str, files)) or 'no files'}"
        )
    if arguments.shipped:
        report([(group, rates_of(device)) for group in groups], device)
        return
    if not arguments.skip_judging:
        report(left_out(groups, device), device)
    found = fitted(groups, device)
    print("Rates(")
    for name in NAMES:
        print(f"    {name}={float(f'{getattr(found, name):.3g}')!r},")
    print(")")


def groups_of(file: Path) -> Iterator[Group]:
    """Yields the measured configurations of a file, problem by problem."""
    if file.name.endswith(".json.gz"):
        found = {"recorded": _recorded(file)}
    elif file.suffix == ".journal":
        found = _studies(file)
    else:
        found = _listed(file)
    for problem, rows in found.values():
        if len(rows) >= LEAST_ROWS:
            neutral = Config().to_knobs()
            arrays = {
                name: np.array([knobs.get(name, neutral[name]) for knobs, _ in rows]) for name in neutral
            }
            drained = np.array([DRAINED[plan] for plan in arrays.pop("scopes")])
            time_us = np.array([row_us for _, row_us in rows])
            yield Group(
                source=file.name, problem=problem, columns=Columns(arrays), drained=drained, time_us=time_us
            )


def _recorded(file: Path) -> tuple[Problem, list[Row]]:
    space = read_recorded(file)
    names = list(space.knobs)
    rows = [
        (
            {name: space.knobs[name][code] for name, code in zip(names, codes)},
            statistics.median(row.samples_us),
        )
        for codes, row in space.rows.items()
        if row.failed is None
    ]
    return Problem.from_fields(space.problem), rows


def _studies(file: Path) -> dict[str, tuple[Problem, list[Row]]]:
    storage = JournalStorage(JournalFileBackend(str(file)))
    found = {}
    for study in optuna.get_all_study_summaries(storage):
        fields = study.user_attrs["provenance"]["problem"]
        trials = optuna.load_study(study_name=study.study_name, storage=storage).get_trials(deepcopy=False)
        rows = [(trial.params, trial.value) for trial in trials if trial.value is not None and trial.params]
        found[study.study_name] = (Problem.from_fields(fields), rows)
    return found


def _listed(file: Path) -> dict[str, tuple[Problem, list[Row]]]:
    found: dict[str, tuple[Problem, list[Row]]] = {}
    for row in json.loads(file.read_text()):
        if row.get("us") and (row.get("err") or 0) <= MOST_ERROR and not row.get("diff"):
            sizes, dtype, layout = row["p"].split()
            *batch, m, n, k = map(int, sizes.split("x"))
            fields = {"m": m, "n": n, "k": k, "batch": batch[0] if batch else 1, "layout": layout}
            fields |= {"lhs_dtype": dtype, "rhs_dtype": dtype, "out_dtype": dtype}
            found.setdefault(row["p"], (Problem.from_fields(fields), []))[1].append((row["kw"], row["us"]))
    return found


def predicted(group: Group, device: Device, rates: Rates) -> np.ndarray:
    """Returns the predicted times of a group's rows in us."""
    return total_us(terms(group.problem, group.columns, group.drained, device, rates), rates)


def fitted(groups: list[Group], device: Device) -> Rates:
    """Returns the constants that fit best, from `START`; its counts stay."""
    free = [name for name in NAMES if name not in COUNTS]

    def rates_at(logs: np.ndarray) -> Rates:
        changed = {name: getattr(START, name) * float(np.exp(log)) for name, log in zip(free, logs)}
        return dataclasses.replace(START, **changed)

    def residuals(logs: np.ndarray) -> np.ndarray:
        rates = rates_at(logs)
        parts = [logs / PRIOR_SD]
        for group in groups:
            # Each problem counts alike, and in it the fast ones: nobody asks how slow a slow one is.
            weight = group.time_us.min() / group.time_us
            error = np.log(predicted(group, device, rates) / group.time_us)
            parts.append(error * weight / np.sqrt((weight**2).sum()))
        return np.concatenate(parts)

    found = least_squares(
        residuals, np.zeros(len(free)), bounds=(-2.5, 2.5), loss="soft_l1", f_scale=0.1, max_nfev=60
    )
    return rates_at(found.x)


def left_out(groups: list[Group], device: Device) -> Iterator[tuple[Group, Rates]]:
    """Yields each group with the constants that are fitted to all other problems."""
    for problem in dict.fromkeys(group.problem for group in groups):
        others = [group for group in groups if group.problem != problem]
        rates = fitted(others, device) if others else START
        yield from ((group, rates) for group in groups if group.problem == problem)


def report(judged: Iterable[tuple[Group, Rates]], device: Device) -> None:
    """Prints how each group is ranked by its constants, and the mean, median and worst regrets."""
    print(
        "rank correlation, scatter, regret of the model's first choice, of the best of its first 4, and of 16"
    )
    found = []
    for group, rates in judged:
        guess_us, time_us = predicted(group, device, rates), group.time_us
        order = np.argsort(guess_us, kind="stable")
        # Twins, and whatever else the model takes for equal, are any first choice.
        first_us = time_us[guess_us <= guess_us.min() * (1 + 1e-9)].mean()
        regrets = (
            np.array([first_us, *(time_us[order[:count]].min() for count in (4, 16))]) / time_us.min() - 1
        )
        found.append(regrets)
        print(
            f"{group.problem.describe():28} {len(time_us):5} rows {spearmanr(guess_us, time_us)[0]:6.2f} "
            f"{np.log(guess_us / time_us).std():6.1%}{_percents(regrets)}  {group.source}",
            flush=True,
        )
    for name, of in (("mean", np.mean), ("median", np.median), ("worst", np.max)):
        print(f"{name:53}{_percents(of(found, axis=0))}")


def _percents(shares: np.ndarray) -> str:
    return "".join(f" {share:7.1%}" for share in shares)


if __name__ == "__main__":
    main()
