from __future__ import annotations

import pytest

from autotune.evaluate.fault import CandidateError, charged_to, one_line


def test_a_long_error_keeps_its_kind_and_its_cause():
    line = one_line("INTERNAL: broken\n" + "x = y\n" * 1000 + "because of  this")
    assert line.startswith("INTERNAL: broken x = y")
    assert line.endswith("x = y because of this")
    assert len(line) <= 300
    assert one_line("short\n text") == "short text"


@pytest.mark.parametrize(
    ("step", "raised", "reason"),
    [
        ("lower", TypeError("no"), "lower"),
        ("compile", RuntimeError("no"), "compile"),
        ("launch", MemoryError("no"), "memory"),
        ("launch", CandidateError("wrong", "no"), "wrong"),
    ],
)
def test_an_exception_is_charged_to_its_step(step, raised, reason):
    with pytest.raises(CandidateError) as caught, charged_to(step):
        raise raised
    assert caught.value.reason == reason
    assert not caught.value.loses_context
