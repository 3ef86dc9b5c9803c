"""The command line: verbs, their options, and how an error becomes one line and an exit code."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import autotune
from autotune import environment, interrupt
from autotune.arguments import Parser, number, whole
from autotune.errors import AutotuneError

KERNEL_FAMILIES = ("hopper_matmul",)
BROKEN_PIPE = 141  # what a shell reports for a command that SIGPIPE ended
EXIT_CODES = """exit codes:
  0    done
  1    a fault was found, or something broke on the way
  2    bad input; nothing was written
  3    no configuration is legal
  4    configurations existed, none survived
  10   nightly: something improved
  20   nightly: a regression
  30   nightly: the machine is not fit to be measured on
  130  interrupted; what was measured is recorded"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: Arguments without the program's name; None takes the process's own.

    Returns:
        The exit code.
    """
    _mend_streams()
    environment.leave_cores_to_workers()
    try:
        arguments = _parser().parse_args(argv)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = arguments.verb(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("autotune: interrupted", file=sys.stderr)
        return interrupt.INTERRUPTED
    except BrokenPipeError:
        # The reader went away, as `| head` does. Python would complain again while it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (AutotuneError, OSError, ModuleNotFoundError) as error:
        if environment.is_verbose() or _is_own_module(error):
            raise
        print(f"autotune: error: {' '.join(_words(error).split())}", file=sys.stderr)
        return error.exit_code if isinstance(error, AutotuneError) else 1
    return code


def _mend_streams() -> None:
    """Gives a process that was started with closed streams streams that go nowhere.

    A character that an open one cannot show, in a path of the user's, is escaped, and not the end of the command.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - it stays open to the end of the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _words(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        if error.name in KERNEL_FAMILIES:
            return f"{error.name} is not found; from a source tree start with PYTHONPATH=.:kernels, or install it"
        return (
            f"{error.name} is not installed; install hopper-autotune with what it needs, as the README says"
        )
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _is_own_module(error: BaseException) -> bool:
    """Returns whether a module of this repository is missing, which no user can have caused."""
    name = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
    return name.partition(".")[0] in ("autotune", *KERNEL_FAMILIES) and name not in KERNEL_FAMILIES


def _parser() -> Parser:
    parser = Parser(
        prog="autotune",
        description="Tunes matrix products for NVIDIA Hopper GPUs.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hopper-autotune {autotune.__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    _add_run(verbs)
    _add_record(verbs)
    _add_compare(verbs)
    _add_best(verbs)
    _add_nightly(verbs)
    _add_bench(verbs)
    _add_check(verbs)
    text = "say what this machine offers: versions, GPUs, evaluator, best files"
    _add_verb(verbs, "doctor", _doctor, text).add_argument(
        "--json", action="store_true", help="print one JSON object"
    )
    return parser


def _add_verb(verbs: Any, name: str, verb: Callable[[argparse.Namespace], int], text: str) -> Parser:
    parser = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.set_defaults(verb=verb)
    return parser


def _add_run(verbs: Any) -> None:
    parser = _add_verb(verbs, "run", _run, "tune the problems of a config and keep the best")
    parser.add_argument("config", metavar="CONFIG", help="a YAML file, such as configs/quickstart.yaml")
    parser.add_argument("--dry-run", action="store_true", help="only count the configurations; write nothing")
    _add_study_options(parser)
    parser.add_argument("--evaluator", metavar="X", help="auto, gpu, replay or lower")
    parser.add_argument("--candidates", type=whole, metavar="N", help="candidates of each problem")
    parser.add_argument("--seconds", type=number, metavar="S", help="seconds of each problem")
    parser.add_argument(
        "--total-candidates", type=whole, metavar="N", help="candidates that all problems share"
    )
    parser.add_argument("--total-seconds", type=number, metavar="S", help="seconds that all problems share")
    parser.add_argument("--seed", type=whole, metavar="N", help="of the search and of the operands")


def _add_record(verbs: Any) -> None:
    text = "measure the whole legal space of each problem of a config, for replay"
    parser = _add_verb(verbs, "record", _record, text)
    parser.add_argument(
        "config", metavar="CONFIG", help="a YAML file with a space small enough to measure whole"
    )
    _add_study_options(parser)


def _add_study_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fresh", action="store_true", help="start over instead of going on with what is recorded"
    )
    parser.add_argument("--workers", type=whole, metavar="N", help="worker processes")
    parser.add_argument(
        "--shared-gpu",
        action="store_true",
        help="go on although others use the GPU, and mark what is measured in its record",
    )
    parser.add_argument("--results", metavar="DIR", help="folder of best/, trials/ and recorded/")


