"""The digest of a lowered module: the same for the same operations, whatever the process lowered before."""

import jax
import pytest

from autotune.evaluate.digest import module_digest
from autotune.target import load_target

TARGET = load_target("hopper_matmul")
DEVICE = TARGET.device_named("nvidia_h200")
PROBLEM = TARGET.problem_from_fields({"m": 512, "n": 512, "k": 512})
KNOBS = TARGET.config_from_knobs({}).to_knobs()


def lowered(function):
    return jax.jit(function).trace(*TARGET.operand_types(PROBLEM)).lower(lowering_platforms=("cuda",))


def kernel(**changes):
    return TARGET.build(PROBLEM, TARGET.config_from_knobs(KNOBS | changes), DEVICE)


def test_a_kernel_that_is_lowered_again_has_the_same_digest():
    # Twelve times: jax 0.11.2 numbers kernels, and the number's digits change the length of the bytecode.
    assert len({module_digest(lowered(kernel())) for _ in range(12)}) == 1


@pytest.mark.parametrize(
    "changes", [{"stages": 2}, {"raster_width": 4}, {"scopes": "union"}, {"delay_release": 1}]
)
def test_another_variant_has_another_digest(changes):
    assert module_digest(lowered(kernel(**changes))) != module_digest(lowered(kernel()))


def test_what_surrounds_a_kernel_counts():
    assert module_digest(lowered(lambda a, b: kernel()(a, b) * 2)) != module_digest(lowered(kernel()))


def test_a_module_without_a_kernel_has_a_digest():
    digests = {module_digest(lowered(TARGET.rival(PROBLEM))) for _ in range(2)}
    assert len(digests) == 1
    assert len(digests.pop()) == 32
