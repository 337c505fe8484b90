"""Build the jobs of `frx trial` from its options, run them, and record their results."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from frx_graph.advisor.target import check_spelling
from frx_graph.autopilot.target_trial import TargetTrial, TrialJob, UntriedTarget, build_matrix
from frx_graph.cli.options.placement import check_device, check_dtype, parse_shape
from frx_graph.cli.printing.output import print_notice
from frx_graph.cli.trial_advice import suggest_next
from frx_graph.cli.trial_record import PromotedTrial, promote_fastest_again, record_trial
from frx_graph.engines.engine import Engine, JobResult
from frx_graph.errors import FrxError, LedgerError, OptionError
from frx_graph.ledger.location import Location
from frx_graph.options import PLANNED, check_inner
from frx_graph.reports.trials.trial_document import MatrixEntry, TrialDocument
from frx_graph.support.plain_text import clean_line
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.process_pairs import Progress


def build_jobs(
    targets: Sequence[str],
    shapes: Sequence[str],
    dtypes: Sequence[str],
    candidates: Sequence[str | None],
    *,
    device: str | None,
    train: bool,
    inner: str,
    against_itself: bool,
    policy: TrialPolicy,
    ignore_load: bool,
    here: bool,
) -> tuple[TrialJob, ...]:
    """Return a job for each combination. `here`: they run in this machine's processes. Raises `OptionError` and
    `TargetError`."""
    check_inner(inner)
    if inner not in PLANNED:
        raise OptionError(f"--inner {inner} takes no plan", f"take one of {', '.join(sorted(PLANNED))}")
    for name in dtypes:
        check_dtype(name)
    if here:
        for target in targets:
            check_spelling(target)
        check_device(device)
    elif device not in (None, "cpu", "cuda"):
        raise OptionError(f"--device {device} on a Ray cluster", "cpu or cuda: Ray chooses the GPU of a node")
    return build_matrix(
        targets,
        [parse_shape(text) for text in shapes],
        dtypes,
        candidates,
        device=device,
        train=train,
        inner=inner,
        against_itself=against_itself,
        policy=policy,
        ignore_load=ignore_load,
    )


def _describe_untried(document: TrialDocument) -> str:
    advice = suggest_next(document)
    return f"{document.reason}. Next: {advice}" if advice else document.reason


class TrialResults:
    """Results of the jobs so far; each is recorded at once."""

    def __init__(self, jobs: Sequence[TrialJob], place: Location) -> None:
        self._jobs = jobs
        self._place = place
        self._errors: list[FrxError] = []
        self._failed: dict[int, FrxError] = {}
        self._documents: dict[int, TrialDocument] = {}
        self._promoted: list[PromotedTrial] = []
        self.good: list[bool] = []
        """One entry per finished job: True if it was promoted, or had nothing to try and computes the same as eager."""
        self.untried: set[int] = set()
        """Jobs with nothing to try."""

    def record_all(self, engine: Engine, progress: Progress) -> None:
        """Run the jobs in `engine`, and record each as it ends."""
        with contextlib.closing(engine.run(self._jobs, progress)) as finished:
            try:
                for one in finished:
                    self._record_result(one)
            finally:
                # Also after an interrupt: plans promoted so far stay.
                self._promote_fastest()

    def _record_result(self, one: JobResult[TargetTrial | UntriedTarget]) -> None:
        """Record the result of one job in the ledger."""
        if isinstance(one.result, FrxError):
            self._failed[one.number] = one.result
            if len(self._jobs) > 1:
                self._print_end(one.number, f"error, {one.result}")
            return
        record = record_trial(one.result, self._jobs[one.number], self._place, one.placed)
        self._documents[one.number] = record.document
        if isinstance(one.result, UntriedTarget):
            self.untried.add(one.number)
            self.good.append(not one.result.compared.departure)
            self._print_end(one.number, _describe_untried(record.document))
        else:
            self.good.append(one.result.promotes)
            if len(self._jobs) > 1:
                self._print_end(one.number, f"{record.document.verdict}, {record.document.reason}")
        self._promoted += [PromotedTrial(one.number, made, ratio) for made, ratio in record.promoted]
        if record.error is not None:
            self._errors.append(record.error)

    def _print_end(self, number: int, text: str) -> None:
        """Print how a job ended, for those who wait for the others."""
        print_notice(clean_line(f"{self._jobs[number].label}: {text}", 1000))

    def _promote_fastest(self) -> None:
        """Promote the fastest plan again, for each graph that several plans were promoted for."""
        try:
            for number, note in promote_fastest_again(self._promoted, self._place):
                document = self._documents[number]
                update = {"decision": f"{document.decision}, {note}"}
                self._documents[number] = document.model_copy(update=update)
        except LedgerError as error:
            self._errors.append(error)

    @property
    def only(self) -> TrialDocument:
        """Document of the only job. Raises the error of a job that failed."""
        for error in self._failed.values():
            raise error
        return self._documents[0]

    @property
    def entries(self) -> tuple[MatrixEntry, ...]:
        """One entry per job, in their order."""
        return tuple(
            MatrixEntry(
                target=job.asked.workload.target,
                shape=dict(job.asked.workload.shape),
                dtype=job.asked.workload.dtype,
                candidate=job.asked.candidate,
                trial=self._documents.get(number),
                error=str(self._failed[number]) if number in self._failed else None,
            )
            for number, job in enumerate(self._jobs)
        )

    def raise_errors(self) -> None:
        """Raise the first error of a trial that failed or was not recorded."""
        for error in (*self._errors, *self._failed.values()):
            raise error
