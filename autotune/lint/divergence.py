"""Runs a kernel's control flow once per warpgroup, to see who enters which collective scope, and who does any work.

Entering a collective scope is a barrier of the whole CTA, so all warpgroups must enter equally many. Lowering does not
check it; a kernel that breaks it hangs. Only what follows from the warpgroup's index is computed: everything else is
unknown, but the same for all warpgroups unless it was derived from that index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.lint import jax_private
from autotune.lint.kernels import KernelCall
from autotune.lint.scalars import UNIFORM, Scalar, evaluate, literal

_CONTROL = ("run_scoped", "cond", "scan", "while")
# Entries of a warpgroup's path: an int counts barriers in a row, a tuple is control flow that could not be resolved.
Path = tuple[Any, ...]


@dataclass(slots=True)
class Warpgroup:
    """What one warpgroup does: its path through the barriers, how often it enters each scope, and its work."""

    index: int
    path: Path = ()
    entered: Counter[int] = field(
        default_factory=Counter
    )  # id of a run_scoped equation -> times, as far as known
    suspects: list[Any] = field(
        default_factory=list
    )  # scopes under a condition that differs between warpgroups
    work: int = 0  # equations with an effect: copies, stores, barriers, products


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first scope that not all warpgroups enter equally often, and how often each does (None: it depends)."""

    eqn: Any
    entered: tuple[int | None, ...]


def run_warpgroups(call: KernelCall) -> list[Warpgroup]:
    """Returns each warpgroup of `call`; empty for a kernel with one, where nothing can differ."""
    if call.num_warpgroups < 2:
        return []
    warpgroups = []
    for index in range(call.num_warpgroups):
        run = _Run(call, index)
        _, run.warpgroup.path = run.visit(call.jaxpr, [UNIFORM] * len(call.jaxpr.invars))
        warpgroups.append(run.warpgroup)
    return warpgroups


def divergence(call: KernelCall, warpgroups: list[Warpgroup]) -> Divergence | None:
    """Returns the first collective scope where the paths of the warpgroups part; None where they agree."""
    if len({one.path for one in warpgroups}) < 2:
        return None
    suspects = {id(eqn) for one in warpgroups for eqn in one.suspects}
    collective = [
        eqn for eqn in _scopes(call.jaxpr) if eqn.params["collective_axes"] == (call.mesh.thread_name,)
    ]
    for eqn in collective:
        counts = [None if id(eqn) in suspects else one.entered[id(eqn)] for one in warpgroups]
        if None in counts or len(set(counts)) > 1:
            return Divergence(eqn=eqn, entered=tuple(counts))
    # As often in each scope as far as is known, but not in the same order under conditions that are not known.
    return Divergence(eqn=collective[0], entered=(None,) * len(warpgroups))


def _scopes(jaxpr: Any) -> list[Any]:
    return [eqn for eqn in jax_private.all_equations(jaxpr) if eqn.primitive.name == "run_scoped"]


