"""The verb best beside the lookup: differences, merging and history of best files."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    """Returns whether the arguments ask for the lookup; ends the process with the usage where they fit no mode."""
    given = [name for name in SIZES if getattr(arguments, name) is not None]
    for name in ("diff", "merge"):
        if getattr(arguments, name) and given:
            arguments.refuse(f"--{name} takes files, no {given[0].upper()}; leave the sizes out")
    if not (arguments.diff or arguments.merge) and len(given) < len(SIZES):
        arguments.refuse("M N K are needed, as in: autotune best 4096 4096 4096")
    if arguments.output and not arguments.merge:
        arguments.refuse("--output belongs to --merge")
    return not (arguments.diff or arguments.merge or arguments.history)


def run(arguments: argparse.Namespace) -> int:
    """Runs one of the modes; 0."""
    if arguments.diff:
        return _diff(*arguments.diff, as_json=arguments.json)
    if arguments.merge:
        return _merge(arguments.merge, arguments.output)
    return _history(arguments)


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
