"""Counts false pages and found regressions over simulated nights: `python benchmarks/nightly_simulation.py`.

The world: each problem is the twin of one of the 100 winners in results/nightly/two_nights.json, with its time, its
ratio to XLA and its protocol. Each process that races it shifts its kernel's time and XLA's by what one of the winners
of its kind moved by between those two nights, over the square root of two: that has the measured spread, its tails and
all, and the jumps of XLA's choices. Samples scatter by 1 to 3% of their own (at settled clocks by 1 to 2%, six rounds),
and within a race the clock wanders by 2%, about the median, since the recorded moves hold already what these move
medians by. Each night all times are up to 20% longer or shorter, sentinels too, and from night to night a kernel's
ratio moves by 0.3%. Only the decision logic runs here, with the further processes that a night asks. No GPU, no files.

`--replay` puts the two recorded nights themselves through the decision logic instead, and computes what the second
would have taken.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.bestfile import BestEntry, Ratio, entry_key
from autotune.nightly.decide import decide, page_threshold
from autotune.nightly.history import History, closing_record, problem_record
from autotune.nightly.reference import Tonight, protocol_mark
from autotune.nightly.telling import measured_facts
from autotune.nightly.values import Decision, Machine, Seen, fingerprint
from autotune.target import load_target

RECORDED = Path(__file__).resolve().parents[1] / "results" / "nightly" / "two_nights.json"
KINDS = ("long", "middling", "settled", "chain", "short chain")
LONG_US, SHORT_US = 60.0, 16.0  # of a kernel by CUPTI, of a kernel in a chain
ROUNDS, SETTLED_ROUNDS = 20, 6
SENTINELS_US = {"copy": 450.0, "fixed_kernel": 1200.0, "xla_dot": 180.0}
HERE = Machine(
    card="GPU-simulated",
    kind="NVIDIA H200",
    power_limit_w=700.0,
    driver="580.1",
    jax="0.11.2",
    jaxlib="0.11.2",
)


def kind_of(problem: dict[str, Any]) -> str:
    """Returns which of `KINDS` a recorded problem is."""
    if problem["regime"] == "sustained":
        return "settled"
    if problem["timer"] == "chain":
        return "short chain" if problem["kernel_us"][0] < SHORT_US else "chain"
    return "long" if problem["kernel_us"][0] >= LONG_US else "middling"


def moves_of(problem: dict[str, Any]) -> tuple[float, float]:
    """Returns by how much a process shifts the kernel's time and XLA's, so that their ratio moves as recorded."""
    kernel = math.log(problem["kernel_us"][1] / problem["kernel_us"][0])
    ratio = problem["log_ratio"][1] - problem["log_ratio"][0]
    return kernel / math.sqrt(2), (ratio + kernel) / math.sqrt(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slower:
    """A kernel that is `share` slower from `night` on."""

    key: str
    night: int
    share: float = 0.05


@dataclass
class World:
    """Problems with their true times, and the nights that have been; of one kind, or as they were recorded."""

    seed: int
    problems: int
    kind: str | None = None
    slower: Slower | None = None
    drift: float = 0.2
    history: History = field(default_factory=History)
    asked: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        recorded = json.loads(RECORDED.read_text())["problems"]
        self._moves = {kind: [moves_of(one) for one in recorded if kind_of(one) == kind] for kind in KINDS}
        twins = [one for one in recorded if self.kind in (None, kind_of(one))]
        self.entries: dict[str, BestEntry] = {}
        self.noise: dict[str, float] = {}
        self.kinds: dict[str, str] = {}
        target = load_target("hopper_matmul")
        for index in range(self.problems):
            problem = target.problem_from_fields({"m": 64 * (index + 1), "n": 4096, "k": 4096})
            key, twin = entry_key(target.name, problem), self._random.choice(twins)
            self.kinds[key] = kind_of(twin)
            self.entries[key] = entry_of(target, problem, twin)
            self.noise[key] = self._random.uniform(0.01, 0.02 if self.kinds[key] == "settled" else 0.03)

    def night(self, number: int) -> dict[str, Decision]:
        """Runs one night and adds it to the history."""
        factor = math.exp(self._random.uniform(-self.drift, self.drift))
        sentinels = {
            name: time_us * factor * math.exp(self._random.gauss(0, 0.003))
            for name, time_us in SENTINELS_US.items()
        }
        tonight = Tonight(
            machine=HERE, sentinels=sentinels, history=self.history, z=page_threshold(len(self.entries))
        )
        name, decisions, records, races = f"night {number:04d}", {}, [], 0
        for key, entry in self.entries.items():
            offset = self._random.gauss(0, 0.003)
            seen = self.race(key, number, factor, offset)
            decision = decide(key, entry, seen, tonight)
            while decision.ask:
                races += decision.ask
                for _ in range(decision.ask):
                    seen = seen.plus(self.race(key, number, factor, offset))
                decision = decide(key, entry, seen, tonight)
            decisions[key] = decision
            records.append((key, record_of(name, key, entry, seen, decision.verdict)))
        self.asked.append(races)
        closed = {**self.history.nights, name: closing_record(name, name, HERE, sentinels, 0)}
        problems = {key: [*self.history.problems.get(key, ()), record] for key, record in records}
        self.history = History(nights=closed, problems=problems)
        return decisions

    def race(self, key: str, night: int, factor: float = 1.0, offset: float = 0.0) -> Seen:
        """Returns what one process sees of a winner."""
        entry, noise, rng, kind = self.entries[key], self.noise[key], self._random, self.kinds[key]
        assert entry.kernel_us is not None and entry.xla_us is not None
        slower = self.slower
        extra = 1 + slower.share if slower and slower.key == key and night >= slower.night else 1.0
        sign = rng.choice((-1, 1))
        kernel_move, xla_move = (sign * move for move in rng.choice(self._moves[kind]))
        rounds = SETTLED_ROUNDS if kind == "settled" else ROUNDS
        phase, kernel_us = (
            rng.uniform(0, 2 * math.pi),
            entry.kernel_us * extra * math.exp(offset + kernel_move),
        )
        clocks = [1 + 0.02 * math.sin(phase + 0.3 * index) for index in range(rounds)]

        def samples(median_us: float) -> tuple[float, ...]:
            scattered = [clock * math.exp(rng.gauss(0, noise)) for clock in clocks]
            middle = statistics.median(scattered)
            return tuple(median_us * factor * one / middle for one in scattered)

        return Seen(
            kernel_us=samples(kernel_us),
            xla_us=samples(entry.xla_us * math.exp(xla_move)),
            digest=entry.digest,
        )


def pages_of_noise(seed: int, nights: int, problems: int) -> int:
    """Returns on how many nights without any change the decision logic would page."""
    world = World(seed, problems)
    return sum(any(one.pages for one in world.night(n).values()) for n in range(nights))


def night_found(
    seed: int, problems: int, quiet_nights: int, kind: str, share: float = 0.05, within: int = 2
) -> int | None:
    """Returns on which night of one regression it is reported; None: not `within` so many, or another is."""
    world = World(seed, problems)
    slow = random.Random(seed).choice(list(world.entries))
    recorded = json.loads(RECORDED.read_text())["problems"]
    twin = random.Random(seed).choice([one for one in recorded if kind_of(one) == kind])
    world.kinds[slow] = kind
    world.entries[slow] = entry_of(load_target("hopper_matmul"), world.entries[slow].problem, twin)
    world.slower = Slower(key=slow, night=quiet_nights, share=share)
    for number in range(quiet_nights):
        world.night(number)
    for number in range(within):
        paged = {key for key, one in world.night(quiet_nights + number).items() if one.pages}
        if paged:
            return number + 1 if paged == {slow} else None
    return None


def decision_seconds(problems: int, nights: int = 3) -> float:
    """Returns how long deciding about `problems` entries takes, with a history of `nights`."""
    world = World(0, problems)
    for number in range(nights):
        world.night(number)
    seen = {key: world.race(key, nights) for key in world.entries}
    tonight = Tonight(machine=HERE, sentinels=SENTINELS_US, history=world.history, z=page_threshold(problems))
    began_s = time.perf_counter()
    for key, entry in world.entries.items():
        decide(key, entry, seen[key], tonight)
    return time.perf_counter() - began_s


def entry_of(target: Any, problem: Any, recorded: dict[str, Any]) -> BestEntry:
    """Returns a stored winner as the recorded one was after the first night."""
    ratio, error = recorded["log_ratio"][0], recorded["log_ratio_error"][0]
    return BestEntry(
        target=target.name,
        problem=problem,
        backend=recorded["backend"],
        config=target.config_from_knobs({}),
        kernel_us=recorded["kernel_us"][0],
        xla_us=recorded["kernel_us"][0] * math.exp(ratio),
        ratio=Ratio(
            low=math.exp(ratio - 1.96 * error), median=math.exp(ratio), high=math.exp(ratio + 1.96 * error)
        ),
        digest="d" * 32,
        driver=HERE.driver,
        jax=HERE.jax,
        jaxlib=HERE.jaxlib,
        protocol={name: recorded[name] for name in ("timer", "l2", "regime")},
        numerics="float32",
        date="2026-01-01",
    )


def record_of(night: str, key: str, entry: BestEntry, seen: Any, verdict: str) -> dict[str, Any]:
    """Returns what the history keeps of a winner."""
    assert entry.config is not None
    return problem_record(
        night,
        night,
        key,
        HERE,
        verdict=verdict,
        config=fingerprint(entry.config.to_knobs()),
        protocol=protocol_mark(entry.protocol),
        **measured_facts(seen),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One recorded night of a winner in the place of a `Seen`; its samples are gone."""

    kernel_median_us: float
    xla_median_us: float
    known: tuple[float, float]
    digest: str = "d" * 32
    failure: None = None
    processes: int = 1
    again: tuple[Seen, ...] = ()

    def log_ratio(self) -> tuple[float, float]:
        return self.known

    log_lead = log_ratio


