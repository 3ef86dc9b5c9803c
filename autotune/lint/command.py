"""`autotune check FILE.py:FUNC`: the legality check as a command."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from autotune.errors import InputError
from autotune.lint.argument import ArgumentType, parse_argument
from autotune.lint.model import Report
from autotune.lint.text import render

_FORM = "expected FILE.py:FUNC, for instance my_kernel.py:run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the file form to `parser`."""
    parser.add_argument(
        "subject",
        nargs="?",
        metavar="FILE.py:FUNC",
        help="a function that calls Pallas Mosaic GPU kernels",
    )
    parser.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="TYPE",
        help="type of the next argument, e.g. bf16[4096,4096]; without any, the file's EXAMPLE_ARGS are used",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """Checks `args.subject`; prints the report. Returns 0 where it is legal, 1 where not, 2 for bad input."""
    try:
        types = [parse_argument(text) for text in args.arg]
        path, name = _split(args.subject)
        # Tracing needs no device, and a check must not take memory on a GPU that somebody is measuring on.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        with _own_stdout() as own:
            report = _checked(path, name, types)
            text = json.dumps(report.to_json(), indent=2) if args.json else render(report)
            print(text, file=own, flush=True)
    except InputError as error:
        print(f"autotune check: {error}", file=sys.stderr)
        return 2
    return 0 if report.ok else 1


@contextlib.contextmanager
def _own_stdout() -> Iterator[TextIO]:
    """Yields standard output, and turns all that the user's file prints to stderr, also below Python.

    Where sys.stdout is the process's own, that lasts to its end, for what the file prints while it goes, and what C
    libraries buffer until then.
    """
    given = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        if not _is_descriptor_1(given):
            yield given
            return
        given.flush()
        with open(os.dup(1), "w", encoding=given.encoding, errors=given.errors) as own:
            os.dup2(2, 1)
            yield own


def _is_descriptor_1(stream: TextIO) -> bool:
    try:
        return stream.fileno() == 1
    except (OSError, ValueError):  # a stream of a test, or of a notebook
        return False


def _checked(path: Path, name: str, types: Sequence[ArgumentType]) -> Report:
    module = _import(path)
    function = _function(module, path, name)
    arguments = _arguments(module, path, types)
    from autotune.lint.checking import check

    return replace(check(function, *arguments), subject=name)


def _split(subject: str) -> tuple[Path, str]:
    file, separator, name = subject.rpartition(":")
    if not separator or not file or not name.isidentifier():
        raise InputError(f"{subject}: {_FORM}")
    path = Path(file)
    if not os.path.isfile(path):
        what = "is a folder" if os.path.isdir(path) else "no such file, or it cannot be reached"
        raise InputError(f"{file}: {what}; {_FORM}")
    if path.suffix != ".py":
        raise InputError(f"{file}: not a Python file; {_FORM}")
    return path, name


def _import(path: Path) -> ModuleType:
    """Imports a file as Python would run it: what lies beside it can be imported."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's file may raise anything
        raise InputError(f"{path}: cannot be imported: {_described(error, path)}") from error
    return module


def _described(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} (line {error.lineno})"
    traceback, line = error.__traceback__, None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == str(path.resolve()):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" + ("" if line is None else f" (line {line})")


def _function(module: ModuleType, path: Path, name: str) -> Callable[..., Any]:
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if _is_own_function(value, module)]
        raise InputError(f"{path}: has no {name}; its functions are {', '.join(own) or 'none'}")
    function = getattr(module, name)
    if not callable(function):
        raise InputError(f"{path}: {name} is no function but of type {type(function).__name__}")
    return function


def _is_own_function(value: object, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def _arguments(module: ModuleType, path: Path, types: Sequence[ArgumentType]) -> tuple[Any, ...]:
    if types:
        import jax

        return tuple(jax.ShapeDtypeStruct(one.shape, jax.numpy.dtype(one.dtype)) for one in types)
    if not hasattr(module, "EXAMPLE_ARGS"):
        raise InputError(
            f"{path}: has no EXAMPLE_ARGS; define it, or give each argument as --arg, e.g. bf16[4096,4096]"
        )
    example = module.EXAMPLE_ARGS
    if not isinstance(example, (tuple, list)):
        raise InputError(
            f"{path}: EXAMPLE_ARGS must be a tuple of the arguments, got {type(example).__name__}"
        )
    return tuple(example)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="autotune check", description="Checks the Mosaic GPU kernels of a function."
    )
    add_arguments(parser)
    return run(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
