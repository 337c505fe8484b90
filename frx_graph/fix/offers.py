"""Say for each finding whether its source can be changed, and how."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from frx_graph.capture.call_site import CallSite
from frx_graph.errors import summarize_error
from frx_graph.fix.fixer import Fixer, FixSubject, OtherFixerError, SourceFiles
from frx_graph.fix.fixers import FIXERS
from frx_graph.fix.source_change import format_hunks
from frx_graph.fix.source_file import CannotFixError, apply_edits
from frx_graph.passes.analysis import Analysis
from frx_graph.passes.copies.copy_findings import group_copies
from frx_graph.passes.copies.copy_necessity import Verdict, judge_copies
from frx_graph.passes.detectors.contiguous_churn import RULE as CONTIGUOUS_CHURN
from frx_graph.records import Copy, Finding, Fixability, FixOffer, SourceEdit

_NO_FIXER = "no fixer changes this kind of finding"
_ELSEWHERE = {
    "FRX001": "the operator copies inside: what it reads would have to be made in other strides",
    "FRX005": "a larger batch or a narrower dtype moves fewer bytes, not another line",
    "FRX006": "callers pass other strides: `pin_strides` of frx_graph.compile copies inputs to those of the first call",
    "FRX007": "weights are packed where the program is compiled: `freeze` of frx_graph.compile does it",
    "FRX009": "it goes away where the program is compiled, not where it is written",
    "FRX014": "what differs between calls decides, and one call does not show it",
    "FRX018": "the allocator is chosen where the program starts: `frx trial --candidate pooled_allocation` tries it",
}
"""Why no line of the model's source fixes findings of these rules."""


def offer_fixes(
    findings: Sequence[Finding],
    analyses: Mapping[str, Analysis],
    forwards: Mapping[str, CallSite] | None = None,
    builder: CallSite | None = None,
    fixers: Sequence[Fixer] = FIXERS,
) -> tuple[Finding, ...]:
    """Return the findings with what can be done to their source. `analyses` are by `graph_id`, `forwards`
    has each module's `forward` by the module's path, and `builder` is the function that builds the model. No file is
    changed.

    Findings of one rule at one place, in several graphs, are fixable if the same edits fix each of them.
    """
    files = SourceFiles()
    judges = {name: cache(partial(_judge_graph, analysis)) for name, analysis in analyses.items()}
    offers = [
        _make_offer(
            FixSubject(one, analyses[one.graph_id], files, judges[one.graph_id], forwards or {}, builder), fixers
        )
        for one in findings
    ]
    by_place: dict[object, list[FixOffer]] = defaultdict(list)
    for finding, offer in zip(findings, offers, strict=True):
        by_place[finding.rule, finding.site.place].append(offer)
    return tuple(
        replace(finding, offer=_agree(offer, by_place[finding.rule, finding.site.place]))
        for finding, offer in zip(findings, offers, strict=True)
    )


def _judge_graph(analysis: Analysis) -> Mapping[Copy, Verdict]:
    """Judge all copies together, as rule FRX002 does: one may make another needless."""
    copies = tuple(copy for group in group_copies(analysis, CONTIGUOUS_CHURN) for copy in group.copies)
    return dict(zip(copies, judge_copies(analysis, copies), strict=True))


def _agree(offer: FixOffer, others: Sequence[FixOffer]) -> FixOffer:
    if all(other.edits == offer.edits for other in others):
        return offer
    reason = next((other.reason for other in others if not other.edits), "another graph needs another change")
    return FixOffer(Fixability.NOT_FIXABLE, f"in another graph: {reason}")


def _make_offer(subject: FixSubject, fixers: Sequence[Fixer]) -> FixOffer:
    reason = _ELSEWHERE.get(subject.finding.rule, _NO_FIXER)
    for fixer in fixers:
        if fixer.rule != subject.finding.rule:
            continue
        try:
            edits = sorted(set(fixer.propose(subject)), key=lambda edit: (edit.file, edit.start))
            return _check_edits(subject, fixer, tuple(edits))
        except OtherFixerError:
            continue
        except CannotFixError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - the advice is valid without it
            reason = f"{fixer.name} failed: {summarize_error(error)}"
    return FixOffer(Fixability.NOT_FIXABLE, reason)


def _check_edits(subject: FixSubject, fixer: Fixer, edits: tuple[SourceEdit, ...]) -> FixOffer:
    """Make the edits in memory, and return them with their diff. Raises `CannotFixError`."""
    hunks = []
    for file in dict.fromkeys(edit.file for edit in edits):
        data = subject.files.get(file).script.data
        changed = apply_edits(data, [edit for edit in edits if edit.file == file])
        if changed == data:
            raise CannotFixError("the change would change nothing")
        hunks.append(format_hunks(data, changed))
    fixability = Fixability.UNSAFE if fixer.unsafe else Fixability.FIXABLE
    return FixOffer(fixability, edits=edits, diff="".join(hunks), fixer=fixer.name)
