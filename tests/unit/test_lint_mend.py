"""The mends: what is moved where, in the user's own words."""

from autotune.lint import mend
from autotune.lint.model import Buffer, Scope

KIB = 1_024


def _smem(name, *shape, size):
    return Buffer(
        name=name,
        kind="smem",
        shape=shape,
        dtype="float32",
        size_bytes=size,
        smem_bytes=-(-size // KIB) * KIB,
        source=f"make_{name}()",
    )


ACC = Buffer(
    name="acc", kind="accumulator", shape=(64, 64), dtype="float32", size_bytes=16 * KIB, source="make_acc()"
)
TILE = _smem("tile", 64, 64, size=16 * KIB)


def _scope(*buffers, axes=("wg",), origin="run_scoped"):
    return Scope(
        kernel="body",
        depth=1,
        origin=origin,
        collective_axes=axes,
        is_collective=axes == ("wg",),
        file="no_such_file.py",
        line=3,
        buffers=buffers,
        smem_bytes=sum(buffer.smem_bytes for buffer in buffers),
    )


def test_accumulator_moves_inside_and_the_rest_stays():
    assert mend.accumulator_scope(_scope(ACC, TILE), [ACC]).splitlines() == [
        "Move `acc` into a scope of its own inside this one; the rest stays:",
        "    def shared(tile):",
        "        def accumulate(acc):",
        "            ...  # the lines that use `acc`",
        "        pl.run_scoped(",
        "            accumulate,",
        "            make_acc(),",
        "        )",
        "    pl.run_scoped(",
        "        shared,",
        "        make_tile(),",
        '        collective_axes="wg",',
        "    )",
    ]


def test_scope_of_accumulators_alone_drops_its_axes():
    text = mend.accumulator_scope(_scope(ACC), [ACC])
    assert "drop collective_axes" in text and "collective_axes=" not in text


def test_scratch_accumulator_moves_into_the_body():
    text = mend.accumulator_scope(_scope(ACC, TILE, origin="scratch_types"), [ACC])
    assert text.startswith("Take `acc` out of scratch_types")
    assert "make_acc()," in text and "make_tile()" not in text


def test_private_smem_becomes_collective():
    text = mend.shared_scope(_scope(TILE, axes=()), [TILE], "wg")
    assert "make_tile()," in text and 'collective_axes="wg",' in text


def test_mixed_private_scope_is_split():
    lines = mend.shared_scope(_scope(TILE, ACC, axes=()), [TILE], "wg").splitlines()
    assert lines[0] == "Split the scope: `tile` in a collective one outside, `acc` in a private one inside:"
    assert lines[1] == "    def shared(tile):"
    assert (
        lines.index("            make_acc(),")
        < lines.index("        make_tile(),")
        < lines.index('        collective_axes="wg",')
    )


def test_axes_become_the_thread_axis_or_go():
    assert 'collective_axes="wg",' in mend.thread_collective(_scope(TILE, axes=("pair", "wg")), "wg")
    assert "collective_axes=" not in mend.thread_collective(_scope(TILE, axes=("wg",)), None)


def test_nested_buffers_share_a_union_where_that_fits():
    ring, out = _smem("ring", 4, 192, 64, size=192 * KIB), _smem("out", 128, 256, size=128 * KIB)
    text = mend.smem([_scope(ring), _scope(out)], 320 * KIB)
    # 320 - 227 = 93 KiB; the union takes max(192, 128) KiB
    assert text.startswith("95,232 bytes too many: 196,608 + 131,072 are held together.")
    assert "(196,608 bytes in all)" in text
    assert "    plgpu.RefUnion([make_ring()], [make_out()])" in text


def test_ring_gets_as_many_stages_as_fit():
    lhs, rhs = _smem("lhs", 6, 128, 64, size=96 * KIB), _smem("rhs", 6, 64, 256, size=192 * KIB)
    out = _smem("out", 64, 128, size=32 * KIB)
    lines = mend.smem([_scope(lhs, rhs, out)], 320 * KIB).splitlines()
    # 32 KiB beside the ring leave 195 KiB for stages of 48 KiB: 4, with 32 + 4 * 48 = 224 KiB
    assert lines[1:] == [
        "Give `lhs`, `rhs` 4 stages instead of 6 (229,376 bytes):",
        "    plgpu.SMEM((4, 128, 64), jnp.float32, ...)  # lhs",
        "    plgpu.SMEM((4, 64, 256), jnp.float32, ...)  # rhs",
    ]


def test_stage_that_does_not_fit_alone_asks_for_smaller_tiles():
    huge = _smem("huge", 2, 512, 256, size=2 * 512 * KIB)
    assert "even one stage of `huge`, instead of 2, needs 524,288 bytes" in mend.smem(
        [_scope(huge)], 1024 * KIB
    )


def test_buffer_without_stages_asks_for_smaller_tiles():
    assert mend.smem([_scope(_smem("tile", 512, 256, size=512 * KIB))], 512 * KIB).endswith(
        "Use smaller tiles, or fewer pipeline stages."
    )
