"""Whether a run may measure on a card: not while others use it, unless the user says so."""

from __future__ import annotations

import time
from collections.abc import Callable

from autotune.errors import InputError
from autotune.health import GpuHealth, GpuHealthError, damage, gpu_health, occupation
from autotune.machine import GpuInfo

# Workers that were killed a moment ago give their memory back only after their contexts are torn down.
SETTLE_ATTEMPTS = 5
SETTLE_S = 1.0


def admit(
    gpu: GpuInfo,
    *,
    shared: bool,
    say: Callable[[str], None],
    health_of: Callable[[int], GpuHealth] = gpu_health,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Returns where the card may be measured on; `say` hears of what is wrong with it, or of who shares it.

    Args:
        shared: Go on although others use the card; whatever is measured is then marked in its record.

    Raises:
        InputError: Others use the card; names them.
    """
    try:
        health = health_of(gpu.index)
        for _ in range(SETTLE_ATTEMPTS):
            # Only what nobody is named for may be a left-over; a process with a name does not go away by waiting.
            if health.others or shared or occupation(health) is None:
                break
            sleep(SETTLE_S)
            health = health_of(gpu.index)
    except GpuHealthError as error:
        say(f"GPU {gpu.index}: whether others use it is unknown: {error}")
        return
    wrong = damage(health)
    if wrong:
        say(f"GPU {gpu.index} may not be sound: {wrong}")
    found = occupation(health)
    if found is None:
        return
    if not shared:
        raise InputError(
            f"GPU {gpu.index} ({gpu.uuid}): {found}; times would not be its own. Wait, choose another with `gpus`, "
            f"or go on with --shared-gpu, which marks the record"
        )
    say(f"GPU {gpu.index}: {found}; going on as --shared-gpu says, and marking the record")
