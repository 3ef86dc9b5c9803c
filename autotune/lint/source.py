"""Reads the user's own file: which expression allocated a buffer, and on which line. No jax."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """An expression of a file, on one line."""

    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parsed:
    text: str
    calls: tuple[ast.Call, ...]


@functools.lru_cache(maxsize=32)
def _parse(file: str, _modified_ns: int) -> _Parsed | None:
    try:
        text = Path(file).read_text()
        calls = tuple(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
        return _Parsed(text=text, calls=calls)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


def _parsed(file: str) -> _Parsed | None:
    try:
        return _parse(file, Path(file).stat().st_mtime_ns)
    except OSError:
        return None


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _calls(parsed: _Parsed, name: str) -> Iterator[ast.Call]:
    return (call for call in parsed.calls if _name(call.func) == name)


def _call_at(parsed: _Parsed, line: int, name: str) -> ast.Call | None:
    """Returns the call of `name` that covers `line`: the one that starts there, else the shortest."""
    covering = [
        call for call in _calls(parsed, name) if call.lineno <= line <= (call.end_lineno or call.lineno)
    ]
    return min(
        covering,
        key=lambda call: (call.lineno != line, (call.end_lineno or call.lineno) - call.lineno),
        default=None,
    )


def _expression(parsed: _Parsed, node: ast.expr) -> Expression:
    segment = ast.get_source_segment(parsed.text, node) or ""
    return Expression(line=node.lineno, text=" ".join(segment.split()))


def _leaves(node: ast.expr) -> Iterator[ast.expr]:
    """Yields the leaves of a literal pytree in the order in which jax flattens it."""
    if isinstance(node, (ast.List, ast.Tuple)):
        for element in node.elts:
            yield from _leaves(element)
    elif isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        for _, value in sorted(zip(node.keys, node.values, strict=True), key=lambda pair: str(pair[0].value)):
            yield from _leaves(value)
    else:
        yield node


def _matching(parsed: _Parsed, nodes: list[ast.expr], count: int) -> list[Expression]:
    leaves = [leaf for node in nodes for leaf in _leaves(node)]
    has_star = any(isinstance(leaf, ast.Starred) for leaf in leaves)
    return [] if has_star or len(leaves) != count else [_expression(parsed, leaf) for leaf in leaves]


def run_scoped_buffers(file: str, line: int, count: int) -> list[Expression]:
    """Returns the expressions of the `count` buffers that the run_scoped at `line` allocates, in jax's order.

    jax takes the positional types first and then the keywords by name. Empty where the call cannot be read off:
    starred arguments, a tree built elsewhere, a file that is not there.
    """
    parsed = _parsed(file)
    call = _call_at(parsed, line, "run_scoped") if parsed else None
    if call is None:
        return []
    keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg != "collective_axes"}
    if None in keywords:
        return []
    ordered = [keywords[name] for name in sorted(keywords)]
    return _matching(parsed, [*call.args[1:], *ordered], count)


def scratch_buffers(file: str, line: int, count: int) -> list[Expression]:
    """Returns the expressions of a kernel's `count` scratch_types, for the kernel called, or defined, at `line`.

    Where the kernel is made somewhere else, the file's only call with scratch_types is taken.
    """
    parsed = _parsed(file)
    making = [call for call in parsed.calls if _keyword(call, "scratch_types") is not None] if parsed else []
    covering = [call for call in making if call.lineno <= line <= (call.end_lineno or call.lineno)]
    found = covering[-1:] or (making if len(making) == 1 else [])
    return _matching(parsed, [_keyword(found[0], "scratch_types")], count) if found else []


def keyword_expression(file: str, line: int, call_name: str, keyword: str) -> Expression | None:
    """Returns the first call inside the `call_name` call at `line` that passes `keyword`, as an expression."""
    parsed = _parsed(file)
    call = _call_at(parsed, line, call_name) if parsed else None
    inner = [node for node in ast.walk(call) if isinstance(node, ast.Call)] if call else []
    found = next((node for node in inner if _keyword(node, keyword) is not None), None)
    return None if found is None else _expression(parsed, found)


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def function_argument(file: str, line: int) -> str:
    """Returns what the run_scoped at `line` calls, when it is a plain name; else an empty string."""
    parsed = _parsed(file)
    call = _call_at(parsed, line, "run_scoped") if parsed else None
    return _name(call.args[0]) if call is not None and call.args else ""


def statement(file: str, line: int) -> str:
    """Returns the text of a line, stripped; empty where there is no such line."""
    parsed = _parsed(file)
    lines = parsed.text.splitlines() if parsed else []
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""
