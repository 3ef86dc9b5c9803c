"""The verb bench: what the lookup answers, raced against XLA on the card at hand, problem by problem."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune import configfile, lookup, machine, torchrival
from autotune.admission import admit
from autotune.errors import InputError
from autotune.evaluate import make_evaluator
from autotune.protocol import AUTO, resolved
from autotune.runconfig import RaceSettings, suite_problems
from autotune.seam import Candidate, Evaluator, Failed, Limits, MeasureProtocol, Race, RaceJob
from autotune.target import load_target
from autotune.verdict import judge, merged, rival_times

TARGET = "hopper_matmul"
OWN_FAMILY = "given"  # of problems on the command line
COLUMNS = (
    "family", "problem", "match", "ours", "ours_us", "plain_us", "best_us", "formulation",
    "plain_ratio", "plain_low", "plain_high", "ratio", "low", "high", "roofline", "joules", "xla_joules",
    "timer", "l2", "regime", "torch_us", "note",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One problem as it was measured. None: not measured, and `note` says why.

    Attributes:
        ours: "kernel" or "xla": what the lookup answers, or a kernel where one was asked for.
        match: How the lookup found it.
        plain, best: Interval (low, median, high) of XLA's time over ours, for both formulations.
        roofline: Least time by what the card did in the same run, over ours; 1 is the limit.
    """

    family: str
    problem: Any
    ours: str
    match: str
    ours_us: float | None = None
    plain_us: float | None = None
    best_us: float | None = None
    formulation: str | None = None
    plain: tuple[float, float, float] | None = None
    best: tuple[float, float, float] | None = None
    roofline: float | None = None
    joules: float | None = None
    xla_joules: float | None = None
    protocol: MeasureProtocol
    torch_us: float | None = None
    note: str = ""

    def cells(self) -> dict[str, object]:
        """Returns the row as a CSV has it."""
        plain, best = self.plain or (None,) * 3, self.best or (None,) * 3
        given = {
            "family": self.family,
            "problem": self.problem.describe(),
            "match": self.match,
            "ours": self.ours,
            "formulation": self.formulation,
            "plain_low": plain[0],
            "plain_ratio": plain[1],
            "plain_high": plain[2],
            "low": best[0],
            "ratio": best[1],
            "high": best[2],
            "timer": self.protocol.timer,
            "l2": self.protocol.l2,
            "regime": self.protocol.regime,
        }
        rest = ("ours_us", "plain_us", "best_us", "roofline", "joules", "xla_joules", "torch_us", "note")
        given |= {name: getattr(self, name) for name in rest}
        return {name: _cell(given[name]) for name in COLUMNS}


def bench(
    problems: Sequence[tuple[str, Any]],
    *,
    kernel_only: bool = False,
    out: Path | None = None,
    rivals: bool = False,
    shared_gpu: bool = False,
    race: RaceSettings = RaceSettings(rivals="full", rounds=100),  # noqa: B008 - frozen
) -> list[BenchRow]:
    """Measures each problem with the race's protocol, prints the tables, and writes bench.csv and bench.md.

    Args:
        problems: With their families.
        kernel_only: Always a kernel of ours, never the dispatch to XLA.
        out: Folder to write to; None: nothing is written.
        rivals: Also time torch.matmul, where torch is installed.
        shared_gpu: Go on although others use the card.

    Raises:
        InputError: There is no Hopper GPU that jax can use.
    """
    gpus = machine.hopper_gpus()
    if not gpus or not machine.has_cuda_jax():
        raise InputError(
            "bench: no Hopper GPU here that jax can use; run it on a host with an H100, H200 or GH200"
        )
    admit(gpus[0], shared=shared_gpu, say=lambda line: print(line, flush=True))
    target = load_target(TARGET)
    known = target.device_named(gpus[0].kind)
    device = dataclasses.replace(known, sm_count=gpus[0].sm_count, memory_bytes=gpus[0].memory_bytes)
    evaluator = make_evaluator(
        "gpu",
        protocol=AUTO,
        limits=Limits(compile_s=600.0),
        target_name=target.name,
        device=device,
        workers=race.processes,
        gpu=gpus[0],
        shared=shared_gpu,
    )
    rows, ids = [], itertools.count()
    try:
        for family, problem in problems:
            row = measured_row(family, problem, target, device, evaluator, ids, race, kernel_only=kernel_only)
            rows.append(
                dataclasses.replace(row, **torchrival.times(problem, gpus[0].uuid)) if rivals else row
            )
            print(_line(rows[-1]), flush=True)
    finally:
        evaluator.close()
    print(f"\n{markdown(rows)}", flush=True)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "bench.csv").write_text(csv_text(rows))
        (out / "bench.md").write_text(markdown(rows))
    return rows


