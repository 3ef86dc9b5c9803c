"""best_config: the tuned configuration of a matrix product, with the word how it was found.

Loads neither jax, numpy, pandas nor Optuna: a model imports this, and calls it while it is traced.
"""

from __future__ import annotations

import operator
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from autotune import environment, machine
from autotune.bestfile import Backend, BestEntry, BestFile, BestFileWarning, Ratio, entry_key, read_best
from autotune.errors import InputError
from autotune.fields import shown
from autotune.target import load_target

TARGET = "hopper_matmul"
Match = Literal["exact", "nearest", "other_device"]
Policy = Literal["nearest", "exact"]
# Distances are the target's: 1.0 is twice or half of one size. Further off, a winner says less than the heuristic.
NEAR = 1.0
MAX_ANSWERS = 4096


class NotMeasuredError(InputError, LookupError):
    """policy="exact" was asked for, and this problem was not measured on this device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """A measured answer.

    Attributes:
        config: Legal for the asked problem. With backend "xla" the best kernel, or None.
        backend: "kernel", or "xla" where XLA won or tied.
        time_us: GPU time of that backend on `problem`, in microseconds.
        xla_time_us: GPU time of XLA on `problem`, in microseconds; None where it could not be measured.
        match: "exact", "nearest" (`problem` is a neighbour of the asked one), or "other_device".
        problem: The problem that was measured.
        device: Kind of the device it was measured on.
        ratio: Interval of XLA's time over the kernel's; None where one of them is missing.
        jax, jaxlib, driver: What it was measured with.
        path: The best file.
    """

    config: Any | None
    backend: Backend
    time_us: float
    xla_time_us: float | None
    match: Match
    problem: Any
    device: str
    ratio: Ratio | None
    jax: str
    jaxlib: str
    driver: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Heuristic:
    """A reasoned answer: nothing near the asked problem was measured, so there are no times.

    Attributes:
        config: Legal for the asked problem; None where no kernel is.
        backend: "kernel", or "xla" where no kernel is legal.
    """

    config: Any | None
    backend: Backend
    match: Literal["heuristic"] = "heuristic"


# Answers with the paths they hang on and those paths' stamps; best files as they were last read, likewise.
_answers: dict[tuple, tuple[Best | Heuristic, tuple[str, ...], tuple[object, ...]]] = {}
_files: dict[str, tuple[object, BestFile | None]] = {}


def best_config(
    m: int,
    n: int,
    k: int,
    *,
    dtype: Any = "bfloat16",
    rhs_dtype: Any = None,
    out_dtype: Any = None,
    layout: str = "nn",
    batch: int = 1,
    accumulation: str | None = None,
    scales: str = "none",
    epilogue: str = "none",
    groups: int = 1,
    broadcast: str = "none",
    device: str | None = None,
    policy: Policy = "nearest",
) -> Best | Heuristic:
    """Returns the best known configuration of out (m, n) = lhs (m, k) @ rhs (k, n).

    The answer is always legal for the asked problem. It is kept, and read again when the best file changes.

    Args:
        dtype: Of lhs: a name such as "bfloat16", or a numpy or jax dtype; `rhs_dtype`, `out_dtype` follow it.
        layout: First letter lhs, n = (m, k), t = (k, m); second letter rhs, n = (k, n), t = (n, k).
        batch: Of both operands, or of one where `broadcast` names the other: "lhs" or "rhs". A batch of row-major lhs
            with one rhs is answered as one product of batch * m rows, which it is.
        accumulation: Numerics class; None follows the dtypes.
        device: jax's device_kind or its slug. None: jax's GPU if jax has started, else the driver's first;
            without a GPU the shipped files answer, as "other_device".
        policy: "exact" takes no other problem's or device's answer.

    Raises:
        ValueError: A field that no problem can have; the message names it and what is allowed.
        NotMeasuredError: A LookupError; with policy "exact" this problem was not measured on this device.
    """
    # Before the answers that are kept, to which True is 1 and 64.0 is 64.
    m, n, k = _size("m", m), _size("n", n), _size("k", k)
    batch, groups = _size("batch", batch), _size("groups", groups)
    kind = device if device is not None else _kind_here()
    asked = (
        m, n, k, dtype, rhs_dtype, out_dtype, layout, batch, accumulation, scales, epilogue, groups,
        broadcast, device, kind, policy,
    )  # fmt: skip
    try:
        answer = _answers.get(asked)
    except TypeError:  # a list or the like, which is no field's value; the target says which field's
        answer = None
    if answer is not None and answer[2] == tuple(map(_stamp, answer[1])):
        return answer[0]
    fields = {
        "batch": batch,
        "m": m,
        "n": n,
        "k": k,
        "lhs_dtype": dtype,
        "rhs_dtype": rhs_dtype,
        "out_dtype": out_dtype,
        "layout": layout,
        "accumulation": accumulation,
        "scales": scales,
        "epilogue": epilogue,
        "groups": groups,
        "broadcast": broadcast,
    }
    target = load_target(TARGET)
    given = {name: _plain(value) for name, value in fields.items() if value is not None}
    try:
        problem = target.problem_from_fields(given)
    except ValueError as error:
        if getattr(error, "key", None) == "lhs_dtype":  # as best_config calls it
            raise ValueError(str(error).replace("lhs_dtype", "dtype", 1)) from None
        raise
    search = _Search(target, problem, kind, is_named=device is not None)
    value = search.answer(policy)
    if len(_answers) >= MAX_ANSWERS:
        _answers.clear()
    _answers[asked] = (value, tuple(search.watched), tuple(search.watched.values()))
    return value


def best_folders() -> tuple[Path, ...]:
    """Returns the folders with best files, the winning one first: AUTOTUNE_RESULTS, checkout, wheel."""
    package = Path(__file__).resolve().parent
    checkout = package.parent
    folders = [override / "best"] if (override := environment.results_folder()) else []
    if folders and not os.path.isdir(override):  # which, unlike Path.is_dir, never raises
        _warn(f"AUTOTUNE_RESULTS={override}: is no folder; the shipped results answer")
    # An editable install keeps a stale copy of the wheel's files, so the checkout's own come first.
    folders += [checkout / "results" / "best"] if (checkout / "pyproject.toml").is_file() else []
    return (*folders, package / "_results" / "best")


# By so much the cost model may misjudge one of two configurations beside the other; a neighbour's was measured.
_MODEL_ERROR = 0.05


class _Search:
    """One lookup, and the paths whose change makes its answer stale."""

    def __init__(self, target: Any, problem: Any, kind: str | None, *, is_named: bool):
        self.target = target
        self.problem = problem
        self.key = entry_key(target.name, problem)
        self.watched: dict[str, object] = {}  # with the stamps from before they were read
        self.device = self._device(kind, is_named)
        self._untuned_by_device: dict[Any, Any] = {}

    def answer(self, policy: str) -> Best | Heuristic:
        if policy not in ("nearest", "exact"):
            raise ValueError(f"policy={policy!r}: allowed: nearest, exact")
        own = list(self._own_files())
        found = self._exact(own, "exact")
        if policy == "exact":
            if found is None:
                where = self.device.kind if self.device else "this machine, which has no Hopper GPU"
                raise NotMeasuredError(
                    f"{self.problem.describe()} was not measured on {where}; "
                    "tune it with `autotune run`, or ask with policy 'nearest'"
                )
            return found
        found = found or self._nearest(own, "nearest")
        if found is None:
            others = list(self._other_files())
            found = self._exact(others, "other_device") or self._nearest(others, "other_device")
        return found or self._heuristic()

    def _device(self, kind: str | None, is_named: bool) -> Any | None:
        if kind is None:
            return None
        try:
            return self.target.device_named(kind)
        except ValueError:
            if is_named:
                raise
            return None  # a GPU that the target has no kernel for is as good as none

    def _own_files(self) -> Iterator[BestFile]:
        if self.device is None:
            return
        for folder in best_folders():
            path = str(folder / f"{self.device.slug}.json")
            self.watched[path] = _stamp(path)
            for file in _read(path):
                if file.device["kind"] == self.device.kind:
                    yield file
                else:
                    _warn(
                        f"{path}: holds results of {file.device['kind']}, not of {self.device.kind}; left out"
                    )

    def _other_files(self) -> Iterator[BestFile]:
        for folder in best_folders():
            self.watched[str(folder)] = _stamp(str(folder))  # changes with each file that is written there
            if os.path.isdir(folder):
                for path in sorted(folder.glob("*.json")):
                    if str(path) not in self.watched:
                        yield from _read(str(path))

    def _exact(self, files: list[BestFile], match: Match) -> Best | None:
        for file in files:
            entry = file.entry(self.key)
            if entry is None:
                continue
            if best := self._best(file, entry, match):
                return best
            self._warn_of_illegal(file, entry)
        return None

    def _warn_of_illegal(self, file: BestFile, entry: BestEntry) -> None:
        device = self.device or self._device(file.device["kind"], is_named=False)
        if device is not None and entry.config is not None:
            for rejection in self.target.check(self.problem, entry.config, device)[:1]:
                _warn(
                    f"{file.path}: {self.problem.describe()}: left out, for it is illegal: {rejection.line()}"
                )

    def _nearest(self, files: list[BestFile], match: Match) -> Best | None:
        ranked = []
        for file in files:
            for key, entry in file.entries():
                distance = self.target.distance(self.problem, entry.problem)
                if distance <= NEAR and entry.target == self.target.name:
                    ranked.append((distance, key, len(ranked), file, entry))
        is_passed_over = False
        for *_, file, entry in sorted(ranked, key=lambda row: row[:3]):
            # What XLA won further off says nothing where a kernel won nearer by.
            best = None if is_passed_over and entry.backend == "xla" else self._best(file, entry, match)
            if best:
                return best
            is_passed_over = is_passed_over or entry.backend == "kernel"
        return None

    def _best(self, file: BestFile, entry: BestEntry, match: Match) -> Best | None:
        """Returns the entry as an answer; None where its kernel is not legal, or not good, for the asked problem."""
        device = self.device or self._device(file.device["kind"], is_named=False)
        config = entry.config
        if device is None or (config is not None and not self._serves(entry, device)):
            config = None
        time_us = entry.xla_us if entry.backend == "xla" else entry.kernel_us
        if (entry.backend == "kernel" and config is None) or time_us is None:
            return None
        return Best(
            config=config,
            backend=entry.backend,
            time_us=time_us,
            xla_time_us=entry.xla_us,
            match=match,
            problem=entry.problem,
            device=file.device["kind"],
            ratio=entry.ratio,
            jax=entry.jax,
            jaxlib=entry.jaxlib,
            driver=entry.driver,
            path=file.path,
        )

    def _serves(self, entry: BestEntry, device: Any) -> bool:
        """Returns whether an entry's configuration, maybe of a neighbour, is legal and good for the asked problem."""
        if self.target.check(self.problem, entry.config, device):
            return False
        return entry.problem == self.problem or not self._is_behind(entry.config, device)

    def _is_behind(self, config: Any, device: Any) -> bool:
        """Returns whether the cost model finds a neighbour's configuration clearly slower than the untuned choice.

        Its tiles may fill the SMs of the problem that it was tuned for, and take one more turn here.
        """
        predicted_us = getattr(self.target, "predicted_us", None)
        untuned = self._untuned(device)
        if predicted_us is None or untuned is None:
            return False
        most_us = (1 + _MODEL_ERROR) * predicted_us(self.problem, untuned, device)
        return predicted_us(self.problem, config, device) > most_us

    def _untuned(self, device: Any) -> Any | None:
        if device not in self._untuned_by_device:
            knobs = self.target.heuristic_config(self.problem, device)
            config = None if knobs is None else self.target.config_from_knobs(knobs)
            self._untuned_by_device[device] = config
        return self._untuned_by_device[device]

    def _heuristic(self) -> Heuristic:
        config = self._untuned(self.device or self.target.device_named(machine.REFERENCE_KIND))
        return Heuristic(config=config, backend="xla" if config is None else "kernel")


