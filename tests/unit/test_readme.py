"""What the README promises is what runs."""

from __future__ import annotations

import re
from pathlib import Path

from autotune.runconfig import load_run_config

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_ci_runs_the_test_command_of_the_readme():
    (command,) = [block.strip() for block in blocks("sh") if "pytest" in block]
    assert "\n" not in command
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    start = lines.index(command)
    assert lines[start - 1 : start + 3] == ["readme_tests() {", command, "}", "readme_tests || exit 1"]


def test_the_main_command_is_one_line_that_installs_and_runs_a_config_that_exists():
    (command,) = [block.strip() for block in blocks("sh") if "autotune run" in block]
    assert "\n" not in command
    assert (ROOT / command.split()[-1]).is_file()


def test_the_config_of_the_readme_is_a_good_one(tmp_path):
    (text,) = blocks("yaml")
    (tmp_path / "my_shapes.csv").symlink_to(ROOT / "configs" / "suites" / "dev.csv")
    (tmp_path / "run.yaml").write_text(text)
    config = load_run_config(tmp_path / "run.yaml")
    assert (config.name, len(config.problems) > 60) == ("my_model", True)


def test_every_verb_is_in_the_readme():
    from autotune.cli import _parser

    help_text = _parser().format_help()
    verbs = re.findall(r"^    ([a-z]+) ", help_text, flags=re.MULTILINE)
    assert verbs
    assert [verb for verb in verbs if f"`autotune {verb}" not in README] == []
