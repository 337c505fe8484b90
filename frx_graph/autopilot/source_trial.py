"""Try a change of the source: the target as it is against the target with changed files."""

from __future__ import annotations

import contextlib
import enum
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from frx_graph.support.allocator import may_pool
from frx_graph.trial_worker.launch import open_warm_arms
from frx_graph.trials.arm_messages import Load, TargetWorkload
from frx_graph.trials.executor import run_trial
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.process_pairs import Programs, Progress
from frx_graph.trials.protocol import make_protocol
from frx_graph.trials.trial_run import Gate, TrialRun
from frx_graph.trials.verdict import Outcome, format_gain, format_range

_WHEN_BUSY = "use frx fix --ignore-load"


class Speed(enum.StrEnum):
    """The changed program beside the one before."""

    FASTER = "faster"
    AS_FAST = "as fast, as far as can be measured"
    """No slower by the policy's minimum in the middle, and no loss is proved. A change of the source needs no gain: it
    stays readable, and asks for no copy. A rewrite that is applied in a running program does."""
    SLOWER = "slower"
    UNKNOWN = "unknown"
    """It was not measured, or too little."""


@dataclass(frozen=True, slots=True)
class SourceTrial:
    """The trial of a change of the source, under a policy."""

    run: TrialRun
    policy: TrialPolicy

    @property
    def proves(self) -> bool:
        """True if the changed program passed every gate, and is not slower."""
        return self.speed in (Speed.FASTER, Speed.AS_FAST)

    @property
    def is_open(self) -> bool:
        """True if the machine was too busy, or the time too short."""
        return self.speed is Speed.UNKNOWN and self.run.verdict.outcome is Outcome.INCONCLUSIVE

    @property
    def speed(self) -> Speed:
        """The measured speed; unknown for a program that failed at a gate."""
        verdict, found = self.run.verdict, self.run.verdict.statistics
        check = self.run.check
        if found is None or not _passed_gates(self.run) or (check is not None and check.failure):
            return Speed.UNKNOWN
        if check is not None and check.proves_loss(make_protocol(self.policy)):
            return Speed.SLOWER
        if verdict.outcome is Outcome.PROMOTE:
            return Speed.FASTER
        if verdict.outcome is Outcome.INCONCLUSIVE and found.quads < _count_rounds(self.policy):
            return Speed.UNKNOWN
        near = found.ratio_median >= 1 - self.policy.minimum_speedup and found.ci_high >= 1
        return Speed.AS_FAST if near or verdict.outcome is Outcome.EQUIVALENT else Speed.SLOWER

    @property
    def kernels(self) -> str:
        """The kernels that one step runs more or less often than before, as observed; empty if it was not observed."""
        return next((gate.detail for gate in self.run.gates if gate.name is Gate.KERNELS and gate.passed), "")

    @property
    def reason(self) -> str:
        """The finding that decided, in a line for people."""
        found = self.run.verdict.statistics
        if found is None or self.speed is Speed.UNKNOWN:
            return self.run.reason
        numbers = f"{format_gain(found.ratio_median)} ({format_range(found.ci_low, found.ci_high)})"
        return f"the same results, and {self.speed}: {numbers}{self.run.describe_check()}"


def _passed_gates(run: TrialRun) -> bool:
    return all(gate.passed is not False for gate in run.gates if gate.name is not Gate.THROUGHPUT)


def _count_rounds(policy: TrialPolicy) -> int:
    return policy.process_pairs * policy.quads_per_pair


def try_change(
    workload: TargetWorkload,
    changed: Mapping[Path, bytes],
    policy: TrialPolicy,
    progress: Progress,
    *,
    train: bool,
    inner: str,
    candidates: int = 1,
    ignore_load: bool = False,
) -> SourceTrial:
    """Run the trial of the target with `changed` files against the target as it is. No file of the user is touched.
    With `inner` "eager" both run without a compiler, but for what the source compiles by itself. `candidates` is the
    number of trials of this target. Raises `TrialError` if the target does not run as it is."""
    base = Load(workload, train, inner, policy.seed, pool=may_pool(), plain=inner == "eager")
    with _write_overlay(changed) as overlay, open_warm_arms() as arms:
        programs = Programs(base, replace(base, workload=replace(workload, overlay=overlay)))
        run = run_trial(
            programs,
            policy,
            arms.start,
            candidates=candidates,
            ignore_load=ignore_load,
            when_busy=_WHEN_BUSY,
            progress=progress,
        )
        return SourceTrial(run, policy)


@contextlib.contextmanager
def _write_overlay(changed: Mapping[Path, bytes]) -> Iterator[tuple[tuple[str, str], ...]]:
    """Write the changed files to a folder, and yield each original with its replacement."""
    with tempfile.TemporaryDirectory(prefix="frx-graph-") as folder:
        pairs = []
        for number, (path, data) in enumerate(changed.items()):
            other = Path(folder) / f"{number}.py"
            other.write_bytes(data)
            pairs.append((str(path), str(other)))
        yield tuple(pairs)
