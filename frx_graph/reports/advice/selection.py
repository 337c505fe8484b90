"""Select rules by `--select` and `--ignore`: by code, code prefix or rule name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from frx_graph.advice import Advice, is_quick_win
from frx_graph.errors import OptionError
from frx_graph.records import Refusal
from frx_graph.reports.render.quantities import format_count
from frx_graph.support.plain_text import clean_line


def hide_findings(advice: Advice, hidden: Iterable[int], reason: str) -> Advice:
    """Return the advice without the findings at the `hidden` indices. A refusal gives their number and the `reason`.

    The copies and their totals stay: they are facts about the step.
    """
    left_out = frozenset(hidden)
    if not left_out:
        return advice
    kept = tuple(finding for index, finding in enumerate(advice.findings) if index not in left_out)
    return replace(
        advice,
        findings=kept,
        refusals=(*advice.refusals, Refusal(format_count(len(left_out), "finding"), reason)),
        totals=replace(advice.totals, quick_wins=sum(map(is_quick_win, kept))),
    )


@dataclass(frozen=True, slots=True)
class RuleSelection:
    """Code prefixes to show and to leave out. Without prefixes to show, all rules are shown."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def is_shown(self, code: str) -> bool:
        """Return True if the rule is shown. The longer matching prefix decides; `ignore` wins a tie."""
        chosen = max((len(prefix) for prefix in self.select if code.startswith(prefix)), default=-1)
        if not self.select:
            chosen = 0
        refused = max((len(prefix) for prefix in self.ignore if code.startswith(prefix)), default=-1)
        return chosen > refused


def parse_selection(select: Iterable[str], ignore: Iterable[str], known: Mapping[str, str]) -> RuleSelection:
    """Return the validated selection. Entries may hold several codes or names, separated by commas, in any case.

    `known` maps every rule's code to its name. Raises OptionError, with the nearest code, for an entry that is neither
    a name nor a code prefix.
    """
    return RuleSelection(_parse_codes(select, "select", known), _parse_codes(ignore, "ignore", known))


def apply_selection(advice: Advice, selection: RuleSelection) -> Advice:
    """Return the advice with only the findings of the selected rules."""
    hidden = [index for index, finding in enumerate(advice.findings) if not selection.is_shown(finding.rule)]
    return hide_findings(advice, hidden, "--select or --ignore leaves their rules out")


def _parse_codes(entries: Iterable[str], option: str, known: Mapping[str, str]) -> tuple[str, ...]:
    by_name = {name: code for code, name in known.items()}
    codes = []
    for entry in entries:
        for part in entry.split(","):
            given = part.strip()
            code = by_name.get(given.lower(), given.upper())
            if not code or not any(rule.startswith(code) for rule in known):
                near = difflib.get_close_matches(given.upper(), known, n=1)
                near = near or [by_name[name] for name in difflib.get_close_matches(given.lower(), by_name, n=1)]
                hint = f"did you mean {near[0]} ({known[near[0]]})?" if near else "`frx rules` lists them"
                raise OptionError(f"--{option}: no rule is called {clean_line(given, 40)!r}", hint)
            codes.append(code)
    return tuple(codes)
