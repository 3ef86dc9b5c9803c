"""--arg: the types of a checked function's arguments."""

import pytest

from autotune.errors import InputError
from autotune.lint.argument import parse_argument


@pytest.mark.parametrize(
    ("text", "dtype", "shape"),
    [
        ("bf16[4096,4096]", "bfloat16", (4096, 4096)),
        (" float32[ 8 , 2 ] ", "float32", (8, 2)),
        ("i32[]", "int32", ()),
        ("s8[3]", "int8", (3,)),
        ("e4m3[64,64]", "float8_e4m3fn", (64, 64)),
        ("pred[2]", "bool", (2,)),
    ],
)
def test_short_and_long_names_are_read(text, dtype, shape):
    argument = parse_argument(text)
    assert (argument.dtype, argument.shape) == (dtype, shape)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bf16", "expected DTYPE[SIZE,SIZE,...], for instance bf16[4096,4096]"),
        ("bf16[4096", "expected DTYPE[SIZE,SIZE,...]"),
        ("flaot32[8]", "unknown dtype flaot32; did you mean float32?"),
        ("f32[0]", "sizes must be positive whole numbers, got [0]"),
        ("f32[8,]", "sizes must be positive whole numbers, got [8,]"),
        ("f32[m]", "sizes must be positive whole numbers, got [m]"),
    ],
)
def test_bad_text_says_what_is_allowed(text, words):
    with pytest.raises(InputError) as caught:
        parse_argument(text)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"--arg {text}: ")