def replayed() -> tuple[dict[str, Decision], tuple[float, float]]:
    """Returns what the second recorded night would decide after its first races, and the seconds it would have taken.

    The first races took what they took. Each race in a further process counts as long as the mean of them at least, and
    at most as long as one of the races of 100 rounds that the recorded night ran for what it doubted.
    """
    held = json.loads(RECORDED.read_text())
    target, history, seen, entries = load_target("hopper_matmul"), {}, {}, {}
    sentinels = [{name: us[night] for name, us in held["sentinels"].items()} for night in (0, 1)]
    for one in held["problems"]:
        nights = [
            Recorded(
                kernel_median_us=one["kernel_us"][night],
                xla_median_us=one["xla_us"][night],
                known=(one["log_ratio"][night], one["log_ratio_error"][night]),
            )
            for night in (0, 1)
        ]
        key = one["key"]
        entries[key] = entry_of(target, None, one)
        history[key] = [record_of("night 1", key, entries[key], nights[0], one["verdicts"][0])]
        seen[key] = nights[1]
    closing = {"night 1": closing_record("night 1", "night 1", HERE, sentinels[0], 0)}
    tonight = Tonight(
        machine=HERE,
        sentinels=sentinels[1],
        history=History(nights=closing, problems=history),
        z=page_threshold(len(seen)),
    )
    decisions: dict[str, Decision] = {
        key: decide(key, entries[key], seen[key], tonight)  # type: ignore[arg-type]
        for key in seen
    }
    took, first = held["seconds"][1], len(seen)
    before_s = took["before_races"] + took["first_races"]
    each_s = took["first_races"] / first, (took["all"] - before_s) / (took["races"] - first)
    further = sum(one.ask for one in decisions.values())
    return decisions, (before_s + further * min(each_s), before_s + further * max(each_s))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=50, help="regressions to look for, of each kind")
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--quiet-nights", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.05, help="by which a kernel becomes slower")
    parser.add_argument("--within", type=int, default=2, help="nights to look for a regression")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--replay", action="store_true", help="the recorded nights, and nothing simulated")
    arguments = parser.parse_args()
    if arguments.replay:
        decisions, took_s = replayed()
        asked = {key: one for key, one in decisions.items() if one.ask}
        for key, one in asked.items():
            print(f"{key.partition(' ')[2]}: {one.verdict}, {one.ask} further processes: {one.reason}")
        print(f"{len(asked)} of {len(decisions)} asked again; verdicts after the first races:", end=" ")
        print(dict(Counter(one.verdict for one in decisions.values())))
        print(f"computed, not measured: {took_s[0]:.0f} to {took_s[1]:.0f} s")
        return
    world = World(0, arguments.problems)
    pages = sum(any(one.pages for one in world.night(n).values()) for n in range(50))
    print(f"pages in 50 nights of noise and drift, {arguments.problems} problems: {pages};", end=" ")
    print(f"further races a night: {sum(world.asked) / 50:.1f}", flush=True)
    for kind in arguments.kinds:
        nights = [
            night_found(
                seed, arguments.problems, arguments.quiet_nights, kind, arguments.share, arguments.within
            )
            for seed in range(arguments.seeds)
        ]
        found = Counter(nights)
        print(f"{arguments.share:.0%} regressions of {kind}, by the night on which they are found: ", end="")
        print(", ".join(f"{night}: {found[night]}" for night in sorted(found, key=str)), flush=True)
    print(f"deciding about 1,000 entries: {decision_seconds(1000):.2f} s")


if __name__ == "__main__":
    main()
