"""Wording of advice, shared by all formats for people."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from frx_graph.advice import Advice, AutopilotSearch, Environment, TriedCandidate
from frx_graph.capture.call_site import UNKNOWN_SITE, CallSite
from frx_graph.capture.captured_graph import Phase
from frx_graph.records import Basis, Evidence, Finding, Fixability, Refusal
from frx_graph.reports.advice.grouping import group_findings
from frx_graph.reports.render.marked_text import split_lines
from frx_graph.reports.render.quantities import (
    UNKNOWN,
    drop_non_finite,
    format_byte_count,
    format_count,
    format_percent,
    format_saving,
)
from frx_graph.reports.render.source_path import shorten_path
from frx_graph.rules.rule_card import RuleCard, load_all_cards
from frx_graph.support.plain_text import clean_line

TEXT_LIMIT = 600
"""Characters of a title or of one line of evidence."""
_IN_BACKWARD = "(backward)"
"""Ends the title of a finding whose operators run in the backward."""
_NOTHING = ("nothing",)
"""Saved traffic if every copy of a finding is needed."""


def format_location(site: CallSite, root: Path) -> str:
    """Return `models/net.py:42`, printable. Without a known line, return the module, else "unknown call site"."""
    if site.file == UNKNOWN_SITE.file:
        return f"module {clean_line(site.module_path)}" if site.module_path else "unknown call site"
    file = clean_line(shorten_path(site.file, root))
    return f"{file}:{site.line}" if site.line else file


def format_place(site: CallSite, root: Path) -> str:
    """Return the location and the function."""
    function = clean_line(site.function)
    known = function and function != UNKNOWN_SITE.function
    return f"{format_location(site, root)} in {function}" if known else format_location(site, root)


def format_finding_place(finding: Finding, root: Path) -> str:
    """Return the location and the function; for operators that autograd runs, the forward's location as such."""
    if finding.title.endswith(_IN_BACKWARD) or (
        finding.copies and all(copy.phase is Phase.BACKWARD for copy in finding.copies)
    ):
        return f"backward of {format_location(finding.site, root)}"
    return format_place(finding.site, root)


def format_title(finding: Finding) -> str:
    """Return the finding's title, printable."""
    return clean_line(finding.title, TEXT_LIMIT)


@dataclass(frozen=True, slots=True)
class Impact:
    """Saving of a fix each step, as far as known: traffic, predicted or observed, and measured time.

    `traffic` is bytes, then percent of the step's traffic, or of the step's time if operators were timed; `basis` is
    predicted or observed. The finding's evidence names the time of which `time` is a part.
    """

    traffic: tuple[str, ...]
    basis: str
    time: str | None

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines for a narrow column: each number above its unit and its basis."""
        parts = (line for text in self.traffic for line in text.replace(" of ", "\nof ").split("\n"))
        written = (*parts, self.basis) if self.traffic else ()
        if self.time is not None:
            written = (*written, f"{self.time} of time", "measured")
        return written or (UNKNOWN,)

    @property
    def sentence(self) -> str:
        """The saving as the beginning of a sentence."""
        if self.traffic == _NOTHING:
            return f"nothing to save in the current program ({self.basis})"
        parts = []
        if self.traffic:
            parts.append(f"saves {' or '.join(self.traffic)} in a step ({self.basis})")
        if self.time is not None:
            parts.append(f"saves {self.time} of the time (measured)")
        return ", ".join(parts) or "saving unknown"


def describe_impact(finding: Finding) -> Impact:
    """Return the saving of a finding's fix."""
    share = format_saving(finding.saving)
    traffic = [format_byte_count(finding.bytes_per_step)] if finding.bytes_per_step is not None else []
    if finding.bytes_per_step == 0:
        return Impact(_NOTHING, finding.basis.value, None)
    if share != UNKNOWN:
        traffic.append(f"{share} of {'time' if finding.rests_on_times else 'traffic'}")
    measured = drop_non_finite(finding.saving.measured_pct)
    return Impact(tuple(traffic), finding.basis.value, None if measured is None else format_percent(measured))


def format_frequency(finding: Finding) -> str:
    """Return `4× a step`."""
    return "not in every step" if finding.count_per_step is None else f"{finding.count_per_step:,}× a step"


def format_known_count(count: int | None) -> str:
    """Return a count, or `unknown`."""
    return UNKNOWN if count is None else f"{count:,}"


def cut_fix(finding: Finding) -> str:
    """Return the first sentence of a finding's fix, on one line."""
    return join_fix(finding).partition(". ")[0].rstrip(".")


def join_fix(finding: Finding) -> str:
    """Return a finding's whole fix on one line: any part of it may be an instruction."""
    return " ".join(" ".join(split_lines(finding.fix)).split())


def describe_offer(finding: Finding) -> str:
    """Return what `frx fix` can do about a finding; empty if that is not known."""
    if finding.offer is None:
        return ""
    if finding.offer.fixability is Fixability.NOT_FIXABLE:
        return f"not fixable: {clean_line(finding.offer.reason, TEXT_LIMIT)}"
    return "fixable" if finding.offer.fixability is Fixability.FIXABLE else "fixable with --unsafe-fixes"


def explain_need(finding: Finding) -> str:
    """Return what a finding that saves nothing copies, and what would end the need for it."""
    facts = [clean_line(fact.text, TEXT_LIMIT) for fact in finding.evidence[:1]]
    return "; ".join((*facts, cut_fix(finding)))