def asked_problems(suite: str | None, sizes: Sequence[int]) -> list[tuple[str, Any]]:
    """Returns the problems of a suite's CSV with their families, or the one of M N K, or those of the best file.

    Raises:
        InputError: The file is wrong, or the sizes are not three.
    """
    target = load_target(TARGET)
    found: list[tuple[str, Any]] = []
    if suite is not None:
        families = [
            cells.get("family", OWN_FAMILY) for _, cells in configfile.read_csv(Path(suite), _columns(target))
        ]
        found += zip(families, suite_problems(Path(suite), target), strict=True)
    if len(sizes) % 3:
        raise InputError(f"bench: {len(sizes)} sizes; allowed: M N K of each problem, or --suite FILE.csv")
    for m, n, k in zip(sizes[::3], sizes[1::3], sizes[2::3], strict=True):
        try:
            found.append((OWN_FAMILY, target.problem_from_fields({"m": m, "n": n, "k": k})))
        except ValueError as error:
            raise InputError(f"bench: {error}") from None
    if not found:
        raise InputError("bench: no problem; give M N K, or --suite FILE.csv such as configs/suites/dev.csv")
    return found


def _columns(target: Any) -> tuple[str, ...]:
    return ("family", "weight", *target.problem_fields)


def chosen(problem: Any, target: Any, device: Any, *, kernel_only: bool) -> tuple[str, str, Any | None]:
    """Returns what the lookup answers: "kernel" or "xla", how it was found, and the kernel's configuration."""
    fields = problem.to_fields()
    names = ("rhs_dtype", "out_dtype", "layout", "batch", "accumulation", "scales", "epilogue", "groups")
    best = lookup.best_config(
        fields["m"], fields["n"], fields["k"], dtype=fields["lhs_dtype"], device=device.kind,
        **{name: fields[name] for name in names},
    )  # fmt: skip
    config = best.config
    if kernel_only and config is None:
        knobs = target.heuristic_config(problem, device)
        config = None if knobs is None else target.config_from_knobs(knobs)
    return ("kernel" if kernel_only else best.backend), best.match, config


def measured_row(
    family: str,
    problem: Any,
    target: Any,
    device: Any,
    evaluator: Evaluator,
    ids: Iterator[int],
    race: RaceSettings,
    *,
    kernel_only: bool,
) -> BenchRow:
    """Races what the lookup answers with XLA and returns the row."""
    protocol = resolved(AUTO, problem, target)
    ours, match, config = chosen(problem, target, device, kernel_only=kernel_only)
    row = BenchRow(family=family, problem=problem, ours=ours, match=match, protocol=protocol)
    if ours == "kernel" and config is None:
        return dataclasses.replace(row, note="no kernel of ours computes it")
    if config is not None and (broken := target.check(problem, config, device)):
        return dataclasses.replace(row, note=f"not legal: {broken[0].rule}")
    try:
        names = tuple(target.rivals(problem))
    except ValueError as error:
        return dataclasses.replace(row, note=str(error))
    candidates = (Candidate(target=target.name, problem=problem, config=config, device=device),)
    jobs = [
        RaceJob(
            job_id=next(ids),
            problem=problem,
            target=target.name,
            candidates=candidates if ours == "kernel" else (),
            rounds=race.rounds,
            protocol=protocol,
            formulations=names if session == 0 or race.processes > 1 else None,
            seconds=race.seconds,
            session=session,
            ceilings=session == 0,
        )
        for session in range(race.processes)
    ]
    results = _results(evaluator, jobs)
    races = [result for result in results if isinstance(result, Race)]
    if not races:
        return dataclasses.replace(row, note=f"{results[0].reason}: {results[0].detail}")
    return filled(row, config, merged(races))


def filled(row: BenchRow, config: Any | None, race: Race) -> BenchRow:
    """Returns the row with the times and ratios of its race."""
    if row.ours == "xla":
        plain_us, best_us, name = rival_times(race)
        if plain_us is None:
            return dataclasses.replace(row, note=_failures(race))
        # What the dispatch calls is the plain formulation.
        ratio = best_us / plain_us
        return dataclasses.replace(
            row,
            ours_us=plain_us,
            plain_us=plain_us,
            best_us=best_us,
            formulation=name,
            plain=(1.0, 1.0, 1.0),
            best=(ratio, ratio, ratio),
            roofline=roofline(row.problem, race, plain_us),
        )
    winner = judge([config.to_knobs()], race)
    if winner is None:
        return dataclasses.replace(row, note=_failures(race))
    return dataclasses.replace(
        row,
        ours_us=winner.time_us,
        plain_us=winner.plain_time_us,
        best_us=winner.xla_time_us,
        formulation=winner.formulation,
        plain=_interval(winner.plain_ratio, winner.plain_interval),
        best=_interval(winner.ratio, winner.ratio_interval),
        roofline=roofline(row.problem, race, winner.time_us),
        joules=winner.joules,
        xla_joules=winner.xla_joules,
    )


