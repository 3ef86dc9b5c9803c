"""torch.matmul as it comes, timed in a process of its own: torch and jax would share neither memory nor CUPTI."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

LIMIT_S = 120.0
SCRIPT = """
import json, sys, torch
batch, m, n, k, layout, dtype, rhs_dtype, out = json.loads(sys.argv[1])
if dtype != rhs_dtype or batch != 1:
    print(json.dumps("torch.matmul takes two operands of one dtype")); sys.exit()
fp8 = dtype.startswith("float8")
name = {"float8_e5m2": "float8_e5m2", "float8_e4m3fn": "float8_e4m3fn"}.get(dtype, dtype)
def draw(rows, columns):
    return torch.randn(rows, columns, device="cuda", dtype=torch.float32).to(getattr(torch, name))
a = draw(m, k) if layout[0] == "n" else draw(k, m).t()
b = draw(k, n) if layout[1] == "n" else draw(n, k).t()
if fp8:
    one = torch.ones((), device="cuda")
    call = lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)
else:
    torch.backends.cuda.matmul.allow_tf32 = True
    call = lambda: torch.matmul(a, b)
flush = torch.ones(64 * 2**20, device="cuda")
for _ in range(5): call()
times = []
for _ in range(30):
    flush.sum()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record(); call(); end.record(); torch.cuda.synchronize()
    times.append(start.elapsed_time(end) * 1e3)
print(json.dumps(sorted(times)[len(times) // 2]))
"""


def times(problem: Any, uuid: str, *, python: str = sys.executable) -> dict[str, Any]:
    """Returns `torch_us`, with a clean L2 and launch overhead, or a `note` that says why there is none."""
    if importlib.util.find_spec("torch") is None:
        return {"note": "torch is not installed"}
    fields = problem.to_fields()
    names = ("batch", "m", "n", "k", "layout", "lhs_dtype", "rhs_dtype", "out_dtype")
    asked = json.dumps([fields[name] for name in names])
    try:
        done = subprocess.run(
            ["env", f"CUDA_VISIBLE_DEVICES={uuid}", python, "-c", SCRIPT, asked],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return {"note": f"torch passed {LIMIT_S:g} s"}
    return parsed(done.returncode, done.stdout, done.stderr)


def parsed(code: int, stdout: str, stderr: str) -> dict[str, Any]:
    """Returns what the process said."""
    lines = stdout.strip().splitlines()
    if code or not lines:
        said = stderr.strip().splitlines()
        return {"note": f"torch: {said[-1] if said else f'exit code {code}'}"}
    value = json.loads(lines[-1])
    return {"torch_us": value} if isinstance(value, float) else {"note": value}
