"""The verb check: a function's kernels, the space of a run config, or the audit of both checks against lowering."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from autotune.arguments import whole
from autotune.errors import InputError, NothingLegalError
from autotune.lint import command
from autotune.textable import terminal_width

AUDIT_SEED = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of all forms of the verb."""
    command.add_arguments(parser)
    parser.epilog = "CONFIG.yaml in place of FILE.py:FUNC checks every configuration of a run config's space."
    parser.add_argument(
        "--audit",
        type=whole,
        metavar="N",
        help="hold N random configurations and N random kernels against the real lowering, instead",
    )
    parser.add_argument("--seed", type=whole, default=AUDIT_SEED, metavar="N", help="of the audit")


def run(arguments: argparse.Namespace) -> int:
    """Runs the form that the arguments ask for; returns 0, or 1 where a fault or a disagreement was found."""
    if arguments.audit is not None:
        return _audit(arguments)
    if arguments.subject is None:
        raise InputError(
            "nothing to check; expected FILE.py:FUNC, for instance my_kernel.py:run, a run config, or --audit N"
        )
    if Path(arguments.subject).suffix in (".yaml", ".yml"):
        return _config(arguments)
    return command.run(arguments)


def _config(arguments: argparse.Namespace) -> int:
    from autotune import configcheck, runconfig
    from autotune.choice import choose
    from autotune.target import load_target

    if arguments.arg:
        raise InputError("--arg goes with FILE.py:FUNC, not with a run config")
    config = runconfig.load_run_config(arguments.subject)
    target = load_target(config.target)
    device = choose(config, target).device
    reports = configcheck.check_config(config, target, device)
    if arguments.json:
        ok = all(report.legal for report in reports)
        print(
            json.dumps(
                {"ok": ok, "device": device.kind, "problems": [one.to_json() for one in reports]}, indent=2
            )
        )
    else:
        print(f"on {device.kind}, nothing is lowered")
        width = terminal_width()
        print("\n\n".join(configcheck.render(report, width) for report in reports))
    for report in reports:
        if not report.legal:
            raise NothingLegalError(
                f"{report.problem.describe()}: nothing in its space is legal on {device.kind}"
            )
    return 0


def _audit(arguments: argparse.Namespace) -> int:
    from autotune import machine
    from autotune.lint import audit, config_audit
    from autotune.target import TARGETS, load_target

    if arguments.subject is not None or arguments.arg or arguments.json:
        raise InputError("--audit draws its own subjects; only --seed goes with it")
    if not 1 <= arguments.audit <= 100_000:
        raise InputError(f"--audit={arguments.audit}: allowed: a whole number from 1 to 100000")
    agree = True
    for name in TARGETS:
        target: Any = load_target(name)
        configs = config_audit.audit_configs(
            target, target.device_named(machine.REFERENCE_KIND), arguments.audit, arguments.seed
        )
        print(f"config tier, {name}: {config_audit.render(configs)}", flush=True)
        agree &= configs.agrees
    trees = audit.audit_scope_trees(arguments.audit, arguments.seed)
    print(f"jaxpr tier: {audit.render(trees)}", flush=True)
    agree &= trees.agrees
    print("both tiers agree with the real lowering" if agree else "a tier DISAGREES with the real lowering")
    return 0 if agree else 1
