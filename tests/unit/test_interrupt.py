"""What Ctrl-C and SIGTERM mean while something is measured."""

from __future__ import annotations

import os
import signal

import pytest

from autotune.interrupt import DeferredInterrupt, heard


@pytest.fixture(autouse=True)
def handlers():
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def test_a_termination_is_what_an_interrupt_is():
    with heard():
        for number in (signal.SIGINT, signal.SIGTERM):
            with pytest.raises(KeyboardInterrupt):
                send(number)


def test_a_termination_waits_as_well_until_what_was_measured_is_recorded():
    with heard(), DeferredInterrupt() as interrupt:
        send(signal.SIGTERM)
        assert interrupt.requested()
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGTERM)


def test_an_ignored_interrupt_stays_ignored_and_a_termination_still_ends():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as nohup does
    with heard():
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGTERM)


def test_the_handlers_from_before_come_back():
    def own(number, frame):
        pass

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, own)
    with heard():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGTERM) is own
