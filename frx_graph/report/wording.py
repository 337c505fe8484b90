"""The words for a finding that every format for people shares: where it is, how often, what stands behind it."""

from __future__ import annotations

from pathlib import Path

from frx_graph.advice import Environment
from frx_graph.capture.call_site import CallSite
from frx_graph.records import Basis, Evidence, Finding
from frx_graph.report.plain_text import one_line
from frx_graph.report.quantities import UNKNOWN, basis, byte_count, plural, saving
from frx_graph.report.source_path import short_path

TEXT_LIMIT = 600
"""Characters of a title or of one line of evidence."""


def location(site: CallSite, root: Path) -> str:
    """`models/net.py:42`, printable; "unknown call site" where no user frame is known."""
    if site.file == "<unknown>":
        return "unknown call site"
    file = one_line(short_path(site.file, root))
    return f"{file}:{site.line}" if site.line else file


def place(site: CallSite, root: Path) -> str:
    """The location and the function."""
    function = one_line(site.function)
    known = function and function != "<unknown>"
    return f"{location(site, root)} in {function}" if known else location(site, root)


def title(finding: Finding) -> str:
    """The finding's title, printable."""
    return one_line(finding.title, TEXT_LIMIT)


def impact(finding: Finding) -> tuple[str, ...]:
    """What the fix saves each step: bytes, percent of the traffic, and what the numbers rest on, as far as known."""
    share = saving(finding.saving)
    numbers = [byte_count(finding.bytes_per_step)] if finding.bytes_per_step is not None else []
    if share != UNKNOWN:
        numbers.append(share)
    return (*numbers, basis(finding)) if numbers else (UNKNOWN,)


def impact_sentence(finding: Finding) -> str:
    """The impact as the beginning of a sentence."""
    *numbers, ground = impact(finding)
    return f"saves {' or '.join(numbers)} of a step's memory traffic ({ground})" if numbers else "saving unknown"


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
