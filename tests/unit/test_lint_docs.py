"""docs/check.md says what the code says."""

import json
import re
from pathlib import Path

import pytest

from autotune.lint import known_jax, rules
from autotune.lint.model import SMEM_LIMIT_BYTES, Report

PAGE = (Path(__file__).parents[2] / "docs" / "check.md").read_text()
ROWS = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]


def test_each_rule_has_a_row_and_each_row_a_rule():
    assert {row[0].strip("|` ") for row in ROWS} == set(rules.RULES)


@pytest.mark.parametrize(
    "message",
    [
        rules.MAIN,
        rules.A,
        rules.A_SEM,
        rules.b("wg", ()),
        rules.C,
        rules.D,
        rules.E,
        rules.DISCHARGE,
        rules.unsigned("uint32"),
        rules.smem(327_680, SMEM_LIMIT_BYTES),
        rules.BARRIERS_PER_GROUP,
        rules.cta_barriers(16),
    ],
)
def test_messages_are_quoted_word_for_word(message):
    assert f"`{message}`" in PAGE


def test_stages_of_the_table_are_those_of_the_rules():
    for row in ROWS:
        stage = re.match(r"\w+", row[2]).group()
        rule = rules.RULES[row[0].strip("|` ")]
        assert stage == "warning" or stage in rule.stages


def test_json_of_the_page_has_the_keys_of_a_report():
    block = PAGE.split("```json\n")[1].split("```")[0].replace("[...]", "[]")
    shown = json.loads(block)
    assert list(shown) == list(Report(subject="run", jax_version="0").to_json())


def test_known_versions_are_named():
    assert all(version in PAGE for version in known_jax.KNOWN)
