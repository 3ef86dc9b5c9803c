from __future__ import annotations

import dataclasses
import gzip
import json

import pytest

from autotune.errors import InputError
from autotune.evaluate.recorded import (
    RecordedRow,
    RecordedSpace,
    find_recorded,
    read_recorded,
    write_recorded,
)
from autotune.seam import Failed
from tests.helpers.fake_target import FakeProblem

ROWS = {
    (0, 0): RecordedRow(samples_us=(10.1234, 10.5), digest="aa"),
    (0, 1): RecordedRow(failed=Failed(reason="wrong", detail="relative error 0.5: far off"), digest="bb"),
    (1, 0): RecordedRow(failed=Failed(reason="lower", detail="ValueError: no")),
}


def recorded(**changes) -> RecordedSpace:
    fields = {
        "target": "fake",
        "problem": FakeProblem().to_fields(),
        "device": {"kind": "Fake Hopper", "sm_count": 132},
        "date": "2026-11-30",
        "versions": {"jax": "0.12.0.1"},
        "source_digest": "cafe",
        "protocol": {"timer": "cupti", "l2": "clean", "rounds": 2, "warmup": 2},
        "command": "record it",
        "knobs": {"tile_m": (64, 128), "persistent": (False, True)},
        "rows": ROWS,
        "rival_us": (9.5, 9.75),
    }
    return RecordedSpace(**(fields | changes))


def _rewrite(path, edit):
    """Writes the recorded space, with its lines edited as JSON values."""
    write_recorded(path, recorded())
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    edit(lines)
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))


def test_a_space_comes_back_as_it_was_written_with_nanoseconds_kept(tmp_path):
    path = tmp_path / "deeper" / "space.json.gz"
    write_recorded(path, recorded())
    back = read_recorded(path)
    assert back.rows[0, 0].samples_us == (10.123, 10.5)  # 10.1234 us to three decimals
    assert back.rows[0, 1] == ROWS[0, 1]
    assert back.rows[1, 0] == ROWS[1, 0]
    assert back.rival_us == (9.5, 9.75)
    assert dataclasses.replace(back, rows=ROWS) == recorded()
    assert [each.name for each in path.parent.iterdir()] == ["space.json.gz"]


def test_equal_spaces_give_equal_bytes_and_digests(tmp_path):
    write_recorded(tmp_path / "one.json.gz", recorded())
    write_recorded(tmp_path / "two.json.gz", recorded(rows=dict(reversed(ROWS.items()))))
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()
    assert recorded().digest == read_recorded(tmp_path / "one.json.gz").digest
    assert recorded(date="2026-12-01").digest != recorded().digest


def test_rows_are_found_by_knobs():
    space = recorded()
    assert space.row({"tile_m": 64, "persistent": True}) == ROWS[0, 1]
    assert space.row({"tile_m": 128, "persistent": True}) is None  # not measured
    assert space.row({"tile_m": 192, "persistent": True}) is None  # no such value
    assert space.row({"tile_m": 64}) is None


def _set(index, value):
    return lambda lines: lines.__setitem__(index, value)


def _update(**fields):
    return lambda lines: lines[0].update(fields)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_update(schema=2), "schema 2; this version reads 1"),
        (_update(device="H200"), "header: device is 'H200'; it must be of the type dict"),
        (_update(protocol={"l2": "hot"}), "header: protocol.l2 is 'hot'; allowed: warm, clean"),
        (
            _update(knobs={"tile_m": [], "persistent": [True]}),
            r"header: knobs.tile_m is \[\]; it must be a list",
        ),
        (lambda lines: lines.pop(), "2 rows, but its header counts 3"),
        (_set(2, [[0, 7], [1.0], "aa"]), "line 3: code 7 of persistent; the header has 2 values for it"),
        (_set(2, [[0], [1.0], "aa"]), "line 3: 1 codes for the header's 2 knobs"),
        (_set(2, [[0, 1], [1.0], "aa"]), r"line 4: the configuration \[0, 1\] stands there twice"),
        (_set(2, [[0, 0], [], "aa"]), r"line 3: \[\] is neither a list of samples in us nor"),
        (_set(2, [[0, 0], "tired: it was late", "aa"]), "line 3: 'tired: it was late' is neither"),
        (_set(2, {"codes": [0, 0]}), "line 3: a row is"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path, edit, message):
    path = tmp_path / "space.json.gz"
    _rewrite(path, edit)
    with pytest.raises(InputError, match=message) as raised:
        read_recorded(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"not gzip", gzip.compress(b"{"), gzip.compress(b"{}\n" * 99)[:-12]],
    ids=["empty", "no gzip", "no JSON", "cut off"],  # gzip writes the time of day: no ids for two processes
)
def test_a_file_that_is_no_recording_says_so(tmp_path, content):
    path = tmp_path / "space.json.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"space.json.gz: "):
        read_recorded(path)
    with pytest.raises(InputError, match=r"space.json.gz: "):
        find_recorded(tmp_path, FakeProblem(), "fake")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="there is no such file"):
        read_recorded(tmp_path / "absent.json.gz")


def test_the_newest_space_that_fits_is_found(tmp_path):
    write_recorded(tmp_path / "a.json.gz", recorded(date="2026-12-02"))
    write_recorded(tmp_path / "b.json.gz", recorded(date="2026-12-01"))
    write_recorded(tmp_path / "c.json.gz", recorded(date="2026-12-03", target="other"))
    write_recorded(tmp_path / "d.json.gz", recorded(date="2026-12-03", problem=FakeProblem(m=16).to_fields()))
    write_recorded(tmp_path / "e.json.gz", recorded(date="2026-12-03", device={"kind": "Other"}))
    assert find_recorded(tmp_path, FakeProblem(), "fake", "Fake Hopper").date == "2026-12-02"
    assert find_recorded(tmp_path, FakeProblem(), "fake").date == "2026-12-03"
    assert find_recorded(tmp_path, FakeProblem(k=4), "fake") is None
    assert find_recorded(tmp_path / "absent", FakeProblem(), "fake") is None
