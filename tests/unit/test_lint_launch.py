"""What lowering accepts and a Hopper GPU does not launch."""

import pytest

from autotune.lint.launch import launch_faults, register_fault


def _found(grid=(1,), cluster=(), num_threads=None):
    return [
        (fault.is_warning, fault.message.split(":")[0]) for fault in launch_faults(grid, cluster, num_threads)
    ]


@pytest.mark.parametrize(("threads", "faulty"), [(None, False), (0, True), (1, False), (8, False), (9, True)])
def test_a_cta_has_one_to_eight_warpgroups(threads, faulty):
    assert bool(_found(num_threads=threads)) is faulty


@pytest.mark.parametrize(
    ("cluster", "found"),
    [
        ((8,), []),
        ((2, 4), []),
        ((3, 3), [(True, "cluster=(3, 3)")]),  # 9: not portable
        ((16,), [(True, "cluster=(16,)")]),
        ((17,), [(False, "cluster=(17,)")]),
    ],
)
def test_cluster_limits(cluster, found):
    assert _found(cluster=cluster) == found


@pytest.mark.parametrize(
    ("grid", "cluster", "axis"),
    [
        ((65_535, 1), (), None),  # the first axis is CUDA's y
        ((65_536, 1), (), "y"),
        ((70_000,), (), None),  # the last is x
        ((2, 65_536, 1, 1), (), "z"),  # more than three: 2 x 65,536 CTAs along z
        ((0,), (), "x"),
        ((40_000, 1), (2, 1), "y"),  # a cluster multiplies its axis: 80,000
        ((40_000, 1), (2,), None),  # a one-axis cluster lies along x
    ],
)
def test_grid_limits(grid, cluster, axis):
    messages = [fault.message for fault in launch_faults(grid, cluster, None)]
    assert len(messages) == (axis is not None)
    if axis is not None:
        assert f"along CUDA's {axis}" in messages[0]


@pytest.mark.parametrize(
    ("count", "faulty"), [(16, True), (24, False), (40, False), (256, False), (264, True)]
)
def test_register_counts_are_those_of_ptxas(count, faulty):
    assert (register_fault(count) is not None) is faulty
