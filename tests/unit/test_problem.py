"""Problems: from YAML and CSV fields, and what follows from them."""

import pytest

from hopper_matmul.problem import FieldError, Problem


def test_numbers_may_be_strings_as_in_csv():
    assert Problem.from_fields({"m": "64", "n": "128", "k": "256"}) == Problem(m=64, n=128, k=256)


def test_missing_dtypes_and_accumulation_follow_the_lhs():
    problem = Problem.from_fields({"m": 1, "n": 1, "k": 1, "lhs_dtype": "float8_e4m3fn"})
    assert (problem.rhs_dtype, problem.out_dtype, problem.accumulation) == (
        "float8_e4m3fn",
        "bfloat16",
        "fast",
    )


def test_fields_round_trip():
    problem = Problem(batch=2, m=3, n=4, k=5, layout="tn", epilogue="bias+gelu", groups=7)
    assert Problem.from_fields(problem.to_fields()) == problem


@pytest.mark.parametrize(
    ("fields", "key", "says"),
    [
        ({"m": 0}, "m", "1 to 2147483647"),
        ({"m": True}, "m", "1 to 2147483647"),
        ({"m": 4.5}, "m", "1 to 2147483647"),
        ({"m": "-4"}, "m", "1 to 2147483647"),
        ({"lhs_dtype": "bflot16"}, "lhs_dtype", "did you mean 'bfloat16'"),
        ({"layout": "xx"}, "layout", "nn, nt, tn, tt"),
        ({"epilogue": "bias+gulu"}, "epilogue", "did you mean 'gelu'"),
        ({"mm": 4}, "field", "did you mean 'm'"),
        ({"scales": None}, "scales", "per_tensor"),
        ({"batch": 2, "broadcast": "rsh"}, "broadcast", "none, lhs, rhs (did you mean 'rhs'?)"),
        ({"broadcast": "lhs"}, "broadcast", "none where batch is 1"),
    ],
)
def test_a_wrong_field_is_named_with_what_is_allowed(fields, key, says):
    with pytest.raises(FieldError) as caught:
        Problem.from_fields({"m": 4, "n": 4, "k": 4} | fields)
    assert caught.value.key == key
    assert says in caught.value.allowed


def test_missing_size_is_named():
    with pytest.raises(FieldError, match="k=None"):
        Problem.from_fields({"m": 4, "n": 4})


def test_flops_and_bytes_of_a_known_product():
    problem = Problem(batch=2, m=16, n=32, k=64, out_dtype="float32")
    assert problem.flops == 2 * 2 * 16 * 32 * 64
    assert problem.min_bytes == 2 * (16 * 64 * 2 + 64 * 32 * 2 + 16 * 32 * 4)


SHARED_LHS = {"batch": 8, "m": 16, "n": 32, "k": 64, "broadcast": "lhs"}


def test_a_batch_of_row_major_lhs_with_one_rhs_is_one_product_of_all_rows():
    folded = Problem.from_fields({"batch": 8, "m": 16, "n": 32, "k": 64, "broadcast": "rhs"})
    assert folded == Problem(m=128, n=32, k=64)


@pytest.mark.parametrize(
    "changes",
    [
        {"broadcast": "rhs", "layout": "tn"},  # rows of one lhs do not follow those of the one before
        {"broadcast": "rhs", "groups": 2},
        {"broadcast": "rhs", "m": 2**30},  # more rows than a coordinate of TMA can count
        {},  # the columns of a shared lhs's results lie apart
    ],
)
def test_other_batches_keep_the_operand_that_they_share(changes):
    fields = SHARED_LHS | changes
    found = Problem.from_fields(fields)
    assert (found.batch, found.broadcast) == (8, fields["broadcast"])
    assert Problem.from_fields(found.to_fields()) == found


def test_only_a_shared_operand_is_named_in_the_fields_since_other_keys_are_older():
    assert list(Problem(batch=2, m=1, n=1, k=1).to_fields()) == [
        *("batch", "m", "n", "k", "lhs_dtype", "rhs_dtype", "out_dtype", "layout"),
        *("accumulation", "scales", "epilogue", "groups"),
    ]
    assert Problem.from_fields(SHARED_LHS).to_fields()["broadcast"] == "lhs"
    assert Problem.from_fields(SHARED_LHS).describe() == "8x16x32x64 bfloat16 nn one lhs"


def test_a_shared_operand_counts_once():
    lhs, rhs, out = 16 * 64 * 2, 64 * 32 * 2, 16 * 32 * 2
    assert Problem.from_fields(SHARED_LHS).min_bytes == lhs + 8 * rhs + 8 * out
    shared_rhs = Problem.from_fields(SHARED_LHS | {"broadcast": "rhs", "layout": "tn"})
    assert shared_rhs.min_bytes == 8 * lhs + rhs + 8 * out
    assert shared_rhs.flops == 2 * 8 * 16 * 32 * 64
