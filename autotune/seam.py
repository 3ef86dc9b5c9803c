"""The data that passes between the stages of a run: candidate -> job -> outcome.

Everything here is a frozen dataclass that pickles, so that a job can cross into a worker process and an outcome
can come back. The stages (search, evaluate, ledger) import this module and never each other.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Knobs = dict[str, Any]
L2State = Literal["warm", "clean", "activations_warm"]
TimerName = Literal["cupti", "chain"]
ReferenceName = Literal["none", "product", "read"]
# XLA decides once a process how to multiply, and not always well: 1024x1024x1024 took 8.3 us in one process and 6.6 us
# in another (H200, jax 0.11.2, 2026-11-30). So it is compiled in at least so many, and its fastest compilation counts.
FEWEST_COMPILATIONS = 3
# Rivals that take long to compile: raced only where they are asked for.
SLOW_RIVALS = ("exhaustive",)
FailureReason = Literal[
    "lower",  # the compiler refused to lower: a bug of the early check, since the candidate had passed it
    "compile",  # ptxas or the executable's load failed
    "launch",  # the kernel did not start or ended with a CUDA error
    "timeout",  # a limit passed; the worker was killed
    "crash",  # the worker process died
    "memory",  # operands, result or reference did not fit
    "wrong",  # ran, but the result differs from the reference
    "stray",  # ran, but wrote outside of its output
    "unwritten",  # ran, but left poison in the output
    "error",  # any other exception of the candidate's own, with its text
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureProtocol:
    """How a time was taken. Part of every record, and of the name of a study.

    "auto" is what a config may say; `autotune.protocol.resolved` turns it into one of the others, and only those are
    recorded. The defaults are what records without a field were taken with.

    Attributes:
        timer: "cupti" sums the durations of all kernels of one call. "chain" is the time of a jitted chain of
            calls on the card over their number, which counts the gaps between kernels. It times races; screening is
            always by CUPTI.
        l2: "clean": operands evicted by reads before each call; "activations_warm": weights evicted, activations
            touched after that; "warm": back to back with itself.
        inputs: "normal": independent standard normal values; "integers": uniform whole numbers from -2 to 2.
        regime: "burst": single calls on a card that rests in between; "sustained": settled clocks, blocks of at
            least 100 ms, in the order ABBA. It shapes races; screening is always a burst.
        reference: The fixed kernel that each sample of screening is paired with: "product" for what the tensor
            cores bound, "read" for what device memory bounds; "none": not paired.
        rounds: Samples of a screened candidate; a race takes at least as many in all, unless evidence ends it.
        warmup: Calls before them that are thrown away.
    """

    timer: TimerName | Literal["auto"] = "cupti"
    l2: L2State | Literal["auto"] = "clean"
    inputs: Literal["normal", "integers"] = "normal"
    regime: Literal["burst", "sustained", "auto"] = "burst"
    reference: ReferenceName = "none"
    rounds: int = 20
    warmup: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one candidate may take before its worker is killed: seconds of each step, and memory of the host.

    Attributes:
        memory_gib: Of the worker with the compilers that it started. One with a CUDA context takes about 2 GiB.
    """

    lower_s: float = 60.0
    compile_s: float = 120.0
    run_s: float = 20.0
    memory_gib: float = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A problem with one configuration, as asked for by the search and passed by the check."""

    target: str
    problem: Any
    config: Any
    device: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenJob:
    """Lower, compile, verify and measure one candidate; by the evaluator's own protocol where none is named.

    Attributes:
        binary: Names what the candidate is compiled to, but for its run-time knobs: one executable serves all jobs of
            a problem that name the same. None: it is compiled as it ships.
    """

    job_id: int
    candidate: Candidate
    protocol: MeasureProtocol | None = None
    binary: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceJob:
    """Measure several candidates and the target's rivals, interleaved round by round in one process.

    Attributes:
        candidates: The finalists, best first. May be empty: then only the rivals are measured.
        rounds: Rounds at most.
        protocol: None: the evaluator's own.
        formulations: Names of the rivals to race, "plain" among them, or none; None: all but the `SLOW_RIVALS`.
        seconds: Measuring ends in the first round after so long.
        session: Counts the processes of one race; samples are paired within a session only.
        ceilings: Also measure what the card can do: bandwidth of a copy, and flops of a large product.
        passes: How often the lanes race in this process, one time after the other. Each pass is a race of its own,
            and its entries carry `session` plus its number.
    """

    job_id: int
    problem: Any
    target: str
    candidates: tuple[Candidate, ...]
    rounds: int
    protocol: MeasureProtocol | None = None
    formulations: tuple[str, ...] | None = None
    seconds: float = 60.0
    session: int = 0
    ceilings: bool = False
    passes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmJob:
    """Run one candidate again on fresh inputs, many times on each, and hold every result against the reference.

    Attributes:
        inputs: How many different inputs; as many normal as integer-valued ones where the target has such.
        repeats: Runs on each of them, which is what finds a kernel that is wrong now and then.
    """

    job_id: int
    candidate: Candidate
    inputs: int = 20
    repeats: int = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What the card did while samples were taken. None: neither the card nor the driver tells.

    Attributes:
        card: UUID of the card.
        sm_mhz: SM clock around each batch that was kept, in their order.
        clock: Where it comes from: "spin", a kernel that counts its own cycles, or "nvml".
        power_w, temperature_c: After the last batch.
        throttle: Everything that held the clock down around some batch.
        others: Processes of others seen on the card, as text; None where NVML hides them.
        shared: Measured on a card in use by others, because the user said so.
        vetoes: Why batches were thrown away and measured again, one line each.
        unsettled: Why batches that stood out were kept, after the last repetition that was allowed.
    """

    card: str
    sm_mhz: tuple[float, ...] = ()
    clock: Literal["spin", "nvml"] | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle: tuple[str, ...] = ()
    others: tuple[str, ...] | None = None
    shared: bool = False
    vetoes: tuple[str, ...] = ()
    unsettled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """GPU time of one candidate. Every sample is kept, so that a report can judge the noise.

    Attributes:
        samples_us: Of one call each, in order, after warm-up: all its kernels summed, or its share of a chain or
            of a block.
        reference_us: The fixed kernel's time beside each sample; empty where samples were not paired.
        reference_nominal_us: What that kernel takes on a cool H200.
        joules: Energy of one call by the card's own counter, over all sustained blocks; None: not measured.
    """

    samples_us: tuple[float, ...]
    l2: L2State
    reference_us: tuple[float, ...] = ()
    reference_nominal_us: float = 1.0
    joules: float | None = None

    @property
    def median_us(self) -> float:
        return statistics.median(self.samples_us)

    @property
    def paired_us(self) -> tuple[float, ...]:
        """The samples with the card's drift divided out: as if the fixed kernel had taken its nominal time."""
        return paired_us(self.samples_us, self.reference_us, self.reference_nominal_us)

    @property
    def score_us(self) -> float:
        """The median by which candidates are compared with each other."""
        return statistics.median(self.paired_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """What lowering and compiling a candidate gave.

    Attributes:
        digest: SHA-256 of the lowered module's text, first 32 hex digits; with `shares_binary` of that and of the
            values of its run-time knobs.
        smem_bytes: Dynamic shared memory of one CTA; None where the target does not report it.
        lower_s, compile_s: Wall time of each step; compile_s is None where it was not compiled. Both are 0 where an
            executable served that another candidate was compiled to.
        shares_binary: Its run-time knobs were an operand, and not compiled in as they are in what ships.
    """

    digest: str
    smem_bytes: int | None = None
    lower_s: float
    compile_s: float | None = None
    shares_binary: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A candidate that ran, was right, and was timed.

    Attributes:
        error: ||out - reference|| / ||reference|| in float32.
        poisoned: Whether the output buffer provably held NaN before the verified call.
        guarded: Whether it provably lay between buffers whose bytes were found unchanged afterwards.
        exact: Whether an integer-valued product was right in every bit; None where the target has none.
        conditions: What the card did meanwhile; None where nobody watched.
        duplicate_of: Job whose identical lowered module was measured instead; None when measured itself.
        locked_s: How long the card's lock was held for verifying and measuring; None in older records.
        held_s: The same by what was done, see `evaluate.heldtime`; None in older records.
    """

    lowered: Lowered
    timing: Timing
    error: float | None = None
    poisoned: bool = False
    guarded: bool = False
    exact: bool | None = None
    conditions: Conditions | None = None
    duplicate_of: int | None = None
    locked_s: float | None = None
    held_s: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """A candidate that was right in every run on fresh inputs.

    Attributes:
        runs: How many there were.
        error: The largest relative error among the normal inputs.
        exact_runs: Runs on integer-valued inputs, right in every bit.
    """

    runs: int
    error: float
    exact_runs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredOnly:
    """What the evaluator `lower` gives: the candidate lowers, nothing is known of its time."""

    lowered: Lowered
    duplicate_of: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A candidate that did not survive. Never a time, never infinity."""

    reason: FailureReason
    detail: str  # one line: exception type and text, exit signal, error figure, or the limit that passed
    lowered: Lowered | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceEntry:
    """One lane of a race: a finalist (its index in RaceJob.candidates) or a rival (None)."""

    finalist: int | None
    result: Measured | Failed
    formulation: str | None = None  # of the rival, such as "plain"
    session: int = 0  # process of the race; samples are paired within one


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """All lanes of one race; samples of a session with the same index were taken in the same round.

    A lane that fell behind early has fewer samples than the others.

    Attributes:
        ceilings: "copy_bytes_per_s" and "product_flops_per_s" of the card in the same run, where asked for.
    """

    entries: tuple[RaceEntry, ...]
    ceilings: Mapping[str, float] | None = None
    conditions: Conditions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a job."""

    job_id: int
    result: Measured | LoweredOnly | Failed | Race | Confirmed


class Evaluator(Protocol):
    """The one seam behind "lower, compile, verify, measure": gpu, replay and lower implement it.

    `submit` never blocks; `poll` waits up to `timeout_s` for at least one outcome and returns all that are ready.
    Each submitted job ends in exactly one outcome, unless `close` is called first. `close` ends all workers.
    """

    kind: Literal["gpu", "replay", "lower"]
    capacity: int  # jobs worth keeping in flight

    def submit(self, job: ScreenJob | RaceJob | ConfirmJob) -> None: ...

    def poll(self, timeout_s: float) -> Sequence[Outcome]: ...

    def close(self) -> None: ...


def paired_us(
    samples_us: Sequence[float], reference_us: Sequence[float], nominal_us: float
) -> tuple[float, ...]:
    """Returns samples as if the fixed kernel beside each had taken `nominal_us`; without such a kernel as they are."""
    if not reference_us:
        return tuple(samples_us)
    return tuple(own * nominal_us / ref for own, ref in zip(samples_us, reference_us, strict=True))


def combined(several: Sequence[Conditions | None]) -> Conditions | None:
    """Returns what the card did over several jobs as one, in their order; None where nobody watched any of them."""
    known = [each for each in several if each is not None]
    if len(known) < 2:
        return known[0] if known else None
    lists = {name: [getattr(each, name) for each in known] for name in ("sm_mhz", "vetoes", "unsettled")}
    sets = {name: [getattr(each, name) for each in known] for name in ("throttle", "others")}
    return dataclasses.replace(
        known[-1],
        **{name: tuple(one for each in values for one in each) for name, values in lists.items()},
        # A list of processes that was hidden once says nothing of the whole.
        **{
            name: None if None in values else tuple(dict.fromkeys(one for each in values for one in each))
            for name, values in sets.items()
        },
        shared=any(each.shared for each in known),
    )


def to_json(record: Any) -> dict[str, Any]:
    """Returns a frozen dataclass of this module as plain JSON-able data."""
    return dataclasses.asdict(record)