def _read(path: str) -> Iterator[BestFile]:
    """Yields the best file of that path if it can be read; a model must not fail for a torn file."""
    stamp = _stamp(path)
    if path not in _files or _files[path][0] != stamp:
        try:
            _files[path] = (stamp, read_best(Path(path)))
        except InputError as error:
            _warn(str(error))
            _files[path] = (stamp, None)
    file = _files[path][1]
    if file is not None:
        yield file


def _warn(text: str) -> None:
    warnings.warn(BestFileWarning(text), stacklevel=2)


def _stamp(path: str) -> object:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _size(key: str, value: Any) -> int:
    """Returns a whole number, also numpy's, as an int; a text, a float and a bool are refused, not converted."""
    if type(value) is int:
        return value
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise ValueError(f"{key}={shown(value)}: allowed: a whole number of type int, or of numpy's integers")


def _plain(value: Any) -> Any:
    """Returns names of dtypes as strings; anything else as it is."""
    if isinstance(value, (str, int)):
        return value
    name = getattr(value, "name", None) or getattr(value, "__name__", None)
    return name if isinstance(name, str) else value


_driver_kind: list[str | None] = []
_jax_kind: list[str | None] = []


def _kind_here() -> str | None:
    """Returns the kind of jax's GPU once jax has started, else of the driver's first GPU, else None.

    Both are asked once. jax is never made to start a backend: that would take a CUDA context here.
    """
    if not _jax_kind and getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None):
        try:
            _jax_kind.append(sys.modules["jax"].local_devices(backend="gpu")[0].device_kind)
        except RuntimeError:
            _jax_kind.append(None)  # jax runs without a GPU here
    if _jax_kind and _jax_kind[0] is not None:
        return _jax_kind[0]
    if not _driver_kind:
        _driver_kind.append(machine.first_kind())
    return _driver_kind[0]
