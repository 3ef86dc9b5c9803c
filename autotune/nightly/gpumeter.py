"""A night's measuring on a card: sentinels in their own process, races by the evaluator, tuning by the driver."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autotune import machine
from autotune.choice import choose
from autotune.driver import run as drive
from autotune.errors import AutotuneError
from autotune.evaluate import make_evaluator
from autotune.evaluate.child_environment import worker_environment
from autotune.evaluate.gpulock import lock_path
from autotune.health import GpuHealthError, gpu_health, unfit_reason
from autotune.nightly.config import NightConfig
from autotune.nightly.meter import Check, UnfitError
from autotune.nightly.profile import Profile
from autotune.nightly.raced import PLAIN, detail_of, formulation_of, is_complete, rival_of, seen_of
from autotune.nightly.values import Machine, Seen
from autotune.nightly.verifyjob import RacedBefore, Verified, VerifyJob
from autotune.problemlist import WeightedProblem
from autotune.progress import make_progress
from autotune.protocol import stored_protocol
from autotune.result import ProblemResult
from autotune.seam import Candidate, Evaluator, Measured, MeasureProtocol, RaceJob
from autotune.search import make_searcher
from autotune.stages import Stages
from autotune.target import load_target

SENTINEL_LIMIT_S = 180.0
# Of measuring one winner in one process. Samples by CUPTI and of chains take a fraction of it; of blocks at settled
# clocks, 0.2 s a pair, it admits six.
RACE_SECONDS = 1.0
SENTINEL_SECONDS = 6.0
DOT_FIELDS = {"m": 4096, "n": 4096, "k": 4096}
DOT_ROUNDS = 40
SETTLE_ATTEMPTS, SETTLE_S = 10, 1.0


class SentinelError(AutotuneError):
    """A sentinel could not be measured, so nothing can be said of tonight's machine."""


