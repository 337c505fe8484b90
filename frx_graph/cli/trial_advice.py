"""Suggest what to do after a trial."""

from __future__ import annotations

from frx_graph.autopilot.proposals import group_by_portion
from frx_graph.passes.inner_choice import FROZEN_INDUCTOR
from frx_graph.reports.trials.trial_document import TrialDocument
from frx_graph.support.allocator import Allocation
from frx_graph.support.plain_text import clean_line

_APPLY = 'torch.compile(model, backend="frx") applies it in your program; frx_graph.rewritten() lists what it changed'
_APPLY_POOLED = (
    'it is proved for processes that pool their memory only: torch.compile(model, backend="frx", '
    'options={"pool_allocations": True}) applies it there'
)
_FREEZE = "--frozen also tries weights as constants"
_REPORT = "keep this program in eager, and report its compiler's fault to PyTorch"
_NARROW = "; --inner aot_eager tells whether it is Inductor's own or that of an operator's decomposition"
_MEASURE_MORE = "run it again when the machine is idle, or raise extra_process_pairs in the policy (--policy)"


def suggest_next(document: TrialDocument) -> str:
    """Return advice in one line; empty if the reason for the verdict has it already, or there is nothing to do."""
    if document.departure:
        return _REPORT + (_NARROW if document.arms[0].inner == "inductor" else "")
    if document.verdict == "promote":
        check = document.check
        own = check is None or check.allocation is Allocation.POOLED or check.verdict == "promote"
        apply = _APPLY if own else _APPLY_POOLED
        return f"{apply}; {_FREEZE}" if _may_freeze(document) else apply
    if len(document.arms) == 1:
        # There was nothing to try.
        return _FREEZE if _may_freeze(document) else ""
    if document.verdict == "inconclusive":
        policy, stats = document.policy, document.stats
        whole = stats is not None and stats.quads >= policy.process_pairs * policy.quads_per_pair
        return _MEASURE_MORE if whole else ""
    names = group_by_portion(document.arms[-1].candidates)
    if not names:
        # The baseline was tried against itself.
        return ""
    if len(names) == 1:
        return _FREEZE if _may_freeze(document) else ""
    options = " ".join(f"--candidate {clean_line(name, 60)}" for name in names)
    return f"try each change by itself, by adding {options} to the command"


def _may_freeze(document: TrialDocument) -> bool:
    """Return True if constant weights, which were not tried, may help."""
    tried = {name for candidate in document.arms[-1].candidates for name in candidate.choices}
    return not document.train and document.arms[0].inner == "inductor" and not tried.intersection(FROZEN_INDUCTOR)
