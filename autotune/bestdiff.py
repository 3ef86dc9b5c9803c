"""What changed between two best files, or between two git revisions of all of them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from autotune.bestfile import BestEntry, BestFile, parse_best, read_best
from autotune.errors import InputError
from autotune.target import load_target

FOLDER = "results/best"
COMPARED = ("backend", "kernel_us", "xla_us", "digest", "driver", "jax", "jaxlib", "date")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One problem that differs; `fields` gives (before, after) by name, knobs as "config.tile_m"."""

    file: str
    key: str
    kind: Literal["added", "removed", "changed"]
    fields: Mapping[str, tuple[Any, Any]]


def diff(before: str, after: str, root: Path = Path(".")) -> list[Change]:
    """Returns what changed from `before` to `after`; each is a best file or a git revision of `root`.

    Raises:
        InputError: One is neither, or a file is no best file.
    """
    old, new = _side(before, root), _side(after, root)
    if None in old and None in new:  # two files, whatever they are called
        pairs = [(after, old[None], new[None])]
    else:
        if None in old or None in new:
            raise InputError(f"--diff {before} {after}: allowed: two best files, or two git revisions")
        pairs = [(str(name), old.get(name), new.get(name)) for name in sorted({*old, *new}, key=str)]
    return [change for name, first, second in pairs for change in _changes(name, first, second)]


def text(changes: list[Change]) -> str:
    """Returns the changes, one a line with its fields below."""
    if not changes:
        return "no difference"
    lines = []
    for change in changes:
        lines.append(f"{change.kind}  {change.key}  ({change.file})")
        lines += [f"    {name}: {_shown(a)} -> {_shown(b)}" for name, (a, b) in change.fields.items()]
    return "\n".join(lines)


def _side(named: str, root: Path) -> dict[str | None, BestFile]:
    """Returns the files of one side by name; the one file of a path under None."""
    if os.path.isfile(named):
        found = read_best(Path(named))
        assert found is not None
        return {None: found}
    if named.startswith("-") or not named.isprintable():
        raise InputError(f"--diff {named!r}: allowed: a best file or a git revision")
    commit = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{named}^{{commit}}")
    if commit is None:
        raise InputError(f"--diff {named}: is neither a file nor a git revision here")
    revision = commit.decode().strip()
    listed = (_git(root, "ls-tree", "-z", "--name-only", revision, f"{FOLDER}/") or b"").decode().split("\0")
    files: dict[str | None, BestFile] = {}
    for path in listed:
        if path.endswith(".json"):
            content = _git(root, "show", f"{revision}:./{path}")
            if content is not None:
                files[path] = parse_best(Path(f"{named}:{path}"), content, load_target)
    return files


def _git(root: Path, *arguments: str) -> bytes | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"git cannot be run: {error}") from None
    return done.stdout if done.returncode == 0 else None


def _changes(name: str, old: BestFile | None, new: BestFile | None) -> list[Change]:
    first = dict(old.entries()) if old else {}
    second = dict(new.entries()) if new else {}
    found = []
    for key in (*first, *(key for key in second if key not in first)):
        if key not in second:
            found.append(Change(file=name, key=key, kind="removed", fields={}))
        elif key not in first:
            found.append(Change(file=name, key=key, kind="added", fields=_fields(None, second[key])))
        elif first[key] != second[key]:
            found.append(Change(file=name, key=key, kind="changed", fields=_fields(first[key], second[key])))
    return found


def _fields(old: BestEntry | None, new: BestEntry) -> dict[str, tuple[Any, Any]]:
    before, after = _flat(old), _flat(new)
    names = dict.fromkeys((*before, *after))
    return {n: (before.get(n), after.get(n)) for n in names if before.get(n) != after.get(n)}


def _flat(entry: BestEntry | None) -> dict[str, Any]:
    if entry is None:
        return {}
    flat = {name: getattr(entry, name) for name in COMPARED}
    if entry.ratio:
        flat["ratio"] = [entry.ratio.low, entry.ratio.median, entry.ratio.high]
    knobs = entry.config.to_knobs() if entry.config is not None else {}
    return (
        flat
        | {f"config.{name}": value for name, value in knobs.items()}
        | {f"protocol.{name}": value for name, value in entry.protocol.items()}
    )


def _shown(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)
