"""Which tests run here: those that need a Hopper GPU or minutes are left out where they cannot run, and said so."""

from __future__ import annotations

import shutil

import pytest

from autotune import machine

LEFT_OUT = pytest.StashKey[dict[str, int]]()
WHY = {
    "gpu": "need a Hopper GPU, and there is none here",
    "long": "take minutes; run them with --long",
    "host_tools": "need systemd-analyze and crontab (Debian: systemd, cron), which are not both here",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the tests that take minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = {"long"} if config.getoption("--long") else set()
    if any("gpu" in item.keywords for item in items) and machine.hopper_gpus():
        wanted.add("gpu")
    if all(map(shutil.which, ("systemd-analyze", "crontab"))):
        wanted.add("host_tools")
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    counts = dict.fromkeys(WHY, 0)
    for item in items:
        missing = [mark for mark in WHY if item.get_closest_marker(mark) and mark not in wanted]
        (left if missing else kept).append(item)
        for mark in missing[:1]:
            counts[mark] += 1
    items[:] = kept
    config.stash[LEFT_OUT] = counts
    # Workers of pytest-xdist collect the same tests, but only their controller has a summary; they send it theirs.
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = counts
    config.hook.pytest_deselected(items=left)


class FromWorkers:
    """Keeps what the workers of pytest-xdist left out; each of them says the same."""

    def __init__(self, config: pytest.Config):
        self._config = config

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error) -> None:
        counts = getattr(node, "workeroutput", {}).get("left_out")
        if counts:
            self._config.stash[LEFT_OUT] = counts


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(FromWorkers(config))


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    for mark, count in config.stash.get(LEFT_OUT, {}).items():
        if count:
            terminalreporter.write_line(
                f"NOT RUN: {count} tests marked {mark} {WHY[mark]}", yellow=True, bold=True
            )
