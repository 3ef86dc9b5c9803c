"""What configs/nightly/ installs, checked by the tools that will read it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from autotune.errors import InputError
from autotune.nightly.config import load_night_config, variants_of
from tests.helpers.best_entries import entry, problem

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "nightly"
PREFIX = "/opt/hopper-autotune"


def installed(tmp_path):
    """Returns the folder's units as they stand on a host, where the command that they start exists."""
    command = tmp_path / ".venv" / "bin" / "autotune"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    units = []
    for path in sorted(FOLDER.glob("hopper-autotune-nightly.*")):
        copy = tmp_path / path.name
        copy.write_text(path.read_text().replace(PREFIX, str(tmp_path)))
        units.append(copy)
    return units


@pytest.mark.host_tools
def test_systemd_accepts_the_service_and_the_timer(tmp_path):
    units = installed(tmp_path)
    assert [unit.suffix for unit in units] == [".service", ".timer"]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, units)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    own = [line for line in done.stderr.splitlines() if "hopper-autotune" in line]
    assert (done.returncode, own) == (0, []), done.stderr


@pytest.mark.host_tools
def test_systemd_refuses_a_unit_with_a_fault(tmp_path):
    service, _ = installed(tmp_path)
    service.write_text(service.read_text().replace("Type=oneshot", "Type=onshot"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(service)], capture_output=True, text=True, timeout=60
    )
    assert "onshot" in done.stderr


def crontab_says(path):
    """Returns whether crontab's own check accepts a table; newer versions call the option -T, older ones -n."""
    for option in ("-T", "-n"):
        done = subprocess.run(["crontab", option, str(path)], capture_output=True, text=True, timeout=60)
        if "usage" not in done.stderr:
            return done.returncode == 0, done.stderr
    raise AssertionError(f"crontab has no check: {done.stderr}")


@pytest.mark.host_tools
def test_crontab_accepts_the_line(tmp_path):
    assert crontab_says(FOLDER / "crontab")[0], crontab_says(FOLDER / "crontab")[1]
    bad = tmp_path / "crontab"
    bad.write_text((FOLDER / "crontab").read_text().replace("30 2 *", "30 25 *"))
    assert not crontab_says(bad)[0]


def test_the_crontab_has_one_line_without_a_percent_sign():
    """cron would end the command at a percent sign and feed it the rest."""
    lines = [line for line in (FOLDER / "crontab").read_text().splitlines() if re.match(r"[\d*]", line)]
    assert len(lines) == 1
    assert "%" not in lines[0]


@pytest.mark.parametrize(("code", "sends"), [(0, False), (10, False), (20, True), (30, True), (2, True)])
def test_the_cron_line_sends_a_mail_only_for_what_a_person_must_see(tmp_path, code, sends):
    (line,) = [one for one in (FOLDER / "crontab").read_text().splitlines() if one.startswith("30 ")]
    command = line.split(maxsplit=5)[5].replace(PREFIX, str(tmp_path))
    binary = tmp_path / ".venv" / "bin" / "autotune"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho what happened >&2\nexit {code}\n")
    mail = tmp_path / "mail"
    mail.write_text(f'#!/bin/sh\necho "$2" >{tmp_path}/sent\ncat >>{tmp_path}/sent\n')
    for file in (binary, mail):
        file.chmod(0o755)
    report = tmp_path / "results" / "nightly" / "reports" / "latest.txt"
    report.parent.mkdir(parents=True)
    report.write_text("what happened the night before\n")
    search = f"{tmp_path}:/usr/bin:/bin"
    subprocess.run(["sh", "-c", command], env={"PATH": search}, check=False, timeout=60)
    sent = tmp_path / "sent"
    assert sent.exists() is sends
    if sends:
        assert sent.read_text() == f"autotune nightly: exit {code}\nwhat happened\n"


def test_the_units_start_a_config_that_exists():
    text = (FOLDER / "hopper-autotune-nightly.service").read_text()
    (named,) = re.findall(r"autotune nightly (\S+)", text)
    assert (FOLDER.parents[1] / named).is_file()
    assert "SuccessExitStatus=10" in text


