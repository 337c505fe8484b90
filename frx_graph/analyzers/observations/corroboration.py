"""Adjust findings by the files of a run: add evidence, raise or lower confidence, and keep every finding.

`passes.confidence` defines the steps. A finding that no file mentions stays unchanged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from frx_graph.analyzers.observations.claims import Claim, derive_claims
from frx_graph.analyzers.observations.matching import FindingMatch, is_same_tensor, match_finding, match_operands
from frx_graph.analyzers.observations.observation import Observation, QuietCall, RunFile, RunSetting, Work
from frx_graph.analyzers.trace.kernel_names import extract_function_name
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.passes import confidence
from frx_graph.passes.call_groups import group_by
from frx_graph.records import Basis, CopyKind, Evidence, Finding, Refusal
from frx_graph.support.plain_text import format_bytes, format_seconds

BELONGS_TO_NONE = "belongs to no finding"
_KERNELS = 3
_SIGHTINGS = 4
"""Observations of one file that are listed for a finding; the rest is counted."""


@dataclass(frozen=True, slots=True)
class _Match:
    file: RunFile
    observation: Observation
    here: bool


def corroborate_findings(
    findings: Sequence[Finding], graphs: Mapping[str, GraphFacts], files: Sequence[RunFile], setting: RunSetting
) -> tuple[list[Finding], list[Refusal]]:
    """Return the findings in order, adjusted by `files`, and a refusal for each piece of work without a finding.
    `setting` is the setting of the advice; `graphs` are by id."""
    claimed = derive_claims(findings, graphs)
    claims_of = group_by(claimed, lambda claim: claim.finding)
    compatible = [file for file in files if file.setting.is_compatible(setting)]
    seen: dict[int, list[_Match]] = defaultdict(list)
    possible: set[int] = set()
    refusals: list[Refusal] = []
    for file in files:
        for observation in file.observations:
            found = match_finding(observation, claimed, findings)
            if found.finding is None:
                possible |= found.possible
                refusals.append(_refuse_observation(file, observation, found))
            else:
                seen[found.finding].append(_Match(file, observation, file.setting.is_compatible(setting)))
    changed = list(findings)
    for number, finding in enumerate(findings):
        if number in seen:
            changed[number] = _confirm_finding(finding, seen[number])
        elif number not in possible:
            changed[number] = _contradict_finding(finding, claims_of.get(number, ()), compatible)
    return changed, refusals


def _confirm_finding(finding: Finding, seen: Sequence[_Match]) -> Finding:
    by_file: dict[str, list[_Match]] = defaultdict(list)
    for one in seen:
        by_file[one.file.source].append(one)
    evidence = [fact for found in by_file.values() for fact in _describe_file_evidence(finding, found)]
    # Mere consequences of a layout, and kernels of unknown origin, conclude nothing: any program with a convolution, or
    # a copy of that size, has the same.
    itself = any(
        one.here
        and one.observation.work is not Work.UNCOALESCED
        and bool(one.observation.calls or one.observation.ranges)
        for one in seen
    )
    return replace(
        finding,
        confidence=confidence.raise_confidence(finding.confidence, itself=itself),
        evidence=(*finding.evidence, *evidence),
    )


def _describe_file_evidence(finding: Finding, seen: Sequence[_Match]) -> list[Evidence]:
    """Describe each kind of work in one file, the longest first."""
    file = seen[0].file
    ordered = sorted((one.observation for one in seen), key=lambda one: -(one.seconds or 0.0))
    elsewhere = "" if seen[0].here else f", in another setting than advised on ({_format_setting(file.setting)})"
    facts = [
        Evidence(_format_work(one) + elsewhere, f"{file.source}, {one.where}", Basis.OBSERVED, one.measurements)
        for one in ordered[:_SIGHTINGS]
    ]
    rest = ordered[_SIGHTINGS:]
    if rest:
        measurements = tuple(fact for one in rest for fact in one.measurements)
        text = f"and {len(rest)} more kinds of such work, {sum(one.count for one in rest)}× in all"
        facts.append(Evidence(text, file.source, Basis.OBSERVED, measurements))
    steps = [one.steps for one in ordered if one.steps is not None]
    predicted = [copy.count for copy in finding.copies if copy.kind in file.shows]
    if len(steps) == len(ordered) and predicted:
        text = f"seen {sum(one.count for one in ordered) / max(steps):g}× a step, predicted {sum(predicted)}×"
        facts.append(Evidence(text, file.source, Basis.OBSERVED))
    return facts


def _format_work(observation: Observation) -> str:
    """Format the work with its count, time and bytes, per step if the file marks steps."""
    copied = f" of {observation.copied.shape}" if observation.copied is not None else ""
    detail = f" ({observation.detail})" if observation.detail else ""
    steps = observation.steps or 1
    unit = " a step" if observation.steps is not None else " in the file"
    parts = [f"{_format_kernels(observation)}{copied}{detail}", f"{observation.count / steps:g}×{unit}"]
    if observation.seconds is not None:
        parts.append(format_seconds(observation.seconds / steps))
    if observation.bytes is not None:
        parts.append(format_bytes(round(observation.bytes / steps)))
    return f"{observation.work} seen: {', '.join(parts)}"


def _format_kernels(observation: Observation) -> str:
    """Name the kernels and the operator around them; only the operator if it copies by itself."""
    operator = observation.calls[0].operator if observation.calls else ""
    # Only demangled names have return types and arguments.
    names = dict.fromkeys(
        extract_function_name(name) if set("(<") & set(name) else name for name in observation.kernels
    )
    listed = ", ".join(list(names)[:_KERNELS]) + (", ..." if len(names) > _KERNELS else "")
    return f"{listed} under {operator}" if listed and operator else listed or operator


def _format_setting(setting: RunSetting) -> str:
    compiled = "" if setting.compiled is None else ", compiled" if setting.compiled else ", not compiled"
    return f"{setting.device}{compiled}"


def _refuse_observation(file: RunFile, observation: Observation, found: FindingMatch) -> Refusal:
    subject = f"{observation.count}× {_format_kernels(observation)} in {file.source}, {observation.where}"
    return Refusal(subject, f"{BELONGS_TO_NONE}: {found.reason}", site=observation.site)


def _contradict_finding(finding: Finding, own: Sequence[Claim], files: Sequence[RunFile]) -> Finding:
    """Lower the confidence if the same calls ran without the finding's work."""
    evidence: list[Evidence] = []
    certain = False
    for file in files:
        shown = [claim for claim in own if _is_shown_in(claim, finding, file)]
        calls = list(dict.fromkeys(quiet for claim in shown for quiet in file.quiet if _is_claimed(quiet, claim)))
        if not calls or _has_similar_observation(own, file):
            continue
        known = all(operand.strides is not None for quiet in calls for operand in quiet.call.operands or ())
        certain = certain or known
        count = sum(quiet.count for quiet in calls)
        names = ", ".join(dict.fromkeys(quiet.call.operator for quiet in calls))
        same = "shapes and strides" if known else "shapes; their strides were not recorded"
        evidence.append(
            Evidence(f"not seen: {names} ran {count}× without it on these {same}", file.source, Basis.OBSERVED)
        )
    if not evidence:
        return finding
    lower = confidence.lower_confidence(finding.confidence, same_strides=certain)
    return replace(finding, confidence=lower, evidence=(*finding.evidence, *evidence))


