"""What a search begins with: stored winners of the problem itself and of its neighbours."""

import dataclasses

from autotune.seeds import Neighbour, nearby_winners, nearest_measured
from tests.helpers.best_entries import H200, TARGET, best_file, entry, problem


def knobs(**changes):
    return {"tile_m": 128, "tile_n": 128, "tile_k": 64, "stages": 4, "compute_wgs": 2, **changes}


def stages_of(found):
    return [one["stages"] for one in found]


def test_the_problems_own_winner_comes_first_and_then_the_nearest(tmp_path):
    best_file(
        tmp_path,
        entry(problem(n=16384), knobs=knobs(stages=2)),  # two doublings away
        entry(problem(n=4096), knobs=knobs(stages=3)),
        entry(problem(n=8192), knobs=knobs(stages=4)),  # one
    )
    assert stages_of(nearby_winners(TARGET, problem(n=4096), H200, [tmp_path])) == [3, 4, 2]
    assert stages_of(nearby_winners(TARGET, problem(n=4096), H200, [tmp_path], most=1)) == [3]


def test_what_is_far_or_of_another_class_or_illegal_here_is_left_out(tmp_path):
    best_file(
        tmp_path,
        entry(problem(n=65536), knobs=knobs(stages=2)),  # four doublings
        entry(dataclasses.replace(problem(n=4096), layout="nt"), knobs=knobs(stages=3)),
        entry(problem(k=8192), knobs=knobs(split_k=128)),  # parts of one step: k = 4096 has 64
    )
    assert nearby_winners(TARGET, problem(n=4096), H200, [tmp_path]) == []


def test_a_runs_own_results_come_before_the_shipped_ones_and_equals_once(tmp_path):
    best_file(tmp_path / "own", entry(problem(n=4096), knobs=knobs(stages=3)))
    best_file(
        tmp_path / "shipped",
        entry(problem(n=4096), knobs=knobs(stages=4)),
        entry(problem(n=8192), knobs=knobs(stages=3)),
    )
    folders = [tmp_path / name for name in ("nothing", "own", "shipped")]
    assert stages_of(nearby_winners(TARGET, problem(n=4096), H200, folders)) == [3, 4]


def test_the_kernel_of_an_entry_that_xla_won_is_a_seed_too(tmp_path):
    lost = dataclasses.replace(entry(problem(n=4096), knobs=knobs(stages=3)), backend="xla")
    best_file(tmp_path, lost)
    assert stages_of(nearby_winners(TARGET, problem(n=4096), H200, [tmp_path])) == [3]


def test_of_what_a_run_measured_the_nearest_come_first_and_the_far_not_at_all():
    measured = [
        Neighbour(problem=problem(n=n), knobs=knobs(stages=stages))
        for n, stages in ((65536, 1), (16384, 2), (8192, 3), (2048, 4))
    ]
    found = nearest_measured(TARGET, problem(n=4096), measured)
    assert [(distance, one.knobs["stages"]) for distance, one in found] == [(1.0, 3), (1.0, 4), (2.0, 2)]
    assert len(nearest_measured(TARGET, problem(n=4096), measured, most=1)) == 1