def test_the_example_config_is_a_good_one():
    config = load_night_config(FOLDER / "h200.yaml")
    assert (config.name, config.minutes, config.variants) == ("h200_suite_16bit-nightly", 60.0, "vetted")
    assert (config.run.evaluator, config.run.search.candidates, config.run.search.seconds) == (
        "gpu",
        80,
        30.0,
    )


def test_a_budget_that_the_runs_problems_share_does_not_bind_a_night(tmp_path):
    (tmp_path / "night.yaml").write_text("run: run.yaml\ncandidates: 40\n")
    (tmp_path / "run.yaml").write_text(
        "problems: [{m: 64, n: 64, k: 64}]\n"
        "search: {total_candidates: 8, total_seconds: 1, stop_gain: 0.01, share_binaries: false}\n"
    )
    search = load_night_config(tmp_path / "night.yaml").run.search
    assert (search.is_shared, search.candidates) == (False, 40)
    assert (search.stop_gain, search.share_binaries) == (0.01, False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("minutes: 5", "night.yaml: run: is missing"),
        ("run: none.yaml", "none.yaml: no such file"),
        ("run: run.yaml\nminutes: 0", "night.yaml: minutes=0: allowed: a number above 0"),
        ("run: run.yaml\nvariants: some", "night.yaml: variants='some': allowed: vetted, all"),
        ("run: run.yaml\nvariants: {tile_q: [1]}", "variants.tile_q: unknown key"),
        ("run: run.yaml\nminuts: 5", "night.yaml: minuts: unknown key (did you mean 'minutes'?)"),
        ("run: replay.yaml", "evaluator=replay: a night measures; allowed: auto, gpu"),
        ("run: run.yaml\nvariants: {}", "night.yaml: variants={}: allowed: vetted, all, or a mapping"),
        (
            "run: run.yaml\nvariants: {stages: [2, 2]}",
            "night.yaml: variants.stages[1]=2: allowed: each value once",
        ),
        ("run: run.yaml\nvariants: {stages: [0]}", "night.yaml: variants.stages=0: allowed"),
        (
            "run: run.yaml\ncandidates: 0",
            "night.yaml: candidates=0: allowed: a whole number from 1 to 1000000",
        ),
        ("run: run.yaml\nseconds: 1:30", "night.yaml: line 2, column 10: '1:30' could be meant as base 60"),
        ("run: space.yaml", "space.yaml: space.stages=0: allowed"),
        ("run: bad.yaml", "night.yaml: run: "),
        ("run: !!python/object/apply:os.getcwd []", "is not valid YAML"),
    ],
)
def test_a_wrong_config_is_refused_with_its_place(tmp_path, text, said):
    (tmp_path / "run.yaml").write_text("problems: [{m: 64, n: 64, k: 64}]\n")
    (tmp_path / "replay.yaml").write_text("evaluator: replay\nproblems: [{m: 64, n: 64, k: 64}]\n")
    (tmp_path / "space.yaml").write_text("problems: [{m: 64, n: 64, k: 64}]\nspace: {stages: [0]}\n")
    (tmp_path / "bad.yaml").write_text("problems: []\n")
    (tmp_path / "night.yaml").write_text(text + "\n")
    with pytest.raises(InputError) as caught:
        load_night_config(tmp_path / "night.yaml")
    assert said in str(caught.value)


def test_vetted_variants_are_the_values_that_have_won(tmp_path):
    shutil.copy(FOLDER / "h200.yaml", tmp_path / "night.yaml")
    (tmp_path / "night.yaml").write_text("run: run.yaml\n")
    (tmp_path / "run.yaml").write_text("problems: [{m: 64, n: 64, k: 64}]\nspace: {stages: [2]}\n")
    winners = [entry(problem(m=64)), entry(problem(m=128), knobs={"tile_m": 64, "compute_wgs": 1})]
    offered = {"tile_m": (64, 128, 192), "cluster_m": (1, 2)}
    space = variants_of(load_night_config(tmp_path / "night.yaml"), winners, offered)
    assert space == {"stages": (2,), "tile_m": (64, 128), "cluster_m": (1,)}
