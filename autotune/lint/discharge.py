"""Tells where discharging an accumulator, which lowering does by tracing its scope again, can only succeed."""

from __future__ import annotations

from typing import Any

from autotune.lint import jax_private

# Each has a discharge rule that cannot fail (pallas/mosaic_gpu/primitives.py), with the accumulator as first operand.
PLAIN = ("wgmma_ref", "wgmma_accumulator_deref", "wgmma_accumulator_store")


def discharges_plainly(jaxpr: Any) -> bool:
    """Returns whether every use of an accumulator in `jaxpr` is of a kind that jax always discharges.

    Then the undischarged body has the same scopes and the same refusals as the discharged one, so that it can be
    walked instead. False says nothing: jax's own discharge decides.
    """
    return all(_is_plain(eqn) for eqn in jaxpr.eqns if any(map(_is_accumulator, eqn.invars)))


def _is_accumulator(atom: Any) -> bool:
    return jax_private.is_accumulator(atom.aval)


def _is_plain(eqn: Any) -> bool:
    name = jax_private.primitive_name(eqn)
    if name in PLAIN:
        return not any(map(_is_accumulator, eqn.invars[1:]))
    # Not jit: jax's rule for it discharges every reference that goes in, and fails where one is not an accumulator.
    if name in ("cond", "scan"):
        return all(discharges_plainly(body) for body in jax_private.inner_jaxprs(eqn))
    if name == "while":
        # A condition that touches it is re-evaluated in the body, with conditions of its own.
        is_touched = any(map(_is_accumulator, eqn.invars[: eqn.params["cond_nconsts"]]))
        return not is_touched and discharges_plainly(eqn.params["body_jaxpr"])
    return False