def _is_shown_in(claim: Claim, finding: Finding, file: RunFile) -> bool:
    """Return True if the file would show the claim: a layout that costs time does in conversions, if not measured."""
    if claim.kind is None:
        return not finding.rests_on_times and CopyKind.REORDER in file.shows
    return claim.kind in file.shows


def _is_claimed(quiet: QuietCall, claim: Claim) -> bool:
    if quiet.call.operator not in claim.operators or quiet.call.operands is None:
        return False
    if quiet.phase is not None and quiet.phase is not claim.phase:
        return False
    if claim.operands:
        return match_operands(quiet.call, claim.operands, is_same_tensor)
    # A program gets the copies that it requests; a folded operand shows in the operand itself.
    copied = claim.copied
    inside = claim.kind is CopyKind.OPERATOR and copied is not None
    return inside and any(is_same_tensor(operand, copied) for operand in quiet.call.operands if copied is not None)


def _has_similar_observation(own: Sequence[Claim], file: RunFile) -> bool:
    """Return True if similar calls did such work: its line is unknown."""
    return any(
        call.operator in claim.operators
        and (not claim.operands or match_operands(call, claim.operands, is_same_tensor))
        for claim in own
        for observation in file.observations
        for call in observation.calls
        if claim.copied is None or observation.copied is None or is_same_tensor(observation.copied, claim.copied)
    )