def sort_evidence(finding: Finding) -> tuple[Evidence, ...]:
    """Return observed evidence before predicted evidence, else in the finding's own order."""
    return tuple(sorted(finding.evidence, key=lambda fact: fact.basis is not Basis.OBSERVED))


def format_evidence(fact: Evidence) -> str:
    """Return the fact with its source, and with a note if it was observed."""
    source = clean_line(fact.source)
    notes = [note for note in (source, "observed" if fact.basis is Basis.OBSERVED else "") if note]
    return f"{clean_line(fact.text, TEXT_LIMIT)} ({', '.join(notes)})" if notes else clean_line(fact.text, TEXT_LIMIT)


def describe_machine(environment: Environment) -> str:
    """Return the compiler and the device of the advice."""
    name = clean_line(environment.device_name)
    device = clean_line(environment.device)
    threads = "" if environment.threads is None else format_count(environment.threads, "thread")
    load = "peaks measured under load" if environment.calibrated_under_load else ""
    absent = "not here: its figures are documented, not measured" if environment.documented else ""
    details = ", ".join(part for part in (name, absent or threads, load) if part)
    return f"{clean_line(environment.inner)} on {device}" + (f" ({details})" if details else "")


Cards = Mapping[str, RuleCard]


def load_cards() -> Cards:
    """Return the cards of the package."""
    return {card.code: card for card in load_all_cards()}


class Outcome(enum.StrEnum):
    """The four possible outcomes of advice."""

    FINDINGS = "findings"
    CLEAN = "clean"
    PARTIAL = "partial"
    """No findings to show, but something was left alone: not judged, or hidden on request."""
    NOTHING_ANALYSED = "nothing analysed"


def classify_outcome(advice: Advice) -> Outcome:
    """Return the outcome: FINDINGS if any, else by the scanned operators and the refusals."""
    if advice.findings:
        return Outcome.FINDINGS
    if not advice.totals.ops_scanned:
        return Outcome.NOTHING_ANALYSED
    return Outcome.PARTIAL if advice.refusals else Outcome.CLEAN


def format_headline(advice: Advice) -> str:
    """Return the outcome in one sentence."""
    totals = advice.totals
    scanned = format_count(totals.ops_scanned, "operator")
    match classify_outcome(advice):
        case Outcome.NOTHING_ANALYSED:
            why = f" {format_count(len(advice.refusals), 'reason')} below." if advice.refusals else ""
            return f"Nothing was analysed: not one operator was captured.{why}"
        case Outcome.PARTIAL:
            left = format_count(len(advice.refusals), "thing")
            return f"No findings to show in {scanned}; {left} left alone, see below."
        case Outcome.CLEAN:
            return f"No findings in {scanned}."
        case Outcome.FINDINGS:
            count = format_count(len(advice.findings), "finding")
            wins = format_count(totals.quick_wins, "quick win")
            found = group_findings(advice.findings)
            idle = f", {len(found.worthless)} with nothing to do" if found.worthless else ""
            return (
                f"{count}{f' in {scanned}' if totals.ops_scanned else ''}: "
                f"{len(advice.findings) - len(found.worthless)} at {format_count(len(found.groups), 'place')}{idle}. "
                f"{wins} (one-line fix, low or medium risk)."
            )


def describe_copies(advice: Advice) -> str:
    """Return a step's predicted layout copies, their bytes and their share of the traffic."""
    totals = advice.totals
    if totals.copies_per_step is None:
        return "Layout copies are unknown"
    share = drop_non_finite(totals.bandwidth_overhead_pct)
    return (
        f"{format_count(totals.copies_per_step, 'layout copy', 'layout copies')} a step, "
        f"{format_byte_count(totals.copy_bytes_per_step)}, "
        f"{'an unknown share' if share is None else format_percent(share)} of the memory traffic"
    )


_REASON_LIMIT = 600


@dataclass(frozen=True, slots=True)
class RefusalGroup:
    """All refusals that share a reason. `subjects` are distinct and printable, each with the call site if known."""

    reason: str
    subjects: tuple[str, ...]

    def format_subjects(self, limit: int) -> str:
        """Return the first `limit` subjects, and the number of others."""
        shown = ", ".join(self.subjects[:limit])
        more = len(self.subjects) - limit
        return f"{shown} and {more} more" if more > 0 else shown


def group_refusals(refusals: Iterable[Refusal], root: Path) -> tuple[RefusalGroup, ...]:
    """Return groups in the order in which their reasons first appear."""
    subjects: dict[str, dict[str, None]] = {}
    for refusal in refusals:
        subject = clean_line(refusal.subject)
        if refusal.site is not None and refusal.site.line:
            subject = f"{subject} ({clean_line(shorten_path(refusal.site.file, root))}:{refusal.site.line})"
        subjects.setdefault(clean_line(refusal.reason, _REASON_LIMIT), {})[subject] = None
    return tuple(RefusalGroup(reason, tuple(members)) for reason, members in subjects.items())


def describe_search(search: AutopilotSearch) -> str:
    """Return the outcome of an autopilot's search, its time, and the reason for its end."""
    promoted = sum(tried.result == "promoted" for tried in search.tried)
    found = "" if search.fastest is None else f"; {clean_line(search.fastest)} is the fastest"
    outcome = f"{promoted} of {len(search.tried)} promoted after {search.seconds:.0f} s{found}"
    return f"{outcome}. End of the search: {clean_line(search.end, TEXT_LIMIT)}."


def format_tried(tried: TriedCandidate) -> str:
    """Return a line with the result of one trial, and its reason."""
    return f"{clean_line(tried.name)}: {tried.result}, {clean_line(tried.reason, TEXT_LIMIT)}"
