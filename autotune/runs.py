"""The verbs run and record: a run config, put together with what it runs on, handed to the driver."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import re
import statistics
from pathlib import Path
from typing import Any

from autotune import machine, recording
from autotune.admission import admit
from autotune.bestfile import read_best
from autotune.census import census, first_reason
from autotune.choice import Choice, choose, choose_gpu, narrowed, unrecorded
from autotune.driver import Part, run_parts
from autotune.errors import InputError, NothingLegalError
from autotune.evaluate import RecordedRow, RecordedSpace, make_evaluator, write_recorded
from autotune.lookup import best_folders
from autotune.progress import Progress, make_progress
from autotune.promotion import promote
from autotune.recordedtarget import RecordedTarget
from autotune.result import ProblemResult
from autotune.runconfig import RunConfig, check_space
from autotune.seam import Failed, Measured
from autotune.seeds import nearby_winners
from autotune.stages import Stages
from autotune.summary import table
from autotune.target import load_target
from autotune.textable import terminal_width
from autotune.writable import require_records_kept


def run(
    config: RunConfig,
    *,
    workers: int | None = None,
    fresh: bool = False,
    dry_run: bool = False,
    shared_gpu: bool = False,
) -> None:
    """Tunes the problems of `config`; prints what it runs on, then the table of winners.

    Args:
        workers: Processes; None: as many as the machine carries.
        fresh: Start new studies instead of going on with the recorded ones.
        dry_run: Only count the configurations; nothing is lowered or written.
        shared_gpu: Measure although others use the card, and mark the record.

    Raises:
        InputError: Before anything is written.
        NothingLegalError, NothingSurvivedError: Of the first problem that has one; the others were tuned.
    """
    target = load_target(config.target)
    choice = choose(config, target)
    check_space(config, target, choice.device)
    parts = _parts(config, choice, target)
    if choice.kind == "gpu":
        read_best(
            _best_path(config, choice)
        )  # a file that cannot be replaced ends the run here, not after it
    print(choice.why, flush=True)
    for problem, recorded in choice.recorded.items():
        for knob, values in unrecorded(config, recorded).items():
            left_out = ", ".join(map(str, values))
            print(f"{problem.describe()}: space.{knob}: not recorded, left out: {left_out}", flush=True)
    if dry_run:
        _dry_run(parts, target, choice)
        return
    require_records_kept(config, ("best",) if choice.kind == "gpu" else ())
    if choice.gpu is not None:
        admit(choice.gpu, shared=shared_gpu, say=_say)
    stages = _stages(config, target, choice, workers, shared_gpu)
    result = run_parts(
        [Part(config=part, stages=_searching(stages, part, target, choice)) for part in parts],
        choice.device,
        fresh=fresh,
    )
    print(table(result, terminal_width()), flush=True)
    result.raise_for_failure()


def record(
    config: RunConfig, *, workers: int | None = None, fresh: bool = False, shared_gpu: bool = False
) -> None:
    """Measures the whole legal space of each problem and writes it below results/recorded, for replay.

    Raises:
        InputError: There is no Hopper GPU, or the config is wrong; before anything is written.
        NothingLegalError, NothingSurvivedError: Of the first problem that has one.
    """
    if config.evaluator not in ("auto", "gpu"):
        raise InputError(
            f"{config.path}: evaluator={config.evaluator}: only gpu can record; allowed: auto, gpu"
        )
    target = load_target(config.target)
    choice = choose_gpu(config, target)
    check_space(config, target, choice.device)
    require_records_kept(config, ("recorded",))
    print(choice.why, flush=True)
    admit(choice.gpu, shared=shared_gpu, say=_say)
    stages = dataclasses.replace(_stages(config, target, choice, workers, shared_gpu), promote=None)
    versions = dataclasses.asdict(machine.toolchain())

    def write(found: recording.RecordedSpace) -> None:
        space = recorded_space(found, target, versions, f"autotune record {config.path}")
        name = _file_name(f"{target.name}-{found.problem.describe()}-{choice.device.slug}")
        path = config.results / "recorded" / f"{name}.json.gz"
        write_recorded(path, space)
        print(f"{path}: {len(space.rows)} configurations", flush=True)

    recording.record(config, choice.device, stages, write, fresh=fresh)


def recorded_space(
    found: recording.RecordedSpace, target: Any, versions: dict[str, Any], command: str
) -> RecordedSpace:
    """Returns a measured space as its file holds it."""
    knobs = {name: tuple(values) for name, values in found.space.items()}
    code_of = {name: {value: code for code, value in enumerate(values)} for name, values in knobs.items()}
    rows = {}
    for row_knobs, result in found.rows:
        codes = tuple(code_of[name][row_knobs[name]] for name in knobs)
        digest = result.lowered.digest if result.lowered else None
        if isinstance(result, Failed):
            rows[codes] = RecordedRow(failed=result, digest=digest)
        else:
            rows[codes] = RecordedRow(samples_us=result.timing.samples_us, digest=digest)
    rivals = [lane.result.timing.samples_us for lane in found.rival if isinstance(lane.result, Measured)]
    return RecordedSpace(
        target=target.name,
        problem=found.problem.to_fields(),
        device=dataclasses.asdict(found.device),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        versions=versions,
        source_digest=target.source_digest(),
        protocol=dataclasses.asdict(found.protocol),
        command=command,
        knobs=knobs,
        rows=rows,
        rival_us=min(rivals, key=statistics.median, default=()),
        shares_binaries=any(result.lowered and result.lowered.shares_binary for _, result in found.rows),
    )


def _parts(config: RunConfig, choice: Choice, target: Any) -> list[RunConfig]:
    """Returns the config in parts: each problem of a replay has the space and the protocol of its recording."""
    if choice.kind != "replay":
        return [config]
    return [
        narrowed(dataclasses.replace(config, problems=(weighted,)), choice.recorded[weighted.problem], target)
        for weighted in config.problems
    ]


def _dry_run(parts: list[RunConfig], target: Any, choice: Choice) -> None:
    taken = [census(part, _searched(target, part, choice), choice.device) for part in parts]
    rows = tuple(row for one in taken for row in one.rows)
    print(dataclasses.replace(taken[0], rows=rows).text(terminal_width()), flush=True)
    for row in rows:
        if not row.counts.legal:
            space = target.space(row.problem, choice.device, parts[0].space)
            reason = first_reason(target, row.problem, space, choice.device)
            kind = choice.device.kind
            raise NothingLegalError(
                f"{row.problem.describe()}: nothing in its space is legal on {kind}{reason}"
            )


def _searched(target: Any, config: RunConfig, choice: Choice) -> Any:
    """Returns the target whose space is searched: of a replay, what was recorded."""
    recorded = choice.recorded.get(config.problems[0].problem)
    return target if recorded is None else RecordedTarget(target, recorded)


def _searching(stages: Stages, part: RunConfig, target: Any, choice: Choice) -> Stages:
    """Returns the stages of one part of the run; for a replay, those of its recorded space."""
    recorded = choice.recorded.get(part.problems[0].problem)
    if recorded is None:
        return stages
    return dataclasses.replace(
        stages, target=_searched(target, part, choice), evaluator_source=recorded.digest
    )


def _say(line: str) -> None:
    print(line, flush=True)


def _stages(
    config: RunConfig, target: Any, choice: Choice, workers: int | None, shared_gpu: bool = False
) -> Stages:
    toolchain = machine.toolchain()
    progress = make_progress()
    evaluator = make_evaluator(
        choice.kind,
        protocol=config.protocol,
        limits=config.limits,
        target_name=target.name,
        device=choice.device,
        workers=workers,
        gpu=choice.gpu,
        recorded=tuple(choice.recorded.values()),
        seed=config.search.seed,
        shared=shared_gpu,
    )
    return Stages(
        target=target,
        evaluator=evaluator,
        progress=progress,
        toolchain=dataclasses.asdict(toolchain),
        promote=_promoter(config, target, choice, toolchain, progress) if choice.kind == "gpu" else None,
        **({"seeds": functools.partial(_seeds, config, target)} if choice.kind == "gpu" else {}),
    )


def _seeds(config: RunConfig, target: Any, problem: Any, device: Any) -> list[dict[str, Any]]:
    return nearby_winners(target, problem, device, (config.results / "best", *best_folders()))


def _promoter(
    config: RunConfig, target: Any, choice: Choice, toolchain: machine.Toolchain, progress: Progress
):
    path = _best_path(config, choice)

    def hear(result: ProblemResult) -> None:
        promotion = promote(path.parent, result, toolchain, target=target.name)
        done = f"written to {path}" if promotion.written else f"{path} keeps its entry"
        progress.say(f"{result.problem.describe()}: {done}: {promotion.reason}")

    return hear


def _best_path(config: RunConfig, choice: Choice) -> Path:
    return config.results / "best" / f"{choice.device.slug}.json"


def _file_name(text: str) -> str:
    return re.sub(r"[^a-z0-9_.-]+", "_", text.lower()).strip("_")
