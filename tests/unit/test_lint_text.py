"""The report as text and as JSON."""

import json
import subprocess
import sys
from pathlib import Path

from autotune.lint.model import Buffer, Fault, Kernel, Report, Scope
from autotune.lint.text import render

ROOT = Path(__file__).parents[2]
ACC = Buffer(name="acc", kind="accumulator", shape=(64, 128), dtype="float32", size_bytes=32_768, line=9)
TILE = Buffer(name="tile", kind="smem", shape=(100,), dtype="int8", size_bytes=100, smem_bytes=1_024)
SCOPES = (
    Scope(
        kernel="body",
        depth=0,
        origin="scratch_types",
        collective_axes=("wg",),
        is_collective=True,
        file="kernel.py",
        line=3,
    ),
    Scope(
        kernel="body",
        depth=1,
        origin="run_scoped",
        collective_axes=(),
        is_collective=False,
        file="kernel.py",
        line=7,
        buffers=(ACC, TILE),
        smem_bytes=1_024,
        total_smem_bytes=1_024,
    ),
)
KERNEL = Kernel(
    name="body",
    file="kernel.py",
    line=20,
    semantics="lane",
    num_threads=2,
    thread_name="wg",
    grid=(4,),
    cluster=(),
    smem_bytes=1_032,
    barrier_bytes=8,
    scopes=SCOPES,
)
MEND = "Split it:\n    two lines"
LOWER = Fault(
    rule="b",
    message="Only.",
    exception="NotImplementedError",
    stage="lower",
    file="kernel.py",
    line=7,
    mend=MEND,
)
RUN = Fault(
    rule="divergent", message="Hangs.", exception="", stage="run", file="kernel.py", line=8, buffers=(ACC,)
)
REPORT = Report(
    subject="run", jax_version="0", faults=(LOWER, RUN), warnings=(RUN,), kernels=(KERNEL,), notes=("a note",)
)


def test_text_shows_faults_in_order_with_stage_buffers_and_mend():
    lines = render(REPORT).splitlines()
    assert lines[0] == "run: 2 faults (1 kernel, walked in 0.0 ms; jax 0)"
    assert lines[2:7] == [
        "1. [b] kernel.py:7  (raised by lowering)",
        "   NotImplementedError: Only.",
        "   mend:",
        "   Split it:",
        "       two lines",
    ]
    assert "2. [divergent] kernel.py:8  (lowering accepts it, the kernel hangs)" in lines
    assert "   - acc: accumulator float32[64, 128], 32,768 bytes (line 9)" in lines
    assert lines[-1] == "note: a note"


def test_text_has_a_table_of_scopes_with_running_totals():
    lines = render(REPORT).splitlines()
    start = lines.index('scopes of body (kernel.py:20; 2 x "wg"; lane semantics)')
    assert [line.split() for line in lines[start + 2 : start + 4]] == [
        ["scratch_types", "wg", "-", "0", "0"],
        ["run_scoped:7", "no", "acc", "(acc),", "tile", "(smem)", "1,024", "1,024"],
    ]
    # 232,448 - 1,032 = 231,416
    assert lines[start + 4] == "  SMEM: 1,032 of 232,448 bytes, barriers 8 of them; 231,416 free"


def test_only_trace_and_lower_are_predicted_to_raise():
    assert REPORT.predicted is LOWER
    assert Report(subject="run", jax_version="0", faults=(RUN,)).predicted is None
    assert not Report(subject="run", jax_version="0", faults=(RUN,)).ok
    assert Report(subject="run", jax_version="0", warnings=(RUN,)).ok


def test_json_can_be_written_and_has_the_documented_keys():
    report = json.loads(json.dumps(REPORT.to_json()))
    assert list(report)[:3] == ["ok", "faults", "scopes"]
    assert [fault["rule"] for fault in report["faults"]] == ["b", "divergent"]
    assert [scope["total_smem_bytes"] for scope in report["scopes"]] == [0, 1_024]


def test_package_and_its_jaxless_parts_import_no_jax():
    modules = [
        "",
        ".model",
        ".rules",
        ".known_jax",
        ".source",
        ".mend",
        ".launch",
        ".scalars",
        ".text",
        ".argument",
    ]
    modules += [".command", ".scope_trees"]
    program = (
        "import sys\n"
        + "\n".join(f"import autotune.lint{name}" for name in modules)
        + "\nprint('jax' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
