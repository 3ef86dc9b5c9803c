"""The versions of jax whose lowering the walk mirrors: what differs between them, and digests of what is mirrored.

A digest is of a function's source (`jax_private.MIRRORED`). To add a version: read the functions that
tests/lowering/test_lint_private.py names, change the walk where they behave differently, run the audit, add an entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_COMMON = {
    "lowering._run_scoped_lowering_rule": "c5637f90e93d",
    "lowering._run_state_lowering_rule": "b8d78c1b874f",
    "lowering._cond_lowering_rule": "65a4f7c05b7f",
    "lowering._scan_lowering_rule": "ef9772ea4a3c",
    "lowering._while_lowering_rule": "fe4bf8bfc6eb",
    "lowering._lower_jaxpr_to_for_loop": "fef7be91abe7",
    "lowering._estimate_resources": "9aeb26d5d5f3",
    "lowering._run_scoped_resource_estimator": "e4a3fbcc6567",
    "primitives._run_scoped_discharge_rule": "ef32165551dd",
    "discharge._eval_jaxpr_discharge_state": "a2c925babb0f",
    "mosaic_utils.BarrierRef.initialize": "a6885142dbe5",
    "mosaic_utils.DialectBarrierRef.initialize": "9c2da1c92649",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRules:
    """What differs between the known versions, and how a version is recognised."""

    limits_cta_barriers: bool  # 16 warpgroups: ValueError in lower()
    lowers_custom_derivatives: bool  # jax.custom_jvp and custom_vjp inside a kernel's body
    digests: Mapping[str, str]


KNOWN = {
    "0.11.2": VersionRules(
        limits_cta_barriers=False,
        lowers_custom_derivatives=False,
        digests=_COMMON
        | {
            "lowering.lower_jaxpr_to_mosaic_gpu": "9e0d84df8a8a",
            "lowering.lower_jaxpr_to_module": "6be70a267a0b",
            "mosaic_core._launch": "47fcb0820468",
            "mosaic_core._smem_tree_size": "c852c6ef097d",
            "registration.mpmd_map_mgpu_lowering_rule": "9c6d3f079582",
        },
    ),
    "0.12.0.1": VersionRules(
        limits_cta_barriers=True,
        lowers_custom_derivatives=True,
        digests=_COMMON
        | {
            "lowering.lower_jaxpr_to_mosaic_gpu": "64e7b65bb4c9",
            "lowering.lower_jaxpr_to_module": "d3baadadde2d",
            "mosaic_core._launch": "419f4ee5406d",
            "mosaic_core._smem_tree_size": "47e640638c75",
            "registration.mpmd_map_mgpu_lowering_rule": "31384a7679f5",
        },
    ),
}
