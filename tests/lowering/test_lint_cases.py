"""Every file of tests/check_cases gives its rule at the user's line, in the words of the real lowering."""

import csv
import importlib.util
from pathlib import Path

import jax
import pytest

from autotune.lint import assert_legal, check
from autotune.lint.real_lowering import lower

FOLDER = Path(__file__).parents[1] / "check_cases"
EXPECTED = {row["file"]: row["rule"] for row in csv.DictReader((FOLDER / "expected.csv").open())}
# The line of the run_scoped, or of the spec where there is no run_scoped of the user's.
LINES = {
    "acc_and_smem_in_one_collective_scope.py": 17,
    "acc_in_scratch_types.py": 15,
    "smem_scope_without_collective_axes.py": 13,
    "scope_collective_over_the_cluster.py": 13,
    "blockspec_collective_in_pallas_call.py": 18,
    "preinitialised_acc_in_run_scoped.py": 15,
    "store_into_part_of_the_acc.py": 11,
    "smem_over_the_limit.py": 14,
    "epilogue_scope_in_the_compute_branch.py": 14,
}
# The buffers that break the rule, with the bytes of their elements.
BUFFERS = {
    "acc_and_smem_in_one_collective_scope.py": {"acc": 65_536},
    "acc_in_scratch_types.py": {"acc": 65_536},
    "smem_scope_without_collective_axes.py": {"out_smem": 65_536},
    "scope_collective_over_the_cluster.py": {"out_smem": 65_536},
    "blockspec_collective_in_pallas_call.py": {"args[0]": 8_192},
    "preinitialised_acc_in_run_scoped.py": {"acc": 65_536},
    "store_into_part_of_the_acc.py": {"acc": 65_536},
    "smem_over_the_limit.py": {"ring": 196_608, "out_smem": 131_072},
    "epilogue_scope_in_the_compute_branch.py": {"out_smem": 65_536},
}


def _load(name):
    spec = importlib.util.spec_from_file_location(Path(name).stem, FOLDER / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _truth(module):
    """Returns what tracing and lowering for real raise, or None."""
    try:
        traced = jax.jit(module.run).trace(*module.EXAMPLE_ARGS)
    except Exception as error:  # noqa: BLE001 - whatever tracing raises is the truth
        return error
    return lower(traced).error


def test_each_case_has_an_expected_line():
    assert sorted(EXPECTED) == sorted(path.name for path in FOLDER.glob("*.py"))
    assert sorted(LINES) == sorted(name for name, rule in EXPECTED.items() if rule != "ok")


@pytest.mark.parametrize("name", sorted(LINES))
def test_case_gives_its_one_rule_at_the_users_line(name):
    module = _load(name)
    report = check(module.run, *module.EXAMPLE_ARGS)
    assert [(fault.rule, fault.line) for fault in report.faults] == [(EXPECTED[name], LINES[name])]
    fault = report.faults[0]
    assert fault.file == str(FOLDER / name)
    assert {buffer.name: buffer.size_bytes for buffer in fault.buffers} == BUFFERS[name]
    assert fault.mend
    assert report.tier == "jaxpr"


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_walk_and_lowering_say_the_same_words(name):
    module = _load(name)
    predicted, real = check(module.run, *module.EXAMPLE_ARGS).predicted, _truth(module)
    if real is None:
        assert predicted is None
    else:
        assert (predicted.exception, predicted.message) == (type(real).__name__, str(real))


def test_legal_case_passes_the_helper_and_has_a_table_of_scopes():
    module = _load("legal_split.py")
    assert_legal(module.run, *module.EXAMPLE_ARGS)
    report = check(module.run, *module.EXAMPLE_ARGS)
    assert report.ok and not report.warnings
    # 128 x 64 and 64 x 128 bfloat16 are 16,384 bytes each; the barrier adds 8.
    assert [(scope.depth, scope.is_collective, scope.total_smem_bytes) for scope in report.scopes] == [
        (0, True, 0),
        (1, True, 32_768),
        (2, False, 32_768),
    ]
    assert report.kernels[0].smem_bytes == 32_776
    assert [buffer.line for scope in report.scopes for buffer in scope.buffers] == [30, 31, 32, 22]


def test_helper_fails_with_the_whole_report():
    module = _load("acc_and_smem_in_one_collective_scope.py")
    with pytest.raises(AssertionError) as caught:
        assert_legal(module.run, *module.EXAMPLE_ARGS)
    text = str(caught.value)
    assert "acc_and_smem_in_one_collective_scope.py:17" in text
    assert "ValueError: WGMMA accumulators can only be allocated non-collectively." in text
    assert "plgpu.ACC((128, 128), jnp.float32)," in text  # the user's own expression, in the mend
    assert 'collective_axes="wg"' in text


def test_mended_main_case_is_legal():
    """legal_split.py is the first case with its mend written out: same buffers, accumulator in its own scope."""
    bad, good = _load("acc_and_smem_in_one_collective_scope.py"), _load("legal_split.py")
    names = {buffer.name for scope in check(bad.run, *bad.EXAMPLE_ARGS).scopes for buffer in scope.buffers}
    report = check(good.run, *good.EXAMPLE_ARGS)
    assert {buffer.name for scope in report.scopes for buffer in scope.buffers} == names
    assert report.ok


def test_divergent_scope_is_a_fault_that_lowering_does_not_raise():
    module = _load("epilogue_scope_in_the_compute_branch.py")
    report = check(module.run, *module.EXAMPLE_ARGS)
    assert report.faults[0].stage == "run" and report.faults[0].exception == ""
    assert report.predicted is None
    assert "wg=0 enters it 1x, wg=1 enters it 0x" in report.faults[0].message
    assert [warning.rule for warning in report.warnings] == ["threads"]
