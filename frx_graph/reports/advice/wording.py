"""The words for a finding that every format for people shares: where it is, how often, what stands behind it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from frx_graph.advice import Environment
from frx_graph.capture.call_site import UNKNOWN_SITE, CallSite
from frx_graph.records import Basis, Evidence, Finding
from frx_graph.reports.render.plain_text import one_line
from frx_graph.reports.render.quantities import UNKNOWN, byte_count, finite, percent, plural, predicted
from frx_graph.reports.render.source_path import short_path

TEXT_LIMIT = 600
"""Characters of a title or of one line of evidence."""
_NOTHING = ("nothing",)
"""The traffic that is saved where every copy of a finding is needed."""


def location(site: CallSite, root: Path) -> str:
    """`models/net.py:42`, printable; without a known line the module, and "unknown call site" without either."""
    if site.file == UNKNOWN_SITE.file:
        return f"module {one_line(site.module_path)}" if site.module_path else "unknown call site"
    file = one_line(short_path(site.file, root))
    return f"{file}:{site.line}" if site.line else file


def place(site: CallSite, root: Path) -> str:
    """The location and the function."""
    function = one_line(site.function)
    known = function and function != UNKNOWN_SITE.function
    return f"{location(site, root)} in {function}" if known else location(site, root)


def title(finding: Finding) -> str:
    """The finding's title, printable."""
    return one_line(finding.title, TEXT_LIMIT)


@dataclass(frozen=True, slots=True)
class Impact:
    """What a fix saves each step, as far as known: traffic, predicted or observed, and time, which is measured.

    `traffic` is bytes, then percent of the step's; `basis` is what they rest on. The evidence of the finding says which
    time `time` is a part of.
    """

    traffic: tuple[str, ...]
    basis: str
    time: str | None

    @property
    def lines(self) -> tuple[str, ...]:
        """For a narrow column: each number above what it rests on."""
        written = (*self.traffic, self.basis) if self.traffic else ()
        if self.time is not None:
            written = (*written, f"{self.time} of time", "measured")
        return written or (UNKNOWN,)

    @property
    def sentence(self) -> str:
        """As the beginning of a sentence."""
        if self.traffic == _NOTHING:
            return f"nothing to save as the program stands ({self.basis})"
        parts = []
        if self.traffic:
            parts.append(f"saves {' or '.join(self.traffic)} of a step ({self.basis})")
        if self.time is not None:
            parts.append(f"saves {self.time} of the time (measured)")
        return ", ".join(parts) or "saving unknown"


def impact(finding: Finding) -> Impact:
    """What the fix of a finding saves."""
    share = predicted(finding.saving)
    traffic = [byte_count(finding.bytes_per_step)] if finding.bytes_per_step is not None else []
    if finding.bytes_per_step == 0:
        return Impact(_NOTHING, finding.basis.value, None)
    if share != UNKNOWN:
        traffic.append(share)
    measured = finite(finding.saving.measured_pct)
    return Impact(tuple(traffic), finding.basis.value, None if measured is None else percent(measured))


def frequency(finding: Finding) -> str:
    """`4× a step`."""
    return f"{finding.count_per_step:,}× a step"


def strongest_evidence(finding: Finding) -> tuple[Evidence, ...]:
    """What was observed before what was predicted, else in the finding's own order."""
    return tuple(sorted(finding.evidence, key=lambda fact: fact.basis is not Basis.OBSERVED))


def evidence_line(fact: Evidence) -> str:
    """The fact, where it comes from, and whether it was observed."""
    source = one_line(fact.source)
    notes = [note for note in (source, "observed" if fact.basis is Basis.OBSERVED else "") if note]
    return f"{one_line(fact.text, TEXT_LIMIT)} ({', '.join(notes)})" if notes else one_line(fact.text, TEXT_LIMIT)


def machine(environment: Environment) -> str:
    """The compiler and the device that the advice is for."""
    name = one_line(environment.device_name)
    device = one_line(environment.device)
    threads = "" if environment.threads is None else plural(environment.threads, "thread")
    details = ", ".join(part for part in (name, threads) if part)
    return f"{one_line(environment.inner)} on {device}" + (f" ({details})" if details else "")
