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


def test_a_card_without_room_is_memory_in_every_step():
    import jax

    full = jax.errors.JaxRuntimeError(
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes"
    )
    block = jax.errors.JaxRuntimeError(
        "RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested 262144"
    )
    for step in ("lower", "compile", "launch", "error"):
        with pytest.raises(CandidateError) as caught, charged_to(step):
            raise full
        assert (caught.value.reason, caught.value.loses_context) == ("memory", False)
    with pytest.raises(CandidateError) as caught, charged_to("compile"):
        raise block
    assert caught.value.reason == "compile"
