"""The verb bench: what the lookup answers, raced against XLA on the card at hand, problem by problem."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune import configfile, lookup, machine, torchrival
from autotune.admission import admit
from autotune.benchtable import BenchRow, csv_text, line, markdown
from autotune.errors import InputError
from autotune.evaluate import make_evaluator
from autotune.evaluate.capacity import default_workers
from autotune.fields import Place
from autotune.problemlist import suite_problems
from autotune.protocol import AUTO, resolved
from autotune.runconfig import RaceSettings
from autotune.seam import Candidate, Evaluator, Failed, Limits, Race, RaceJob
from autotune.sessions import as_one, raced
from autotune.target import load_target
from autotune.verdict import judge, rival_times
from autotune.writable import require_writable

TARGET = "hopper_matmul"
MOST_WORKERS = 8  # of races that wait for one card
OWN_FAMILY = "given"  # of problems on the command line


def bench(
    problems: Sequence[tuple[str, Any]],
    *,
    kernel_only: bool = False,
    out: Path | None = None,
    rivals: bool = False,
    exhaustive: bool = False,
    shared_gpu: bool = False,
    race: RaceSettings = RaceSettings(seconds=1.0),  # noqa: B008 - frozen
) -> list[BenchRow]:
    """Measures each problem with the race's protocol, prints the tables, and writes bench.csv and bench.md.

    Many problems are in flight at once, and take turns on the card. What is measured is written as it comes.

    Args:
        problems: With their families.
        kernel_only: Always a kernel of ours, never the dispatch to XLA.
        out: Folder to write to; None: nothing is written.
        rivals: Also time torch.matmul, where torch is installed.
        exhaustive: Also race the formulations that XLA compiles for minutes.
        shared_gpu: Go on although others use the card.

    Raises:
        InputError: There is no Hopper GPU that jax can use, or `out` cannot be written.
    """
    gpus = machine.hopper_gpus()
    if not gpus or not machine.has_cuda_jax():
        raise InputError(
            "bench: no Hopper GPU here that jax can use; run it on a host with an H100, H200 or GH200"
        )
    if out is not None:
        require_writable(out, Place(path="--out"), files=("bench.csv", "bench.md"))
    admit(gpus[0], shared=shared_gpu, say=lambda line: print(line, flush=True))
    target = load_target(TARGET)
    known = target.device_named(gpus[0].kind)
    device = dataclasses.replace(known, sm_count=gpus[0].sm_count, memory_bytes=gpus[0].memory_bytes)
    if exhaustive:
        race = dataclasses.replace(race, rivals="full")
    asked = [
        asked_row(family, problem, target, device, race, kernel_only=kernel_only)
        for family, problem in problems
    ]
    began_s = time.monotonic()
    evaluator = make_evaluator(
        "gpu",
        protocol=AUTO,
        limits=Limits(compile_s=600.0),
        target_name=target.name,
        device=device,
        workers=min(MOST_WORKERS, default_workers(on_gpu=True)),
        gpu=gpus[0],
        shared=shared_gpu,
    )
    rows = [one.row for one in asked]
    try:
        for index, row in measured_rows(asked, evaluator, race):
            rows[index] = row
            print(line(row), flush=True)
            _write(rows, out)
    finally:
        evaluator.close()
    if rivals:  # after the races, since torch takes no turns
        rows = [
            dataclasses.replace(row, **torchrival.times(row.problem, gpus[0].uuid)) if row.ours_us else row
            for row in rows
        ]
    print(f"\n{markdown(rows)}\n{len(rows)} problems in {time.monotonic() - began_s:.0f} s", flush=True)
    _write(rows, out)
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One problem with what races for it; `job` is None where nothing can, and the row's note says why."""

    row: BenchRow
    config: Any | None = None
    job: RaceJob | None = None