class _Run:
    def __init__(self, call: KernelCall, index: int) -> None:
        self.thread_name = call.mesh.thread_name
        self.warpgroup = Warpgroup(index=index)

    def visit(
        self, jaxpr: Any, arguments: Sequence[Scalar], constants: Sequence[Scalar] = ()
    ) -> tuple[list[Scalar], Path]:
        """Runs `jaxpr`; returns its results and the barriers passed on the way."""
        known: dict[Any, Scalar] = dict(zip(jaxpr.constvars, constants)) | dict(zip(jaxpr.invars, arguments))

        def read(atom: Any) -> Scalar:
            return literal(atom.val) if jax_private.is_literal(atom) else known.get(atom, UNIFORM)

        path: list[Any] = []
        for eqn in jaxpr.eqns:
            inputs = [read(atom) for atom in eqn.invars]
            name = jax_private.primitive_name(eqn)
            if name in _CONTROL:
                results, passed = getattr(self, f"_{name}")(eqn, inputs)
                path += passed
            elif bodies := list(jax_private.inner_jaxprs(eqn)):
                results, passed = self._bodies(bodies, eqn, inputs)
                path += passed
            else:
                self.warpgroup.work += bool(eqn.effects) and name not in _NO_WORK
                results = evaluate(eqn, inputs, self.thread_name, self.warpgroup.index)
            known.update(zip(eqn.outvars, results))
        return [read(atom) for atom in jaxpr.outvars], _merged(path)

    def _bodies(self, bodies: list[Any], eqn: Any, inputs: list[Scalar]) -> tuple[list[Scalar], Path]:
        path: list[Any] = []
        results: list[Scalar] = []
        for body in bodies:
            arguments = inputs if len(body.invars) == len(inputs) else [UNIFORM] * len(body.invars)
            results, passed = self.visit(body, arguments)
            path += passed
        is_call = len(bodies) == 1 and len(results) == len(eqn.outvars)
        return results if is_call else [UNIFORM] * len(eqn.outvars), _merged(path)

    def _run_scoped(self, eqn: Any, inputs: list[Scalar]) -> tuple[list[Scalar], Path]:
        body = eqn.params["jaxpr"]
        is_collective = eqn.params["collective_axes"] == (self.thread_name,)
        self.warpgroup.entered[id(eqn)] += is_collective
        results, passed = self.visit(body, [UNIFORM] * len(body.invars), inputs)
        return results, _merged([1, *passed]) if is_collective else passed

    def _cond(self, eqn: Any, inputs: list[Scalar]) -> tuple[list[Scalar], Path]:
        predicate, *arguments = inputs
        branches = eqn.params["branches"]
        if predicate.is_known:
            taken = branches[min(max(int(predicate.value), 0), len(branches) - 1)]
            results, passed = self.visit(taken, arguments)
            # A result that is unknown is still another one for a warpgroup that took the other branch.
            return [replace(one, differs=one.differs or predicate.differs) for one in results], passed
        runs = [self.visit(branch, arguments) for branch in branches]
        results = [
            Scalar(differs=predicate.differs or any(one.differs for one in column))
            for column in zip(*(result for result, _ in runs), strict=True)
        ]
        paths = [path for _, path in runs]
        if len(set(paths)) == 1:
            return results, paths[0]
        if predicate.differs:
            self.warpgroup.suspects += [scope for branch in branches for scope in _scopes(branch)]
            return results, (("differs", id(eqn), self.warpgroup.index),)
        return results, (("cond", id(eqn), *paths),)

    def _scan(self, eqn: Any, inputs: list[Scalar]) -> tuple[list[Scalar], Path]:
        params = eqn.params
        num_constants, num_carry = (len(group) for group in params["ft_in"].unpack()[:2])
        before = self.warpgroup.entered.copy()
        carry, passed = self._loop(params["jaxpr"], inputs[:num_constants], inputs[num_constants:], num_carry)
        self._multiply(before, params["length"])
        results = [*carry, *[UNIFORM] * (len(eqn.outvars) - num_carry)]
        return results, _repeated(passed, params["length"], id(eqn))

    def _while(self, eqn: Any, inputs: list[Scalar]) -> tuple[list[Scalar], Path]:
        params = eqn.params
        num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
        constants, first = inputs[num_cond : num_cond + num_body], inputs[num_cond + num_body :]
        before = self.warpgroup.entered.copy()
        carry, passed = self._loop(params["body_jaxpr"], constants, first, len(first))
        if not passed:
            return carry, ()
        is_counted = jax_private.fori_of_while(params) is not None
        if is_counted and first[0].is_known and first[1].is_known:
            trips = max(0, int(first[1].value) - int(first[0].value))
            self._multiply(before, trips)
            return carry, _repeated(passed, trips, id(eqn))
        [goes_on], _ = self.visit(params["cond_jaxpr"], [*inputs[:num_cond], *carry])
        bounds_differ = goes_on.differs or (is_counted and (first[0].differs or first[1].differs))
        if bounds_differ:
            self.warpgroup.suspects += _scopes(params["body_jaxpr"])
            return carry, (("differs", id(eqn), self.warpgroup.index),)
        return carry, (("while", id(eqn), *passed),)

    def _multiply(self, before: Counter[int], trips: int) -> None:
        """Counts what one run of a loop's body has entered since `before` as often as the loop runs."""
        for key, count in self.warpgroup.entered.items():
            self.warpgroup.entered[key] = before[key] + trips * (count - before[key])

    def _loop(
        self, body: Any, constants: Sequence[Scalar], first: Sequence[Scalar], num_carry: int
    ) -> tuple[list[Scalar], Path]:
        """Runs a loop's body until what differs between warpgroups no longer grows; counts its last run only."""
        unchanged = [body.outvars[i] is body.invars[len(constants) + i] for i in range(num_carry)]
        state = [
            one if i < num_carry and unchanged[i] else Scalar(differs=one.differs)
            for i, one in enumerate(first)
        ]
        while True:
            before = self.warpgroup.entered.copy(), list(self.warpgroup.suspects), self.warpgroup.work
            results, passed = self.visit(body, [*constants, *state])
            grown = [
                one if unchanged[i] else Scalar(differs=one.differs or results[i].differs)
                for i, one in enumerate(state[:num_carry])
            ]
            if grown == state[:num_carry]:
                return grown, passed
            self.warpgroup.entered, self.warpgroup.suspects, self.warpgroup.work = before
            state[:num_carry] = grown


_NO_WORK = ("axis_index", "program_id", "set_max_registers", "debug_print")


def _merged(path: Sequence[Any]) -> Path:
    merged: list[Any] = []
    for entry in path:
        if isinstance(entry, int) and merged and isinstance(merged[-1], int):
            merged[-1] += entry
        else:
            merged.append(entry)
    return tuple(merged)


def _repeated(path: Path, times: int, key: int) -> Path:
    if not path or times == 0:
        return ()
    if all(isinstance(entry, int) for entry in path):
        return (sum(path) * times,)
    return (("scan", key, times, *path),)