def _add_best(verbs: Any) -> None:
    parser = _add_verb(
        verbs, "best", _best, "print the best known configuration of a problem, and how it was found"
    )
    for name in ("m", "n", "k"):
        parser.add_argument(name, type=whole, nargs="?", metavar=name.upper())
    names = {
        "dtype": "of lhs: bfloat16 (as by default), float16, ...",
        "rhs-dtype": "as lhs if left out",
        "out-dtype": "follows lhs if left out",
        "layout": "nn (as by default), nt, tn or tt: lhs, then rhs, t where it is stored transposed",
        "accumulation": "numerics class; follows the dtypes if left out",
        "scales": "none as by default",
        "epilogue": "none as by default",
        "broadcast": "lhs or rhs: the operand that all products of the batch share",
    }
    for name, text in names.items():
        flags = ("--dtype", "--lhs-dtype") if name == "dtype" else (f"--{name}",)  # as a run config says it
        parser.add_argument(*flags, metavar="NAME", default=argparse.SUPPRESS, help=text)
    for name, text in {"batch": "products in one: 1 as by default", "groups": "1 as by default"}.items():
        parser.add_argument(f"--{name}", type=whole, metavar="N", default=argparse.SUPPRESS, help=text)
    parser.add_argument(
        "--device",
        metavar="KIND",
        default=argparse.SUPPRESS,
        help='such as "NVIDIA H200"; the GPU here if left out',
    )
    parser.add_argument(
        "--policy", metavar="NAME", default=argparse.SUPPRESS, help="nearest (as by default) or exact"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    from autotune import bestverb

    bestverb.add_arguments(parser)


def _add_nightly(verbs: Any) -> None:
    text = "verify the stored winners, tune again only what needs it, and say what changed; made for cron"
    parser = _add_verb(verbs, "nightly", _nightly, text)
    parser.add_argument("config", metavar="CONFIG", help="a YAML file, such as configs/nightly/h200.yaml")
    parser.add_argument("--results", metavar="DIR", help="folder of best/, trials/ and nightly/")


def _add_check(verbs: Any) -> None:
    from autotune import checkverb

    text = "say whether kernels, or the configurations of a config, are legal, without lowering them"
    checkverb.add_arguments(_add_verb(verbs, "check", checkverb.run, text))


def _add_compare(verbs: Any) -> None:
    text = "replay samplers on recorded spaces, and say how fast each finds what is good"
    parser = _add_verb(verbs, "compare", _compare, text)
    parser.add_argument("config", metavar="CONFIG", help="a YAML file; its problems that are recorded count")
    parser.add_argument(
        "--samplers", default="auto", metavar="A,B", help="such as auto,tpe; random is always beside"
    )
    parser.add_argument("--seeds", type=whole, default=50, metavar="N", help="searches of each sampler (50)")
    parser.add_argument(
        "--candidates", type=whole, default=100, metavar="N", help="measured in each search (100)"
    )
    parser.add_argument("--plot", metavar="FILE.svg", help="in place of DIR/compare/NAME.svg")
    parser.add_argument("--results", metavar="DIR", help="folder of recorded/ and compare/")


def _add_bench(verbs: Any) -> None:
    parser = _add_verb(verbs, "bench", _bench, "race what the lookup answers against XLA on this GPU")
    parser.add_argument(
        "sizes", nargs="*", type=whole, metavar="M N K", help="sizes of a problem, or of several"
    )
    parser.add_argument("--suite", metavar="FILE.csv", help="problems, such as configs/suites/dev.csv")
    parser.add_argument("--kernel-only", action="store_true", help="always a kernel of ours, never XLA")
    parser.add_argument("--rivals", action="store_true", help="also time torch.matmul, where it is installed")
    parser.add_argument(
        "--exhaustive",
        action="store_true",
        help="also race XLA's exhaustive tiling, which compiles for minutes",
    )
    parser.add_argument("--out", metavar="DIR", help="write bench.csv and bench.md there")
    parser.add_argument("--shared-gpu", action="store_true", help="go on although others use the GPU")


def _bench(arguments: argparse.Namespace) -> int:
    from autotune import benchverb, fields, runconfig

    problems = benchverb.asked_problems(arguments.suite, arguments.sizes)
    given = arguments.out
    out = None if given is None else runconfig.results_folder(given, fields.Place(path="--out"))
    with interrupt.heard():
        benchverb.bench(
            problems,
            kernel_only=arguments.kernel_only,
            out=out,
            rivals=arguments.rivals,
            exhaustive=arguments.exhaustive,
            shared_gpu=arguments.shared_gpu,
        )
    return 0


def _run(arguments: argparse.Namespace) -> int:
    config, workers = _config(arguments)
    from autotune import runs

    with interrupt.heard():
        runs.run(
            config,
            workers=workers,
            fresh=arguments.fresh,
            dry_run=arguments.dry_run,
            shared_gpu=arguments.shared_gpu,
        )
    return 0


def _record(arguments: argparse.Namespace) -> int:
    config, workers = _config(arguments)
    from autotune import runs

    with interrupt.heard():
        runs.record(config, workers=workers, fresh=arguments.fresh, shared_gpu=arguments.shared_gpu)
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from autotune import compareverb

    with interrupt.heard():
        compareverb.compare(
            arguments.config,
            samplers=arguments.samplers,
            seeds=arguments.seeds,
            candidates=arguments.candidates,
            plot=arguments.plot,
            results=arguments.results,
        )
    return 0


def _config(arguments: argparse.Namespace) -> tuple[Any, int | None]:
    """Returns the run config with the options of the command line, and the number of workers."""
    from autotune import fields, runconfig, searchsettings

    workers = arguments.workers
    if workers is not None:
        fields.whole(workers, fields.Place(path="--workers"), 1, 1024)
    names = ("evaluator", "results", *searchsettings.OPTIONS)
    options = {name: getattr(arguments, name, None) for name in names}
    return runconfig.override(runconfig.load_run_config(arguments.config), **options), workers


def _nightly(arguments: argparse.Namespace) -> int:
    from autotune.nightly import command

    with interrupt.heard():
        return command.run(arguments.config, arguments.results)


def _best(arguments: argparse.Namespace) -> int:
    from autotune import bestverb

    if bestverb.is_lookup(arguments):
        return bestverb.look_up(arguments)
    with interrupt.heard():
        return bestverb.run(arguments)


def _doctor(arguments: argparse.Namespace) -> int:
    from autotune import doctor

    facts = doctor.facts()
    print(json.dumps(facts, indent=2) if arguments.json else doctor.text(facts))
    return 0


def _show_warning(message: Any, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
    print(f"autotune: warning: {' '.join(str(message).split())}", file=sys.stderr)
