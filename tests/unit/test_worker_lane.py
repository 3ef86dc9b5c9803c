"""Which calls of a lane wait for their result: those whose results would pile up."""

from types import SimpleNamespace

import jax
import pytest

from autotune.evaluate.worker import IN_FLIGHT_RESULT_BYTES, Worker


@pytest.mark.parametrize(
    ("result_bytes", "shares_room", "waits"),
    [
        (IN_FLIGHT_RESULT_BYTES, False, False),
        (IN_FLIGHT_RESULT_BYTES + 1, False, True),
        (IN_FLIGHT_RESULT_BYTES + 1, True, False),
    ],
)
def test_large_results_are_waited_for_unless_they_lie_in_one_place(
    monkeypatch, result_bytes, shares_room, waits
):
    waited = []
    monkeypatch.setattr(jax, "block_until_ready", lambda result: waited.append(result) or result)
    bench = SimpleNamespace(operands=(3, 4), result_bytes=result_bytes)
    worker = Worker.__new__(Worker)
    lane = worker.lane("kernel", lambda lhs, rhs: lhs * rhs, bench, "digest", shares_room=shares_room)
    assert lane.call() == 12
    assert waited == ([12] if waits else [])
