"""Finds the Mosaic GPU kernels that a traced function calls, in the order in which it would lower them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autotune.lint import jax_private
from autotune.lint.model import Location


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCall:
    """One kernel: its jaxpr, mesh and compiler parameters, and where the user called it."""

    name: str
    jaxpr: Any
    mesh: Any
    params: Any  # plgpu.CompilerParams
    location: Location
    is_interpreted: bool

    @property
    def num_warpgroups(self) -> int:
        return self.mesh.num_threads or 1

    @property
    def is_lane(self) -> bool:
        return jax_private.is_lane(self.params)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKernel:
    """A Pallas kernel that is not a plgpu.kernel: of another backend, or a Mosaic GPU one made by pl.pallas_call."""

    name: str
    backend: str  # "Mosaic GPU (pl.pallas_call)", "TPU", "Triton", ...
    is_mosaic_gpu: bool
    location: Location


@dataclass(slots=True)
class KernelSearch:
    """What a traced function calls. The same kernel called twice is listed once, as it is lowered once."""

    entries: list[KernelCall | ForeignKernel]
    _seen: set[tuple[int, ...]]
    _function: Location

    @property
    def calls(self) -> list[KernelCall]:
        return [entry for entry in self.entries if isinstance(entry, KernelCall)]

    @property
    def foreign(self) -> list[ForeignKernel]:
        return [entry for entry in self.entries if isinstance(entry, ForeignKernel)]

    @classmethod
    def of(cls, jaxpr: Any, function: Location) -> KernelSearch:
        """Searches the jaxpr of a function defined at `function`."""
        search = cls([], set(), function)
        search._visit(jaxpr, None)
        return search

    def _visit(self, jaxpr: Any, around: Location | None) -> None:
        for eqn in jaxpr.eqns:
            inner = list(jax_private.inner_jaxprs(eqn))
            if not inner:
                continue
            here = jax_private.location(eqn) or around
            if eqn.primitive.name == "mpmd_map":
                self._add_mesh_kernel(eqn.params, here)
            elif eqn.primitive.name == "pallas_call":
                self._add_pallas_call(eqn.params, here)
            else:
                for body in inner:
                    self._visit(body, here)

    def _add_mesh_kernel(self, params: dict[str, Any], here: Location | None) -> None:
        mesh, jaxpr = params["meshes"][0], params["jaxprs"][0]
        # Nobody of the user's calls a kernel that is itself the checked function: then its body is the place.
        here = here or jax_private.body_location(jaxpr) or self._function
        name = params.get("name") or "kernel"
        if not jax_private.is_gpu_mesh(mesh):
            self.entries.append(ForeignKernel(name=name, backend="TPU", is_mosaic_gpu=False, location=here))
            return
        compiler_params = params["compiler_params"] or jax_private.default_compiler_params()
        key = (id(jaxpr), id(mesh), id(params["compiler_params"]))
        if key in self._seen:
            return
        self._seen.add(key)
        self.entries.append(
            KernelCall(
                name=name,
                jaxpr=jaxpr,
                mesh=mesh,
                params=compiler_params,
                location=here,
                is_interpreted=bool(params.get("interpret")),
            )
        )

    def _add_pallas_call(self, params: dict[str, Any], here: Location | None) -> None:
        compiler_params = params.get("compiler_params")
        name = params.get("name") or params["jaxpr"].debug_info.func_name
        is_mosaic_gpu = compiler_params is not None and jax_private.is_mosaic_gpu_params(compiler_params)
        self.entries.append(
            ForeignKernel(
                name=name,
                backend="Mosaic GPU" if is_mosaic_gpu else _backend(compiler_params),
                is_mosaic_gpu=is_mosaic_gpu,
                location=here or self._function,
            )
        )


def _backend(compiler_params: Any) -> str:
    """Returns the backend whose parameters these are; without any, the platform decides."""
    if compiler_params is None:
        return "Triton or TPU (pl.pallas_call without compiler_params)"
    module = type(compiler_params).__module__
    if ".triton" in module:
        return "Triton"
    return "TPU" if ".mosaic." in module else type(compiler_params).__name__
