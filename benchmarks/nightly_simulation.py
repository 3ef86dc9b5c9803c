"""Counts false pages and found regressions over simulated nights: `python benchmarks/nightly_simulation.py`.

The world: each problem's samples scatter by 1 to 3% of its own; each night all times are up to 20% longer or shorter,
sentinels too; within a race the clock wanders by 2%; from night to night a kernel's ratio to XLA moves by 0.4%. Only
the decision logic runs here, with the confirming races that a night adds for what it doubts. No GPU, no files.

`--blocks` simulates winners that are measured at settled clocks: six rounds and, in doubt, thirty more, each a block of
100 ms that scatters by 0.3 to 1%.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from dataclasses import dataclass, field
from typing import Any

from autotune.bestfile import BestEntry, Ratio, entry_key
from autotune.nightly.decide import decide, page_threshold
from autotune.nightly.history import History, closing_record, problem_record
from autotune.nightly.reference import Tonight, protocol_mark
from autotune.nightly.values import Decision, Machine, Seen, fingerprint
from autotune.nightly.verification import CONFIRM_ROUNDS
from autotune.target import load_target

ROUNDS = 20
PROTOCOL = {"timer": "cupti", "l2": "clean", "rounds": ROUNDS, "warmup": 2}
SENTINELS_US = {"copy": 450.0, "fixed_kernel": 1200.0, "xla_dot": 180.0}
HERE = Machine(
    card="GPU-simulated",
    kind="NVIDIA H200",
    power_limit_w=700.0,
    driver="580.1",
    jax="0.11.2",
    jaxlib="0.11.2",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a winner is sampled: rounds at first and in doubt, and the scatter of single samples, lowest and highest."""

    rounds: int = ROUNDS
    confirm_rounds: int = CONFIRM_ROUNDS
    noise: tuple[float, float] = (0.01, 0.03)


CALLS = Sampling()
BLOCKS = Sampling(rounds=6, confirm_rounds=30, noise=(0.003, 0.01))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slower:
    """A kernel that is `share` slower from `night` on."""

    key: str
    night: int
    share: float = 0.05


@dataclass
class World:
    """Problems with their true times, and the nights that have been."""

    seed: int
    problems: int
    slower: Slower | None = None
    drift: float = 0.2
    sampling: Sampling = CALLS
    history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        target = load_target("hopper_matmul")
        self.entries: dict[str, BestEntry] = {}
        self.noise: dict[str, float] = {}
        for index in range(self.problems):
            problem = target.problem_from_fields({"m": 64 * (index + 1), "n": 4096, "k": 4096})
            key = entry_key(target.name, problem)
            kernel_us = self._random.uniform(10, 500)
            self.entries[key] = _entry(target, problem, kernel_us, kernel_us * self._random.uniform(1.0, 1.3))
            self.noise[key] = self._random.uniform(*self.sampling.noise)

    def night(self, number: int) -> dict[str, Decision]:
        """Runs one night and adds it to the history."""
        machine_factor = math.exp(self._random.uniform(-self.drift, self.drift))
        sentinels = {
            name: time_us * machine_factor * math.exp(self._random.gauss(0, 0.003))
            for name, time_us in SENTINELS_US.items()
        }
        tonight = Tonight(
            machine=HERE, sentinels=sentinels, history=self.history, z=page_threshold(len(self.entries))
        )
        name, decisions, records = f"night {number:04d}", {}, []
        for key, entry in self.entries.items():
            offset = self._random.gauss(0, 0.004)
            seen = self._race(key, number, machine_factor, offset, self.sampling.rounds)
            decision = decide(key, entry, seen, tonight)
            if decision.doubtful or decision.verdict in ("suspect", "regression", "better"):
                longer = self.sampling.confirm_rounds
                seen = seen.plus(self._race(key, number, machine_factor, offset, longer))
                decision = decide(key, entry, seen, tonight)
            decisions[key] = decision
            records.append((key, _record(name, key, entry, seen, decision)))
        closed = {**self.history.nights, name: closing_record(name, name, HERE, sentinels, 0)}
        problems = {key: [*self.history.problems.get(key, ()), record] for key, record in records}
        self.history = History(nights=closed, problems=problems)
        return decisions

    def _race(self, key: str, night: int, factor: float, offset: float, rounds: int) -> Seen:
        entry, noise, rng = self.entries[key], self.noise[key], self._random
        assert entry.kernel_us is not None and entry.xla_us is not None
        slower = self.slower
        extra = 1 + slower.share if slower and slower.key == key and night >= slower.night else 1.0
        phase = rng.uniform(0, 2 * math.pi)
        clocks = [factor * (1 + 0.02 * math.sin(phase + 0.3 * index)) for index in range(rounds)]
        kernel_us = entry.kernel_us * extra * math.exp(offset)
        return Seen(
            kernel_us=tuple(kernel_us * clock * math.exp(rng.gauss(0, noise)) for clock in clocks),
            xla_us=tuple(entry.xla_us * clock * math.exp(rng.gauss(0, noise)) for clock in clocks),
            digest=entry.digest,
        )


