"""Messages, and the rules they belong to."""

import pytest

from autotune.lint import rules


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        (rules.MAIN, "main"),
        (rules.A, "a"),
        (rules.A_SEM, "a_sem"),  # starts like a
        (rules.b("wg", ()), "b"),  # starts like a, too
        (rules.C, "c"),
        (rules.D, "d"),
        (rules.E, "e"),
        (rules.DISCHARGE, "discharge"),
        (rules.unsigned("uint32"), "unsigned"),
        (rules.smem(232_449, 232_448), "smem"),
        (rules.BARRIERS_PER_GROUP, "barriers"),
        (rules.cta_barriers(16), "barriers"),
        ("", "unsupported"),
        ("Something else.", "unsupported"),
    ],
)
def test_message_tells_its_rule(message, rule):
    assert rules.rule_of_message(message) == rule
    assert rule in rules.RULES


def test_messages_carry_the_values():
    assert rules.smem(5, 4).endswith("smem_bytes=5 > max_smem_bytes=4")
    assert rules.b("wg", ("x",)).endswith("(currently collective_axes=('x',)).")
    # 16 named barriers: one for the CTA, one a warpgroup.
    assert "only -1 available (16 warpgroup barriers" in rules.cta_barriers(16)
