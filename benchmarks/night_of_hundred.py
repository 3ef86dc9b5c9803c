"""The GPU time of a night over many stored winners with nothing changed: two real nights, and what the second took.

    PYTHONPATH=.:kernels python benchmarks/night_of_hundred.py results/best/nvidia_h200.json \
        [--count 100] [--seconds 300] [--folder KEPT]

The winners of the best file are copied to a folder of their own. Where they are fewer than `--count`, projections of
language models are added with the kernel's untuned configuration and no known module: the first night finds those
stale, measures them and stores what it saw. The second night verifies all of them again. Nothing is tuned: what a night
would tune is counted and said. Each night ends by itself after `--seconds`, and what it came to is printed and written
to KEPT/night_<1 or 2>.json; what both saw of each winner to KEPT/two_nights.json, the form of
results/nightly/two_nights.json.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from autotune import machine
from autotune.bestfile import BestEntry, entry_key, entry_to_json, locked, read_best, write_best
from autotune.nightly import command
from autotune.nightly.files import write_whole
from autotune.protocol import AUTO, estimated_us, resolved
from autotune.result import Counts, ProblemResult
from autotune.target import load_target

# n and k of projections in Llama 3 8B and 70B, Llama 2 13B, DeepSeek-V3 and GPT-2; m from a step of decoding to a
# chunk of prefill.
PROJECTIONS = (
    (4096, 4096),
    (14336, 4096),
    (4096, 14336),
    (6144, 4096),
    (28672, 4096),
    (1280, 8192),
    (8192, 1024),
    (10240, 8192),
    (5120, 5120),
    (13824, 5120),
    (5120, 13824),
    (7168, 2048),
    (3072, 768),
    (768, 3072),
    (2304, 768),
    (8192, 8192),
)
TOKENS = (16, 64, 128, 256, 512, 1024, 2048, 4096)
UNKNOWN_DIGEST = "0" * 32
GRACE_S = 60.0  # after its own end a night still waits for what runs, and writes its report


def main(arguments: Sequence[str] | None = None, make_meter: Callable[[Any], Any] | None = None) -> int:
    """Runs both nights and returns 0 where the second ran to its end.

    Args:
        make_meter: Returns a NightMeter of a night's config; None: on the GPU.
    """
    told = sys.argv[1:] if arguments is None else arguments
    given = _parser().parse_args(told)
    summaries: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = prepared(given.best, folder, given.count, given.seconds)
        for number in (1, 2):
            print(f"night {number}: at most {given.seconds:g} s", flush=True)
            summary = night(config, make_meter or _gpu_meter, given.seconds)
            write_whole(folder / f"night_{number}.json", json.dumps(summary, indent=1) + "\n")
            tell(number, summary)
            summaries.append(summary)
            time.sleep(1.0)  # a night is named by the second in which it begins
        both = json.dumps(
            two_nights(folder / "results", summaries, f"{Path(__file__).name} {' '.join(told)}")
        )
        write_whole(folder / "two_nights.json", both + "\n")
    return 0 if summary["exit_code"] in (0, 10, 20) and not summary["left"] else 1


def prepared(best: Path, folder: Path, count: int, seconds: float) -> Path:
    """Stores `count` winners below `folder` and returns the config of a night over them."""
    found = read_best(best)
    if found is None:
        raise SystemExit(f"{best}: there is no such file")
    entries = dict(list(found.entries())[:count])
    known = len(entries)
    device = load_target("hopper_matmul").device_named(found.device["kind"])
    for entry in _untuned(device):
        if len(entries) == count:
            break
        entries.setdefault(entry_key(entry.target, entry.problem), entry)
    print(f"{len(entries)} winners: {known} of {best}, {len(entries) - known} untuned", flush=True)
    if (folder / "results").exists():
        shutil.rmtree(folder / "results")
    path = folder / "results" / "best" / best.name
    path.parent.mkdir(parents=True)
    with locked(path.parent):
        write_best(path, found.device, {key: entry_to_json(entry) for key, entry in entries.items()})
    asked = next(iter(entries.values())).problem.to_fields()
    (folder / "run.yaml").write_text(f"name: night_of_hundred\nproblems: [{json.dumps(asked)}]\n")
    lines = ("run: run.yaml", f"minutes: {seconds / 60}", f"results: {folder / 'results'}")
    config = folder / "night.yaml"
    config.write_text("\n".join(lines) + "\n")
    return config


def night(config: Path, make_meter: Callable[[Any], Any], seconds: float) -> dict[str, Any]:
    """Runs `autotune nightly` on the config and returns its summary, with what it asked to tune."""
    meters: list[Watched] = []

    def watched(checked: Any) -> Watched:
        meters.append(Watched(make_meter(checked)))
        return meters[-1]

    with _alarm(seconds + GRACE_S):
        command.run(config, make_meter=watched)
    latest = config.parent / "results" / "nightly" / "reports" / "latest.json"
    seen = meters[0]
    return {
        **json.loads(latest.read_text()),
        "not_tuned": seen.not_tuned,
        "first_races_s": seen.first_races_s,
    }


def two_nights(results: Path, summaries: Sequence[dict[str, Any]], command: str) -> dict[str, Any]:
    """Returns what two nights saw of each winner that both measured, from their history."""
    (history,) = (results / "nightly" / "history").glob("*.jsonl")
    records = [json.loads(line) for line in history.read_text().splitlines()]
    names = [summary["night"] for summary in summaries]
    nights = [
        {one["key"]: one for one in records if one["type"] == "problem" and one["night"] == name}
        for name in names
    ]
    machine_of = summaries[-1]["machine"]
    problems = []
    for key in nights[0].keys() & nights[1].keys():
        pair = [night[key] for night in nights]
        if any(one.get("log_ratio") is None or not one.get("kernel_us") for one in pair):
            continue
        timer, l2, _, regime = pair[1]["protocol"].split()
        fields = ("kernel_us", "xla_us", "log_ratio", "log_ratio_error")
        problems.append(
            {"key": key, "timer": timer, "l2": l2, "regime": regime, "backend": pair[1]["backend"]}
            | {name: [one[name] for one in pair] for name in fields}
            | {"verdicts": [one["verdict"] for one in pair]}
        )
    return {
        "date": names[-1][:10],
        "command": command,
        **{name: machine_of[name] for name in ("kind", "power_limit_w", "driver", "jax", "jaxlib")},
        "nights": names,
        "sentinels": {
            name: [summary["sentinels"][name]["us"] for summary in summaries]
            for name in summaries[-1]["sentinels"]
        },
        "seconds": [_seconds(summary) for summary in summaries],
        "problems": sorted(problems, key=lambda one: one["key"]),
    }


def _seconds(summary: dict[str, Any]) -> dict[str, float]:
    profile = summary["profile"] or {"wall_s": {}, "races": {}}
    spent = profile["wall_s"]
    return {
        "all": summary["gpu_s"],
        "before_races": round(spent.get("start", 0.0) + spent.get("sentinels", 0.0), 1),
        "first_races": round(summary["first_races_s"], 1),
        "races": sum(profile["races"].values()),
    }


def tell(number: int, summary: dict[str, Any]) -> None:
    """Prints what a night came to."""
    raced = sum(summary["profile"]["races"].values()) if summary["profile"] else 0
    share = f", {summary['gpu_s'] / raced:.2f} s a race" if raced else ""
    print(f"night {number}: {summary['gpu_s']} s of GPU{share}, {summary['wall_s']} s in all")
    print(f"  exit code {summary['exit_code']}, verdicts {summary['counts']}")
    print(f"  left undone {len(summary['left'])}, would have been tuned {len(summary['not_tuned'])}")
    print(f"  profile {json.dumps(summary['profile'])}", flush=True)


class Watched:
    """A NightMeter that says how far it is, and tunes nothing."""

    def __init__(self, meter: Any) -> None:
        self._meter = meter
        self.not_tuned: list[str] = []
        self.first_races_s = 0.0  # of the first verification of all winners

    def __getattr__(self, name: str) -> Any:
        return getattr(self._meter, name)

    def sentinels(self) -> Any:
        found = self._meter.sentinels()
        print(f"  sentinels {found} after {self._meter.gpu_s:.1f} s", flush=True)
        return found

    def verify(self, checks: Any, rounds: int) -> Iterator[Any]:
        stream = self._meter.verify(checks, rounds)
        began_s = time.monotonic()
        with contextlib.closing(stream):
            for done, (key, seen) in enumerate(stream, 1):
                if seen.failure:
                    print(f"  {key}: {seen.failure[0]}: {seen.failure[1][:200]}", flush=True)
                if done % 10 == 0 or done == len(checks):
                    passed_s = time.monotonic() - began_s
                    print(f"  {done} of {len(checks)}, {rounds} rounds, after {passed_s:.1f} s", flush=True)
                yield key, seen
        self.first_races_s = self.first_races_s or time.monotonic() - began_s

    def retune(self, problem: Any, weight: float, *_: Any, **__: Any) -> ProblemResult:
        self.not_tuned.append(problem.describe())
        return ProblemResult(
            problem=problem,
            weight=weight,
            device=self._meter.device,
            protocol=AUTO,
            evaluator="gpu",
            study="none",
            counts=Counts(raw=0, legal=0, rejected={}),
            winner=None,
            failure="not tuned in this benchmark",
        )


def _untuned(device: Any) -> Iterator[BestEntry]:
    """Yields projections with an untuned kernel beside XLA's answer; their times are estimates until a night."""
    target, tools = load_target("hopper_matmul"), machine.toolchain()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    for m in TOKENS:
        for n, k in PROJECTIONS:
            problem = target.problem_from_fields({"m": m, "n": n, "k": k})
            knobs = target.heuristic_config(problem, device)
            if knobs is None:
                continue
            yield BestEntry(
                target=target.name,
                problem=problem,
                backend="xla",
                config=target.config_from_knobs(knobs),
                kernel_us=estimated_us(problem),
                xla_us=estimated_us(problem),
                ratio=None,
                digest=UNKNOWN_DIGEST,
                driver=tools.driver or "unknown",
                jax=tools.jax,
                jaxlib=tools.jaxlib,
                protocol=dataclasses.asdict(resolved(AUTO, problem, target)),
                numerics="float32",
                date=today,
            )


def _gpu_meter(config: Any) -> Any:
    from autotune.nightly.gpumeter import GpuMeter

    return GpuMeter(config)


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Interrupts what runs inside after so long, so that it cleans up behind itself."""

    def interrupt(*_: Any) -> None:
        raise TimeoutError(f"the night did not end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("best", type=Path, help="a best file; its name is that of the device")
    parser.add_argument("--count", type=int, default=100, help="winners to verify")
    parser.add_argument("--seconds", type=float, default=300.0, help="wall clock of each night")
    parser.add_argument(
        "--folder", type=Path, help="instead of a temporary folder; results in it are replaced"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