def pages_of_noise(seed: int, nights: int, problems: int, sampling: Sampling = CALLS) -> int:
    """Returns on how many nights without any change the decision logic would page."""
    world = World(seed, problems, sampling=sampling)
    return sum(any(one.pages for one in world.night(n).values()) for n in range(nights))


def is_found(
    seed: int, problems: int, quiet_nights: int, share: float = 0.05, sampling: Sampling = CALLS
) -> bool:
    """Returns whether the one regression is reported by its second night, and nothing else is."""
    world = World(seed, problems, sampling=sampling)
    slow = random.Random(seed).choice(list(world.entries))
    world.slower = Slower(key=slow, night=quiet_nights, share=share)
    for number in range(quiet_nights):
        world.night(number)
    paged = {
        key
        for number in (quiet_nights, quiet_nights + 1)
        for key, decision in world.night(number).items()
        if decision.pages
    }
    return paged == {slow}


def decision_seconds(problems: int, nights: int = 3) -> float:
    """Returns how long deciding about `problems` entries takes, with a history of `nights`."""
    world = World(0, problems)
    for number in range(nights):
        world.night(number)
    seen = {key: world._race(key, nights, 1.0, 0.0, ROUNDS) for key in world.entries}
    tonight = Tonight(machine=HERE, sentinels=SENTINELS_US, history=world.history, z=page_threshold(problems))
    began_s = time.perf_counter()
    for key, entry in world.entries.items():
        decide(key, entry, seen[key], tonight)
    return time.perf_counter() - began_s


def _entry(target: Any, problem: Any, kernel_us: float, xla_us: float) -> BestEntry:
    ratio = xla_us / kernel_us
    return BestEntry(
        target=target.name,
        problem=problem,
        backend="kernel" if ratio > 1.005 else "xla",
        config=target.config_from_knobs({}),
        kernel_us=kernel_us,
        xla_us=xla_us,
        ratio=Ratio(low=ratio * 0.98, median=ratio, high=ratio * 1.02),
        digest="d" * 32,
        driver=HERE.driver,
        jax=HERE.jax,
        jaxlib=HERE.jaxlib,
        protocol=PROTOCOL,
        numerics="float32",
        date="2026-01-01",
    )


def _record(night: str, key: str, entry: BestEntry, seen: Seen, decision: Decision) -> dict[str, Any]:
    known = seen.log_ratio()
    assert known is not None and entry.config is not None
    return problem_record(
        night,
        night,
        key,
        HERE,
        verdict=decision.verdict,
        config=fingerprint(entry.config.to_knobs()),
        protocol=protocol_mark(entry.protocol),
        kernel_us=seen.kernel_median_us,
        xla_us=seen.xla_median_us,
        log_ratio=known[0],
        log_ratio_error=known[1],
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=50, help="regressions to look for")
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--quiet-nights", type=int, default=5)
    parser.add_argument("--blocks", action="store_true", help="winners that are measured at settled clocks")
    arguments = parser.parse_args()
    sampling = BLOCKS if arguments.blocks else CALLS
    print(f"pages in 50 nights of noise and drift, {arguments.problems} problems:", end=" ", flush=True)
    print(pages_of_noise(0, 50, arguments.problems, sampling))
    found = [
        is_found(seed, arguments.problems, arguments.quiet_nights, sampling=sampling)
        for seed in range(arguments.seeds)
    ]
    print(f"5% regressions found by the second night, and nothing else: {sum(found)} of {arguments.seeds}")
    print(f"deciding about 1,000 entries: {decision_seconds(1000):.2f} s")


if __name__ == "__main__":
    main()