def roofline(problem: Any, race: Race, time_us: float) -> float | None:
    """Returns the least time that the card's own copy and product of the same run allow, over `time_us`."""
    if not race.ceilings:
        return None
    arithmetic_s = problem.flops / race.ceilings["product_flops_per_s"]
    memory_s = problem.min_bytes / race.ceilings["copy_bytes_per_s"]
    return max(arithmetic_s, memory_s) * 1e6 / time_us


def geometric_means(rows: Sequence[BenchRow]) -> list[tuple[str, int, float, float, float | None]]:
    """Returns family, count, and geometric means of both ratios and of the roofline's fraction; all rows last."""
    measured = [row for row in rows if row.plain and row.best]
    families = dict.fromkeys(row.family for row in measured)
    groups = [(name, [row for row in measured if row.family == name]) for name in families]
    if len(groups) > 1:
        groups.append(("all", measured))
    return [
        (
            name,
            len(group),
            _mean([row.plain[1] for row in group]),
            _mean([row.best[1] for row in group]),
            _mean([row.roofline for row in group]) if all(row.roofline for row in group) else None,
        )
        for name, group in groups
    ]


def csv_text(rows: Sequence[BenchRow]) -> str:
    """Returns the rows as CSV."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.cells() for row in rows)
    return stream.getvalue()


def markdown(rows: Sequence[BenchRow]) -> str:
    """Returns the rows and the geometric means by family as two Markdown tables."""
    head = (
        "problem",
        "ours",
        "us",
        "XLA plain",
        "XLA best",
        "plain/ours",
        "best/ours",
        "95%",
        "roofline",
        "how",
    )
    body = [_shown(row) for row in rows]
    means = [
        (name, str(count), f"{plain:.3f}", f"{best:.3f}", "-" if limit is None else f"{limit:.2f}")
        for name, count, plain, best, limit in geometric_means(rows)
    ]
    second = ("family", "problems", "plain/ours", "best/ours", "roofline")
    return f"{_table(head, body)}\nGeometric means; over 1 ours is faster.\n\n{_table(second, means)}"


def _shown(row: BenchRow) -> tuple[str, ...]:
    how = f"{row.protocol.regime} {row.protocol.timer} {row.protocol.l2}"
    if row.ours_us is None:
        return (row.problem.describe(), row.ours, *["-"] * 7, row.note or how)
    best = "-" if row.best_us is None else f"{row.best_us:.2f} {row.formulation}"
    interval = f"{row.best[0]:.3f} - {row.best[2]:.3f}" if row.best else "-"
    return (
        row.problem.describe(),
        f"{row.ours} ({row.match})",
        f"{row.ours_us:.2f}",
        "-" if row.plain_us is None else f"{row.plain_us:.2f}",
        best,
        "-" if row.plain is None else f"{row.plain[1]:.3f}",
        "-" if row.best is None else f"{row.best[1]:.3f}",
        interval,
        "-" if row.roofline is None else f"{row.roofline:.2f}",
        how,
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)


def _line(row: BenchRow) -> str:
    return "  ".join(cell for cell in _shown(row) if cell != "-")


def _results(evaluator: Evaluator, jobs: Sequence[RaceJob]) -> list[Race | Failed]:
    for job in jobs:
        evaluator.submit(job)
    found: dict[int, Any] = {}
    while len(found) < len(jobs):
        found |= {outcome.job_id: outcome.result for outcome in evaluator.poll(1.0)}
    return [found[job.job_id] for job in jobs]


def _failures(race: Race) -> str:
    failed = [entry.result for entry in race.entries if isinstance(entry.result, Failed)]
    return f"{failed[0].reason}: {failed[0].detail}" if failed else "no samples"


def _interval(median: float | None, ends: tuple[float, float] | None) -> tuple[float, float, float] | None:
    return None if median is None or ends is None else (min(ends[0], median), median, max(ends[1], median))


def _mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _cell(value: object) -> object:
    return "" if value is None else round(value, 4) if isinstance(value, float) else value