def measured_rows(
    asked: Sequence[Asked], evaluator: Evaluator, race: RaceSettings
) -> Iterator[tuple[int, BenchRow]]:
    """Yields the rows with their places, as their races end.

    What the card can do is measured once for each dtype and regime, beside the first problem that has them.
    """
    ceilings: dict[tuple[str, str], Any] = {}
    jobs = []
    for index, one in enumerate(asked):
        if one.job is not None:
            is_first = _class_of(one.row) not in ceilings
            ceilings.setdefault(_class_of(one.row), None)
            jobs.append((index, dataclasses.replace(one.job, ceilings=is_first)))
    held: dict[int, Race | Failed] = {}
    awaited = {index: _class_of(asked[index].row) for index, job in jobs if job.ceilings}
    for index, results in raced(evaluator, jobs, processes=race.processes, job_ids=itertools.count()):
        held[index] = as_one(results)
        if index in awaited and isinstance(held[index], Race):
            ceilings[awaited[index]] = held[index].ceilings
        awaited.pop(index, None)
        for place in [place for place in held if _class_of(asked[place].row) not in awaited.values()]:
            yield place, _measured_row(asked[place], held.pop(place), ceilings[_class_of(asked[place].row)])


def _measured_row(one: Asked, race: Race | Failed, ceilings: Any) -> BenchRow:
    if isinstance(race, Failed):
        return dataclasses.replace(one.row, note=f"{race.reason}: {race.detail}")
    return filled(one.row, one.config, dataclasses.replace(race, ceilings=ceilings))


def _class_of(row: BenchRow) -> tuple[str, str]:
    return row.problem.to_fields()["lhs_dtype"], row.protocol.regime


def _write(rows: Sequence[BenchRow], out: Path | None) -> None:
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "bench.csv").write_text(csv_text(rows))
        (out / "bench.md").write_text(markdown(rows))


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
    fields["dtype"] = fields.pop("lhs_dtype")  # as best_config calls it
    best = lookup.best_config(**fields, device=device.kind)
    config = best.config
    if kernel_only and config is None:
        knobs = target.heuristic_config(problem, device)
        config = None if knobs is None else target.config_from_knobs(knobs)
    return ("kernel" if kernel_only else best.backend), best.match, config


def asked_row(
    family: str, problem: Any, target: Any, device: Any, race: RaceSettings, *, kernel_only: bool
) -> Asked:
    """Returns what the lookup answers for a problem, and the race of it with XLA."""
    protocol = resolved(AUTO, problem, target)
    ours, match, config = chosen(problem, target, device, kernel_only=kernel_only)
    row = BenchRow(family=family, problem=problem, ours=ours, match=match, protocol=protocol)
    if ours == "kernel" and config is None:
        return Asked(row=dataclasses.replace(row, note="no kernel of ours computes it"))
    if ours == "kernel" and (broken := target.check(problem, config, device)):
        return Asked(row=dataclasses.replace(row, note=f"not legal: {broken[0].rule}"))
    try:
        names = tuple(target.rivals(problem))
    except ValueError as error:
        return Asked(row=dataclasses.replace(row, note=str(error)))
    candidate = Candidate(target=target.name, problem=problem, config=config, device=device)
    job = RaceJob(
        job_id=0,
        problem=problem,
        target=target.name,
        candidates=(candidate,) if ours == "kernel" else (),
        rounds=race.rounds,
        protocol=protocol,
        formulations=names if race.rivals == "full" else None,
        seconds=race.seconds,
    )
    return Asked(row=row, config=config, job=job)


def filled(row: BenchRow, config: Any | None, race: Race) -> BenchRow:
    """Returns the row with the times and ratios of its race."""
    if row.ours == "xla":
        found = rival_times(race)
        if found is None:
            return dataclasses.replace(row, note=_failures(race))
        # What the dispatch calls is the plain formulation.
        return dataclasses.replace(
            row,
            ours_us=found.plain_us,
            plain_us=found.plain_us,
            best_us=found.best_us,
            formulation=found.formulation,
            plain=(1.0, 1.0, 1.0),
            best=found.ratio,
            roofline=roofline(row.problem, race, found.plain_us),
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


def _failures(race: Race) -> str:
    failed = [entry.result for entry in race.entries if isinstance(entry.result, Failed)]
    return f"{failed[0].reason}: {failed[0].detail}" if failed else "no samples"


def _interval(median: float | None, ends: tuple[float, float] | None) -> tuple[float, float, float] | None:
    return None if median is None or ends is None else (min(ends[0], median), median, max(ends[1], median))
