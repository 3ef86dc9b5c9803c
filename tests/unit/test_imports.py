"""Which module may import which, and what a model pays for importing the lookup."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("search", "evaluate", "ledger", "lint")
SHARED = (
    "autotune.target",
    "autotune.seam",
    "autotune.errors",
    "autotune.paired",
    "autotune.health",
    "autotune.gpuwatch",
)
ARITHMETIC = ("problem", "config", "hardware", "scopes", "legality", "rates", "cost", "heuristic")
HEAVY = ("jax", "jaxlib", "numpy", "pandas", "optuna", "rich", "yaml", "pynvml")


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imports(path: Path, *, at_import_time: bool = False) -> Iterator[str]:
    """Yields the modules that a file imports: all of them, or only those that importing it loads."""
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        is_lazy = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        is_typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if not (at_import_time and (is_lazy or is_typing)):
            pending += ast.iter_child_nodes(node)


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


@pytest.mark.parametrize("path", sources("kernels"), ids=lambda path: path.stem)
def test_the_kernel_family_knows_nothing_of_the_autotuner(path):
    assert not [module for module in imports(path) if within(module, "autotune")]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_imports_no_other_stage_and_nothing_above_it(stage):
    own = f"autotune.{stage}"
    for path in sources(f"autotune/{stage}"):
        foreign = [
            module
            for module in imports(path)
            if within(module, "autotune")
            and module != "autotune"
            and not any(within(module, allowed) for allowed in (own, *SHARED))
        ]
        assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


def test_only_the_composition_of_a_run_imports_the_driver():
    users = {
        path.relative_to(ROOT).as_posix()
        for path in sources("autotune")
        if any(within(module, "autotune.driver") for module in imports(path))
    }
    assert "autotune/runs.py" in users
    assert not {path for path in users if path.split("/")[1] in STAGES}


def test_the_command_line_loads_the_driver_only_for_a_verb_that_needs_it():
    modules = set(imports(ROOT / "autotune/cli.py", at_import_time=True))
    assert not [
        module
        for module in modules
        if module.startswith(("autotune.driver", "autotune.runs", "autotune.lint"))
    ]


@pytest.mark.parametrize("path", sources("benchmarks"), ids=lambda path: path.stem)
def test_a_benchmark_imports_what_is_there(path):
    importlib.import_module(f"benchmarks.{path.stem}")


@pytest.mark.parametrize("name", ARITHMETIC)
def test_the_arithmetic_of_the_kernel_family_needs_neither_jax_nor_numpy(name):
    script = f"import sys, hopper_matmul.{name}; print(*(set({HEAVY}) & set(sys.modules)))"
    assert python(script) == ""


def test_the_lookup_loads_nothing_heavy():
    script = f"""
import sys, autotune
early = set({HEAVY}) & set(sys.modules)
autotune.best_config(4096, 4096, 4096)
autotune.best_config(4096, 4096, 4096, device="NVIDIA H200")
print(*early, *(set({HEAVY}) & set(sys.modules)))
"""
    assert python(script) == ""


@pytest.mark.parametrize(("given", "kept"), [("", "1"), ("os.environ['OPENBLAS_NUM_THREADS'] = '3'", "3")])
def test_the_command_line_leaves_the_cores_to_the_workers_before_numpy_is_loaded(given, kept):
    script = f"""
import contextlib, io, os, sys
os.environ.pop("OPENBLAS_NUM_THREADS", None)
{given}
from autotune.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main(["--version"])
print(os.environ["OPENBLAS_NUM_THREADS"], "numpy" in sys.modules)
"""
    assert python(script) == f"{kept} False"


def test_the_environment_is_read_in_one_place():
    """A worker's whole environment is put together in another; check keeps jax off the GPU."""
    writers = {
        "autotune/environment.py",
        "autotune/evaluate/child_environment.py",
        "autotune/lint/command.py",
    }
    users = {
        path.relative_to(ROOT).as_posix()
        for folder in ("autotune", "kernels")
        for path in sources(folder)
        if any(isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv") for node in walk(path))
    }
    assert users <= writers


def test_kernels_is_a_source_root_and_no_package():
    assert not (ROOT / "kernels" / "__init__.py").exists()


def walk(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text()))


def python(script: str) -> str:
    search = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    environment = {**os.environ, "PYTHONPATH": search}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
