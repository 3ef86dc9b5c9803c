"""Finding the user's own expressions in the user's own file."""

import pytest

from autotune.lint import source

TEXT = """\
def body(a, o):
    pl.run_scoped(
        inner,
        plgpu.SMEM((64, 64),
                   jnp.float32),
        [plgpu.ACC((64, 64)), BARRIER],
        zeta=plgpu.SMEM((8,), jnp.int8),
        alpha=make(),
        collective_axes="wg",
    )
    pl.run_scoped(lambda *refs: None, *buffers)
    plgpu.kernel(body, scratch_types={"b": one, "a": [two, three]})(a)
    pl.pallas_call(
        body,
        in_specs=[
            plgpu.BlockSpec((64, 64)),
            plgpu.BlockSpec((8, 8), collective_axes=("x",)),
        ],
    )(a)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(TEXT)
    return str(path)


def test_buffers_of_a_run_scoped_come_in_the_order_in_which_jax_flattens_them(file):
    found = source.run_scoped_buffers(file, 2, 5)
    assert [(one.line, one.text) for one in found] == [
        (4, "plgpu.SMEM((64, 64), jnp.float32)"),
        (6, "plgpu.ACC((64, 64))"),
        (6, "BARRIER"),
        (8, "make()"),  # keywords by name
        (7, "plgpu.SMEM((8,), jnp.int8)"),
    ]


def test_call_that_does_not_match_is_not_guessed_at(file):
    assert source.run_scoped_buffers(file, 2, 4) == []
    assert source.run_scoped_buffers(file, 11, 1) == []  # starred
    assert source.run_scoped_buffers(file, 1, 0) == []  # no call there
    assert source.run_scoped_buffers(file + ".gone", 2, 5) == []


def test_scratch_types_are_found_at_the_call_and_from_elsewhere(file):
    for line in (12, 99):  # 99: the kernel is made in another place than where it is called
        assert [one.text for one in source.scratch_buffers(file, line, 3)] == ["two", "three", "one"]


def test_block_spec_with_the_keyword_is_found(file):
    spec = source.keyword_expression(file, 13, "pallas_call", "collective_axes")
    assert (spec.line, spec.text) == (17, 'plgpu.BlockSpec((8, 8), collective_axes=("x",))')


def test_called_function_is_named_only_when_it_is_a_name(file):
    assert source.function_argument(file, 2) == "inner"
    assert source.function_argument(file, 11) == ""


def test_changed_file_is_read_again(tmp_path):
    import os

    path = tmp_path / "changing.py"
    path.write_text("run_scoped(f, one)\n")
    assert source.run_scoped_buffers(str(path), 1, 1)[0].text == "one"
    path.write_text("run_scoped(f, two)\n")
    os.utime(path, ns=(1, 1))
    assert source.run_scoped_buffers(str(path), 1, 1)[0].text == "two"


def test_file_that_is_no_python_gives_nothing(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("def (")
    assert source.run_scoped_buffers(str(path), 1, 1) == []
    assert source.statement(str(path), 1) == ""
