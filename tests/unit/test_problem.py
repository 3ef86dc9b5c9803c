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
