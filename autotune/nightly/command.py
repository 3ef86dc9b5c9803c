"""The verb nightly: lock, look, measure, report; and what a cron or a timer gets as exit code."""

from __future__ import annotations

import contextlib
import datetime
import errno
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError
from autotune.ledger.wholelines import DiskFullError
from autotune.nightly import report
from autotune.nightly.budget import Clocks
from autotune.nightly.config import NightConfig, load_night_config
from autotune.nightly.files import folder_within, night_lock
from autotune.nightly.meter import NightMeter, UnfitError
from autotune.nightly.night import run_night
from autotune.nightly.telling import write_reports
from autotune.nightly.values import Machine
from autotune.writable import require_records_kept

LEAST_FREE_BYTES = 64 * 2**20


def run(
    path: str | Path, results: str | None = None, make_meter: Callable[[NightConfig], Any] | None = None
) -> int:
    """Runs the night of a config and prints its short text.

    Args:
        results: Folder instead of the config's.
        make_meter: Returns a NightMeter; tests pass their own. None: on the GPU.

    Returns:
        0 nothing to say, 10 improved, 20 regression, 30 machine unfit.
    """
    config = load_night_config(path, results)
    if make_meter is None:
        from autotune.nightly import gpumeter  # loads the driver and Optuna

        make_meter = gpumeter.GpuMeter
    with contextlib.suppress(OSError):  # a full disk makes the machine unfit, which is said below
        require_records_kept(config.run, ("nightly", "best"))
    folder = folder_within(config.run.results, "nightly")
    with night_lock(folder):
        try:
            meter = make_meter(config)
        except UnfitError as error:  # what mails and webhooks send must not be the report of another night
            _report_unfit(config, None, str(error), Clocks().now())
            raise
        try:
            return guarded(config, meter)
        finally:
            meter.close()


def guarded(config: NightConfig, meter: NightMeter, clocks: Clocks | None = None) -> int:
    """Runs a night under the caller's lock; a machine that is not fit, a full disk too, is 30."""
    clocks = clocks or Clocks()
    try:
        free = shutil.disk_usage(config.run.results).free
        if free < LEAST_FREE_BYTES:
            raise UnfitError(f"{config.run.results}: only {free / 2**20:.0f} MiB of disk are free")
        summary = run_night(config, meter, clocks)
    except UnfitError as error:
        return _unfit(config, meter.machine, str(error), clocks.now())
    except DiskFullError as error:
        return _unfit(config, meter.machine, str(error), clocks.now())
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        why = f"{error.filename or config.run.results}: {error.strerror}"
        return _unfit(config, meter.machine, why, clocks.now())
    print(report.text(summary), flush=True)
    return summary.exit_code


def _unfit(config: NightConfig, machine: Machine, why: str, now: datetime.datetime) -> int:
    summary = _report_unfit(config, machine, why, now)
    print(report.text(summary), flush=True)
    return summary.exit_code


def _report_unfit(
    config: NightConfig, machine: Machine | None, why: str, now: datetime.datetime
) -> report.Summary:
    summary = report.Summary(
        name=config.name, night=now.isoformat(timespec="seconds"), machine=machine, unfit=why
    )
    try:
        write_reports(config.run.results, summary)
    except (OSError, AutotuneError) as error:  # the disk may be what is wrong
        print(f"autotune: warning: no report was written: {error}", file=sys.stderr)
    return summary
