"""Walks a kernel's body as lowering does, equation by equation, and collects what lowering would raise.

The first finding is what a real lowering raises; the later ones are what it would raise once the first is mended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.lint import jax_private, rules
from autotune.lint.discharge import PLAIN, discharges_plainly
from autotune.lint.kernels import KernelCall

# Arguments are followed only as far as lowering itself tells a Python literal from a value of the module it builds.
VALUE = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One exception that lowering would raise, and the equation at which it would."""

    rule: str
    message: str
    exception: str
    eqn: Any | None = None
    buffer_indices: tuple[int, ...] = ()  # of a run_scoped's buffers


def body_findings(call: KernelCall) -> list[Finding]:
    """Returns the findings in the body of `call`, in the order in which lowering meets them."""
    walk = _Walk(call)
    with jax_private.kernel_context(call.mesh):
        walk.visit(call.jaxpr, [VALUE] * len(call.jaxpr.invars))
    return walk.findings


class _Walk:
    def __init__(self, call: KernelCall) -> None:
        self.call = call
        self.findings: list[Finding] = []
        self._handlers: dict[str, Callable[[Any, list[object], bool], Sequence[object]]] = {
            "run_scoped": self._run_scoped,
            "run_state": self._run_state,
            "cond": self._cond,
            "scan": self._scan,
            "while": self._while,
            "jit": self._jit,
            "mpmd_map": self._warp_map,
        }

    def visit(
        self, jaxpr: Any, arguments: Sequence[object], constants: Sequence[object] = (), in_warp: bool = False
    ) -> list[object]:
        """Visits the equations of `jaxpr`; returns its results, as literals or as VALUE."""
        literals = dict(zip(jaxpr.constvars, constants)) | dict(zip(jaxpr.invars, arguments))

        def read(atom: Any) -> object:
            return atom.val if jax_private.is_literal(atom) else literals.get(atom, VALUE)

        for eqn in jaxpr.eqns:
            if not jax_private.has_lowering_rule(eqn.primitive, self.call.params, in_warp):
                # A product is lowered in its discharged form; where discharge fails, that is the finding.
                if jax_private.primitive_name(eqn) not in PLAIN:
                    names = jax_private.semantics_names(self.call.params, in_warp)
                    self._raise("NotImplementedError", rules.unimplemented(eqn.primitive.name, *names), eqn)
                continue
            handler = self._handlers.get(eqn.primitive.name)
            if handler is None and "call_jaxpr" in eqn.params:
                handler = self._call
            if handler is None:
                continue
            results = handler(eqn, [read(atom) for atom in eqn.invars], in_warp)
            self._write(eqn, results, literals)
        return [read(atom) for atom in jaxpr.outvars]

    def _write(self, eqn: Any, results: Sequence[object], literals: dict[Any, object]) -> None:
        for variable, result in zip(eqn.outvars, results):
            literals[variable] = result
            is_refused = result is not VALUE and not self.call.is_lane and jax_private.is_array(variable.aval)
            if is_refused:
                self._raise("AssertionError", rules.literal(result), eqn)

    def _raise(self, exception: str, message: str, eqn: Any, buffer_indices: tuple[int, ...] = ()) -> None:
        finding = Finding(
            rule=rules.rule_of_message(message),
            message=message,
            exception=exception,
            eqn=eqn,
            buffer_indices=buffer_indices,
        )
        self.findings.append(finding)

    def _discharged(self, eqn: Any, discharge: Callable[[], Any]) -> Any | None:
        """Returns what jax's own state discharge makes of a body; None, with a finding, where it refuses."""
        try:
            return discharge()
        except Exception as error:  # noqa: BLE001 - whatever discharge raises is what lowering raises
            at = jax_private.culprit(error, "_eval_jaxpr_discharge_state")
            self._raise(type(error).__name__, str(error), at if at is not None else eqn)
            return None

    # --- scopes -----------------------------------------------------------------------------------------------------

    def _run_scoped(self, eqn: Any, arguments: list[object], in_warp: bool) -> Sequence[object]:
        jaxpr = eqn.params["jaxpr"]
        kinds = [jax_private.buffer_kind(variable.aval) for variable in jaxpr.invars]
        self._check_scope(eqn, kinds)
        is_accumulator = [kind == "accumulator" for kind in kinds]
        body = None
        # Discharging traces again, which takes longer than the rest of the walk: not where it cannot fail.
        if any(is_accumulator) and not discharges_plainly(jaxpr):
            body = self._discharged(eqn, lambda: jax_private.discharge_scope(jaxpr, is_accumulator))
        if body is not None:
            results = self.visit(body, [*arguments, *[VALUE] * len(kinds)], in_warp=in_warp)
            return results[: len(jaxpr.outvars)]
        return self.visit(jaxpr, [VALUE] * len(kinds), arguments, in_warp)

    def _check_scope(self, eqn: Any, kinds: list[str]) -> None:
        axes, thread_name = eqn.params["collective_axes"], self.call.mesh.thread_name
        if axes and axes != (thread_name,):
            self._raise("ValueError", rules.A, eqn, tuple(range(len(kinds))))
            return
        raised: set[str] = set()
        for index, (variable, kind) in enumerate(zip(eqn.params["jaxpr"].invars, kinds, strict=True)):
            exception, message = self._check_buffer(variable.aval, kind, axes, thread_name)
            # One finding names all the buffers of a scope that share the fault.
            if message and message not in raised:
                raised.add(message)
                alike = [other for other, one in enumerate(kinds) if other >= index and _is_alike(kind, one)]
                self._raise(exception, message, eqn, tuple(alike))

    def _check_buffer(
        self, aval: Any, kind: str, axes: tuple[object, ...], thread_name: object
    ) -> tuple[str, str]:
        if kind == "accumulator":
            if axes:
                return "ValueError", rules.MAIN
            if jax_private.is_unsigned(aval.dtype):
                return "ValueError", rules.unsigned(aval.dtype)
            if self.call.is_lane and len(aval.shape) == 2 and (aval.shape[0] % 64 or aval.shape[1] % 8):
                return "ValueError", rules.accumulator_shape(*aval.shape)
        elif kind != "semaphore" and thread_name is not None and axes != (thread_name,):
            return "NotImplementedError", rules.b(thread_name, axes)
        return "", ""

    def _run_state(self, eqn: Any, arguments: list[object], in_warp: bool) -> Sequence[object]:
        jaxpr = eqn.params["jaxpr"]
        if not all(eqn.params["is_initialized"]):
            message = "Uninitialized Refs are not supported in lowering of run_state."
            self._raise("NotImplementedError", message, eqn)
            return ()
        should_discharge = [
            jax_private.buffer_kind(variable.aval) == "accumulator"
            or not jax_private.is_reference(result.aval)
            for variable, result in zip(jaxpr.invars, eqn.outvars, strict=True)
        ]
        if not any(should_discharge):
            self._raise("NotImplementedError", "Expected at least one accumulator to in run_state.", eqn)
            return ()
        body = self._discharged(eqn, lambda: jax_private.discharge_state(jaxpr, should_discharge))
        if body is None:
            self.visit(jaxpr, arguments, in_warp=in_warp)
            return ()
        results = iter(self.visit(body, arguments, in_warp=in_warp))
        return [next(results) if is_value else one for is_value, one in zip(should_discharge, arguments)]

    # --- calls, control flow ----------------------------------------------------------------------------------------

    def _jit(self, eqn: Any, arguments: list[object], in_warp: bool) -> Sequence[object]:
        return self.visit(eqn.params["jaxpr"], arguments, in_warp=in_warp)

    def _call(self, eqn: Any, arguments: list[object], in_warp: bool) -> Sequence[object]:
        if eqn.params["call_jaxpr"].consts:
            self._raise("NotImplementedError", "", eqn)
        return self.visit(eqn.params["call_jaxpr"], arguments, in_warp=in_warp)

    def _cond(self, eqn: Any, arguments: list[object], in_warp: bool) -> Sequence[object]:
        if len(eqn.params) > 1:
            self._raise("NotImplementedError", "platform_dependent cond", eqn)
        for branch in eqn.params["branches"]:
            self.visit(branch, arguments[1:], in_warp=in_warp)
        return ()

    def _scan(self, eqn: Any, arguments: list[object], in_warp: bool) -> Sequence[object]:
        params = eqn.params
        body = params["jaxpr"]
        try:
            if params["reverse"] or body.consts:
                raise NotImplementedError
            body = jax_private.fori_of_scan(params)
            length, unroll = params["length"], params["unroll"]
            if length % unroll:
                raise NotImplementedError(f"``unroll`` must divide ``length``, got {unroll=} and {length=}")
        except Exception as error:  # noqa: BLE001 - the real exception of jax's own matcher, or one of the two above
            self._raise(type(error).__name__, str(error), eqn)
        constants = arguments[: len(params["ft_in"].unpack()[0])]
        self.visit(body, [*constants, *[VALUE] * (len(body.invars) - len(constants))], in_warp=in_warp)
        return ()

    def _while(self, eqn: Any, arguments: list[object], in_warp: bool) -> Sequence[object]:
        params = eqn.params
        num_cond = params["cond_nconsts"]
        constants = arguments[num_cond : num_cond + params["body_nconsts"]]
        body = jax_private.fori_of_while(params)
        if body is None:
            body, cond = params["body_jaxpr"], params["cond_jaxpr"]
            carry = [VALUE] * (len(cond.invars) - num_cond)
            self.visit(cond, [*arguments[:num_cond], *carry], in_warp=in_warp)
        self.visit(body, [*constants, *[VALUE] * (len(body.invars) - len(constants))], in_warp=in_warp)
        return ()

    def _warp_map(self, eqn: Any, arguments: list[object], in_warp: bool) -> Sequence[object]:
        del in_warp  # a warp map inside another has no lowering rule, which `visit` has found
        mesh = eqn.params["meshes"][0]
        if len(eqn.params["jaxprs"]) > 1:
            self._raise("NotImplementedError", "MPMD map with multiple jaxprs not implemented.", eqn)
        elif not jax_private.is_warp_mesh(mesh):
            self._raise("NotImplementedError", f"Unsupported mesh: {mesh}", eqn)
        else:
            shapes = [
                atom.aval.shape for atom in eqn.invars if jax_private.is_array(atom.aval) and atom.aval.shape
            ]
            if shapes:
                message = "Can only close over scalars and Refs when using mpmd_map with WarpMesh. Found array of shape"
                self._raise("LoweringError", f"{message} {shapes[0]}.", eqn)
            self.visit(eqn.params["jaxprs"][0], arguments, in_warp=True)
        return ()


def _is_alike(kind: str, other: str) -> bool:
    """Whether two buffers of one scope break the same rule: accumulators among themselves, shared memory too."""
    if "accumulator" in (kind, other):
        return kind == other
    return other != "semaphore"
