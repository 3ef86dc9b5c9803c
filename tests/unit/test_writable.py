"""Folders that cannot hold what a command finds, found out before it works."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path

import pytest

from autotune.errors import InputError
from autotune.fields import Place
from autotune.runconfig import load_run_config
from autotune.writable import require_records_kept, require_writable

PLACE = Place(file="run.yaml", path="results")


def refusal(folder: Path, *below: str, files: tuple[str, ...] = ()) -> str:
    with pytest.raises(InputError) as caught:
        require_writable(folder, PLACE, below, files)
    return str(caught.value)


def test_a_folder_that_can_be_made_is_made_and_left_empty(tmp_path):
    require_writable(tmp_path / "new" / "deep", PLACE, ("trials",))
    assert list((tmp_path / "new" / "deep").iterdir()) == []


def test_a_folder_that_was_made_in_vain_is_taken_away(tmp_path):
    long = tmp_path / "new" / "deep" / ("x" * 300)
    assert refusal(long).endswith("cannot: File name too long")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_stays_as_it_is(tmp_path):
    (tmp_path / "trials").mkdir()
    (tmp_path / "trials" / "old.journal").write_text("x")
    require_writable(tmp_path, PLACE, ("trials", "best"))
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")) == [
        "trials",
        "trials/old.journal",
    ]


def test_what_stands_in_the_way_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("/nowhere/at/all")
    allowed = "allowed: a folder that can be written, but"
    assert refusal(tmp_path / "file" / "x").endswith(f"{allowed} {tmp_path}/file is a file")
    assert refusal(tmp_path / "link").endswith(
        f"{allowed} {tmp_path}/link is a link to /nowhere/at/all, which is not there"
    )
    assert refusal(Path("/proc/x")) == (
        f"run.yaml: results='/proc/x': {allowed} /proc/x cannot: No such file or directory"
    )
    long = refusal(tmp_path / ("x" * 300))
    assert long.endswith("cannot: File name too long") and len(long) < 300
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_a_folder_below_is_tried_as_well(tmp_path):
    (tmp_path / "best").write_text("")
    assert refusal(tmp_path, "trials", "best").endswith(f"{tmp_path}/best is a file")


def test_a_file_that_will_be_written_anew_is_tried_and_kept(tmp_path):
    (tmp_path / "bench.csv").write_text("kept")
    require_writable(tmp_path, PLACE, files=("bench.csv", "bench.md"))
    assert (tmp_path / "bench.csv").read_text() == "kept"
    (tmp_path / "bench.md").mkdir()
    assert refusal(tmp_path, files=("bench.csv", "bench.md")).endswith(f"{tmp_path}/bench.md is a folder")


def test_a_read_only_folder_is_refused(tmp_path, monkeypatch):
    # A superuser may write anywhere, so the system's answer is given here.
    def refuse(self, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "touch", refuse)
    assert refusal(tmp_path).endswith(f"{tmp_path} cannot: Permission denied")


def test_a_full_disk_is_no_bad_input(tmp_path, monkeypatch):
    def refuse(self, *_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(OSError, match="No space left"):
        require_writable(tmp_path / "new", PLACE)
    assert list(tmp_path.iterdir()) == []


def test_a_storage_is_opened_and_named_with_its_config(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("problems: [{m: 64, n: 64, k: 64}]\nstorage: postgresql+none://me:pass@word@host/db\n")
    config = load_run_config(path)
    with pytest.raises(InputError) as caught:
        require_records_kept(config, ("best",))
    said = str(caught.value)
    assert said.startswith(f"{path}: storage='postgresql+none://me:***@host/db': cannot be opened: ")
    assert "pass" not in said and "word" not in said
    require_records_kept(dataclasses.replace(config, storage=f"sqlite:///{tmp_path}/trials.db"), ())
