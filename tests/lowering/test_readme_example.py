"""The code of the README looks a configuration up and computes the product with it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
LOOK_UP, COMPUTE = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("backend", ["kernel", "xla"])
def test_the_product_is_of_the_backend_that_won(backend):
    names: dict = {}
    exec(LOOK_UP, names)
    names["best"] = dataclasses.replace(names["best"], backend=backend)
    exec(COMPUTE, names)
    operand = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    lowered = names["product"].trace(operand, operand).lower(lowering_platforms=("cuda",))
    (result,) = jax.tree.leaves(lowered.out_info)
    assert (result.shape, result.dtype) == ((4096, 4096), jnp.bfloat16)
    assert ("mosaic_gpu" in lowered.as_text()) == (backend == "kernel")