class GpuMeter:
    """A `NightMeter` on the first GPU that the run config admits. Close it to end its workers.

    Raises:
        UnfitError: The driver lists no Hopper GPU.
        InputError: None of them fits the config, or jax has no CUDA plugin.
    """

    def __init__(self, config: NightConfig) -> None:
        self._config = config.run
        self._target = load_target(config.run.target)
        if not machine.hopper_gpus():
            raise UnfitError("there is no Hopper GPU here, or the driver does not answer")
        choice = choose(config.run, self._target)
        assert choice.gpu is not None
        self.device, self._gpu, self.why = choice.device, choice.gpu, choice.why
        self.toolchain = machine.toolchain()
        self.machine = Machine(
            card=choice.gpu.uuid,
            kind=choice.gpu.kind,
            power_limit_w=choice.gpu.power_limit_w,
            driver=choice.gpu.driver,
            jax=self.toolchain.jax,
            jaxlib=self.toolchain.jaxlib,
        )
        self.profile = Profile()
        self._evaluator: Evaluator | None = None
        self._job_ids = itertools.count()

    @property
    def gpu_s(self) -> float:
        return self.profile.wall_s.total()

    def unfit(self) -> str | None:
        """See `NightMeter`; what nobody is named for may be a left-over that goes away, and gets seconds to."""
        try:
            health = gpu_health(self._gpu.index)
            for _ in range(SETTLE_ATTEMPTS):
                if health.others or unfit_reason(health) is None:
                    break
                time.sleep(SETTLE_S)
                health = gpu_health(self._gpu.index)
        except GpuHealthError as error:
            return str(error)
        why = unfit_reason(health)
        return None if why is None else f"GPU {self._gpu.index} ({self._gpu.uuid}): {why}"

    def sentinels(self) -> dict[str, float]:
        with self.profile.timed("sentinels"):
            found = self._driver_sentinels()
            problem = self._target.problem_from_fields(DOT_FIELDS)
            race = RaceJob(
                job_id=next(self._job_ids),
                problem=problem,
                target=self._target.name,
                candidates=(),
                rounds=DOT_ROUNDS,
                protocol=_plain_protocol(DOT_ROUNDS),
                formulations=(PLAIN,),
                seconds=SENTINEL_SECONDS,
            )
            began_s = time.monotonic()
            result = self._verified(VerifyJob(race=race))
            passed_s = time.monotonic() - began_s
        rival = rival_of(result.race, PLAIN) if isinstance(result, Verified) else result
        if not isinstance(rival, Measured):
            raise SentinelError(
                f"XLA's dot of {problem.describe()} could not be measured: {detail_of(rival)}"
            )
        start_s = max(0.0, passed_s - sum(result.seconds.values()))
        self.profile.wall_s.update(start=start_s, sentinels=-start_s)
        return {**found, "xla_dot": rival.timing.median_us}

    def verify(self, checks: Sequence[Check], rounds: int) -> Iterator[tuple[str, Seen]]:
        """See `NightMeter`; while one worker measures, the others lower and compile."""
        waiting: deque[tuple[Check, RaceJob | VerifyJob]] = deque(
            (check, VerifyJob(race=self._race(check, rounds, (formulation_of(check.entry),))))
            for check in checks
        )
        in_flight: dict[int, tuple[Check, RaceJob | VerifyJob]] = {}
        with self.profile.timed("verify"):
            evaluator = self._running()
            try:
                while waiting or in_flight:
                    while waiting and len(in_flight) < evaluator.capacity:
                        check, job = waiting.popleft()
                        in_flight[job.job_id] = check, job
                        evaluator.submit(job)
                    for outcome in evaluator.poll(0.25):
                        if outcome.job_id not in in_flight:
                            continue
                        check, job = in_flight.pop(outcome.job_id)
                        again = self._again(check, job, outcome.result, rounds)
                        if again is not None:
                            waiting.append((check, again))
                            continue
                        yield check.key, self._counted(outcome.result, check)
            finally:
                if in_flight:  # the night is over, or was interrupted: what runs is not wanted any more
                    self._stop()

    def retune(
        self,
        problem: Any,
        weight: float,
        incumbent: Mapping[str, Any] | None,
        space: Mapping[str, tuple[Any, ...]],
        *,
        fresh: bool,
        seconds: float,
    ) -> ProblemResult:
        self._stop()  # its workers hold memory of the card
        search = dataclasses.replace(self._config.search, seconds=seconds)
        weighted = WeightedProblem(problem=problem, weight=weight)
        config = dataclasses.replace(self._config, problems=(weighted,), space=dict(space), search=search)

        def searcher(settings: Any, full: Any, defaults: list[Any]) -> Any:
            known = incumbent and all(incumbent.get(name) in values for name, values in full.knobs.items())
            return make_searcher(settings, full, [dict(incumbent), *defaults] if known else defaults)

        stages = Stages(
            target=self._target,
            evaluator=self._evaluator_for(self._config.protocol),
            progress=make_progress(),
            toolchain=dataclasses.asdict(self.toolchain),
            make_searcher=searcher,
        )
        with self.profile.timed("retune"):
            return drive(config, self.device, stages, fresh=fresh).problems[0]

    def close(self) -> None:
        self._stop()

    def _driver_sentinels(self) -> dict[str, float]:
        command = [sys.executable, "-m", "autotune.nightly.sentinel_process", str(lock_path(self._gpu.uuid))]
        environment = worker_environment(gpu_uuid=self._gpu.uuid)
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=SENTINEL_LIMIT_S
            )
        except subprocess.TimeoutExpired:
            raise SentinelError(f"the fixed kernel and the copy took over {SENTINEL_LIMIT_S:g} s") from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise SentinelError(f"the fixed kernel and the copy could not be measured: {last}")
        return {name: float(time_us) for name, time_us in json.loads(done.stdout).items()}

    def _again(
        self, check: Check, job: RaceJob | VerifyJob, result: Any, rounds: int
    ) -> RaceJob | VerifyJob | None:
        """Returns what to run where `result` says nothing yet of the winner; None where it does.

        What failed in a process that served others, other than by a fault of its own, is raced in a process of its
        own, beside XLA's plain formulation as well.
        """
        if isinstance(result, RacedBefore):
            return VerifyJob(race=dataclasses.replace(job.race, job_id=next(self._job_ids)))
        if isinstance(job, RaceJob) or (isinstance(result, Verified) and is_complete(result.race)):
            return None
        return self._race(check, rounds, tuple(dict.fromkeys((PLAIN, formulation_of(check.entry)))))

    def _counted(self, result: Any, check: Check) -> Seen:
        if not isinstance(result, Verified):
            self.profile.races["own"] += 1
            return seen_of(result, check)
        self.profile.races["shared"] += 1
        self.profile.add(result.seconds)
        return seen_of(result.race, check)

    def _verified(self, job: VerifyJob) -> Any:
        """Returns the end of a job that runs alone."""
        evaluator = self._running()
        while True:
            evaluator.submit(job)
            result = _first(evaluator)
            if not isinstance(result, RacedBefore):
                return result

    def _race(self, check: Check, rounds: int, formulations: tuple[str, ...]) -> RaceJob:
        entry = check.entry
        candidate = Candidate(
            target=entry.target, problem=entry.problem, config=entry.config, device=self.device
        )
        return RaceJob(
            job_id=next(self._job_ids),
            problem=entry.problem,
            target=entry.target,
            candidates=() if entry.config is None else (candidate,),
            rounds=rounds,
            protocol=dataclasses.replace(stored_protocol(entry.protocol), rounds=rounds),
            formulations=formulations,
            seconds=RACE_SECONDS,
        )

    def _running(self) -> Evaluator:
        if self._evaluator is None:
            self._evaluator = self._evaluator_for(_plain_protocol(self._config.protocol.rounds))
        return self._evaluator

    def _evaluator_for(self, protocol: MeasureProtocol) -> Evaluator:
        return make_evaluator(
            "gpu",
            protocol=protocol,
            limits=self._config.limits,
            target_name=self._target.name,
            device=self.device,
            gpu=self._gpu,
            seed=self._config.search.seed,
        )

    def _stop(self) -> None:
        if self._evaluator is not None:
            self._evaluator.close()
            self._evaluator = None


def _plain_protocol(rounds: int) -> MeasureProtocol:
    return MeasureProtocol(timer="cupti", l2="clean", rounds=rounds)


def _first(evaluator: Evaluator) -> Any:
    while True:
        for outcome in evaluator.poll(0.25):
            return outcome.result
