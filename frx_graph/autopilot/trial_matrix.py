"""Which trials a matrix of targets, shapes, types and candidates consists of, and each as a job for an engine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.autopilot.target_trial import Asked, Tried, try_target
from frx_graph.engines.engine import Progress
from frx_graph.reports.trials.trial_report import shape_text
from frx_graph.trials.arm_messages import TargetWorkload
from frx_graph.trials.policy import TrialPolicy


@dataclass(frozen=True, slots=True)
class TrialJob:
    """One trial of a target: a `Job`."""

    asked: Asked
    policy: TrialPolicy

    @property
    def label(self) -> str:
        """Its place in the matrix."""
        workload = self.asked.workload
        named = (workload.target, shape_text(dict(workload.shape)), workload.dtype, self.asked.candidate)
        return " ".join(filter(None, named))

    def __call__(self, progress: Progress) -> Tried | None:
        """As `try_target` says."""
        return try_target(self.asked, self.policy, progress)


def matrix(
    targets: Sequence[str],
    shapes: Sequence[tuple[tuple[str, int], ...]],
    dtypes: Sequence[str | None],
    candidates: Sequence[str | None],
    *,
    device: str | None,
    train: bool,
    inner: str,
    against_itself: bool,
    policy: TrialPolicy,
) -> tuple[TrialJob, ...]:
    """All of targets, shapes, types and candidates, each with each; what is there twice counts once. Each has the
    policy's time budget for itself. No shapes, types and candidates are the target's own, and all candidates together.
    """
    tried = tuple(dict.fromkeys(candidates)) or (None,)
    return tuple(
        TrialJob(
            Asked(TargetWorkload(target, device, dtype, shape), train, inner, candidate, against_itself, len(tried)),
            policy,
        )
        for target, shape, dtype, candidate in itertools.product(
            dict.fromkeys(targets), dict.fromkeys(shapes or ((),)), dict.fromkeys(dtypes or (None,)), tried
        )
    )
