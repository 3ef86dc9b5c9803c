"""The verb best: the lookup's answer, and differences, merging and history of best files."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.errors import InputError
from autotune.fields import Place
from autotune.writable import require_writable

SIZES = ("m", "n", "k")
NOT_FIELDS = (
    "verb",
    "json",
    "diff",
    "merge",
    "history",
    "output",
    "results",
    "refuse",
)  # of a problem or lookup


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the other modes to the parser of the lookup."""
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument(
        "--diff", nargs=2, metavar=("A", "B"), help="differences of two best files or two git revisions"
    )
    modes.add_argument(
        "--merge",
        nargs="+",
        metavar="FILE",
        help="best files of one kind of device put together: the preferred protocol first, then the interval",
    )
    modes.add_argument("--history", action="store_true", help="what won the problem M N K when")
    parser.add_argument("--output", metavar="FILE", help="where --merge writes; standard output if left out")
    parser.add_argument("--results", metavar="DIR", help="results folder of --history; results if left out")
    parser.set_defaults(refuse=parser.error)


def is_lookup(arguments: argparse.Namespace) -> bool:
    """Returns whether the arguments ask for the lookup; refuses what fits no mode."""
    given = [name for name in SIZES if getattr(arguments, name) is not None]
    for name in ("diff", "merge"):
        if getattr(arguments, name) and given:
            arguments.refuse(f"--{name} takes files, no {given[0].upper()}; leave the sizes out")
    if not (arguments.diff or arguments.merge) and len(given) < len(SIZES):
        arguments.refuse("M N K are needed, as in: autotune best 4096 4096 4096")
    if arguments.output and not arguments.merge:
        arguments.refuse("--output belongs to --merge")
    if arguments.results and not arguments.history:
        arguments.refuse("--results belongs to --history; the lookup reads the folder AUTOTUNE_RESULTS names")
    return not (arguments.diff or arguments.merge or arguments.history)


def look_up(arguments: argparse.Namespace) -> int:
    """Prints what the lookup answers; 0.

    Raises:
        InputError: What `lookup.best_config` refuses.
    """
    from autotune import lookup

    options = {name: value for name, value in vars(arguments).items() if name not in NOT_FIELDS}
    try:
        best = lookup.best_config(**options)
    except ValueError as error:
        raise InputError(str(error)) from None
    print(json.dumps(_as_json(best)) if arguments.json else _as_text(best))
    return 0


def run(arguments: argparse.Namespace) -> int:
    """Runs one of the other modes; 0."""
    if arguments.diff:
        return _diff(*arguments.diff, as_json=arguments.json)
    if arguments.merge:
        return _merge(arguments.merge, arguments.output)
    return _history(arguments)


def _as_json(best: Any) -> dict[str, Any]:
    fields = {field.name: getattr(best, field.name) for field in dataclasses.fields(best)}
    fields["config"] = best.config.to_knobs() if best.config is not None else None
    if "problem" in fields:
        fields["problem"] = best.problem.to_fields()
        fields["path"] = str(best.path)
        fields["ratio"] = dataclasses.asdict(best.ratio) if best.ratio else None
    return fields


def _as_text(best: Any) -> str:
    knobs = best.config.to_knobs().items() if best.config is not None else ()
    lines = [f"match    {best.match}", f"backend  {best.backend}"]
    if best.match == "heuristic":
        lines.insert(
            1, "found    by the heuristic: nothing near this problem was measured, so there are no times"
        )
    else:
        xla = "not measured" if best.xla_time_us is None else f"{best.xla_time_us:.2f} us"
        lines.insert(1, f"found    {best.problem.describe()} on {best.device}, {best.path}")
        lines.append(f"time     {best.time_us:.2f} us; XLA {xla}")
        if best.ratio:
            interval = f"95% interval {best.ratio.low:.3f} - {best.ratio.high:.3f}"
            lines.append(f"ratio    XLA's time over the kernel's {best.ratio.median:.3f}, {interval}")
        lines.append(f"with     jax {best.jax}, jaxlib {best.jaxlib}, driver {best.driver}")
    words = " ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in knobs
    )
    return "\n".join([*lines, f"config   {words or 'none'}"])


def _diff(before: str, after: str, *, as_json: bool) -> int:
    from autotune import bestdiff

    changes = bestdiff.diff(before, after)
    rows = [dataclasses.asdict(change) for change in changes]
    print(json.dumps(rows) if as_json else bestdiff.text(changes))
    return 0


def _merge(names: Sequence[str], output: str | None) -> int:
    from autotune import bestmerge
    from autotune.bestfile import best_text, locked, write_best

    merged = bestmerge.merge([Path(name) for name in names])
    if output is None:
        print(best_text(merged.device, merged.raw), end="")
    else:
        path = Path(output)
        place = Place(path="--output")
        if not os.path.isdir(path.parent):
            raise place.refuses(output, f"a file in a folder that is there, but {path.parent} is none")
        if os.path.isdir(path):
            raise place.refuses(output, f"a file, but {path} is a folder")
        require_writable(path.parent, place)
        try:
            with locked(path.parent):
                write_best(path, merged.device, merged.raw)
        except OSError as error:
            raise place.refuses(output, f"a file that can be written, but: {error.strerror}") from None
    for key, (path, reason) in merged.origin.items():
        print(f"{key}: {path}: {reason}", file=sys.stderr)
    return 0


def _history(arguments: argparse.Namespace) -> int:
    from autotune import besthistory

    renamed = {"dtype": "lhs_dtype"}
    left_out = (*NOT_FIELDS, "device", "policy")
    fields: dict[str, Any] = {
        renamed.get(name, name): value for name, value in vars(arguments).items() if name not in left_out
    }
    results = Path("results" if arguments.results is None else arguments.results)
    if arguments.results is not None and not os.path.isdir(results):
        raise Place(path="--results").refuses(arguments.results, "a results folder that is there")
    rows = besthistory.history(
        fields,
        results=results,
        device=getattr(arguments, "device", None),
    )
    print(json.dumps(rows) if arguments.json else besthistory.text(rows))
    return 0
