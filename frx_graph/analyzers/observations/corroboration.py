"""Adjust findings by the files of a run: add evidence, raise or lower confidence, and keep every finding.

`passes.confidence` defines the steps. A finding that no file mentions stays unchanged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from frx_graph.analyzers.observations.claims import Claim, derive_claims
from frx_graph.analyzers.observations.matching import FindingMatch, is_same_tensor, match_finding, match_operands
from frx_graph.analyzers.observations.observation import Observation, ObservedCall, QuietCall, RunFile, RunSetting, Work
from frx_graph.analyzers.trace.kernel_names import extract_function_name
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.passes import confidence
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
    changed = []
    for number, finding in enumerate(findings):
        if number in seen:
            changed.append(_confirm_finding(finding, seen[number]))
        elif number in possible:
            changed.append(finding)
        else:
            own = [claim for claim in claimed if claim.finding == number]
            changed.append(
                _contradict_finding(finding, own, [file for file in files if file.setting.is_compatible(setting)])
            )
    return changed, refusals


def _confirm_finding(finding: Finding, seen: Sequence[_Match]) -> Finding:
    by_file: dict[str, list[_Match]] = defaultdict(list)
    for one in seen:
        by_file[one.file.source].append(one)
    evidence = [fact for found in by_file.values() for fact in _describe_file_evidence(finding, found)]
    itself = any(one.here and _is_conclusive(one.observation) for one in seen)
    return replace(
        finding,
        confidence=confidence.raise_confidence(finding.confidence, itself=itself),
        evidence=(*finding.evidence, *evidence),
    )


def _is_conclusive(observation: Observation) -> bool:
    """Return False for mere consequences of a layout, and for kernels of unknown origin. Any program with a
    convolution, or a copy of that size, has the same."""
    return observation.work is not Work.UNCOALESCED and bool(observation.calls or observation.ranges)


def _describe_file_evidence(finding: Finding, seen: Sequence[_Match]) -> list[Evidence]:
    """Describe each kind of work in one file, the longest first."""
    ordered = sorted(seen, key=lambda one: -(one.observation.seconds or 0.0))
    facts = []
    for one in ordered[:_SIGHTINGS]:
        observation = one.observation
        elsewhere = "" if one.here else f", in another setting than advised on ({_format_setting(one.file.setting)})"
        text = f"{_format_work(observation)}, {_format_extent(observation)}{elsewhere}"
        source = f"{one.file.source}, {observation.where}"
        facts.append(Evidence(text, source, Basis.OBSERVED, observation.measurements))
    rest = ordered[_SIGHTINGS:]
    if rest:
        count = sum(one.observation.count for one in rest)
        measurements = tuple(fact for one in rest for fact in one.observation.measurements)
        text = f"and {len(rest)} more kinds of such work, {count}× in all"
        facts.append(Evidence(text, rest[0].file.source, Basis.OBSERVED, measurements))
    per_step = {one.observation.steps is not None for one in seen} == {True}
    if per_step and any(copy.kind in ordered[0].file.shows for copy in finding.copies):
        steps = max(one.observation.steps or 1 for one in seen)
        a_step = sum(one.observation.count for one in seen) / steps
        predicted = sum(copy.count for copy in finding.copies if copy.kind in ordered[0].file.shows)
        facts.append(
            Evidence(f"seen {a_step:g}× a step, predicted {predicted}×", ordered[0].file.source, Basis.OBSERVED)
        )
    return facts


def _format_work(observation: Observation) -> str:
    copied = f" of {observation.copied.shape}" if observation.copied is not None else ""
    detail = f" ({observation.detail})" if observation.detail else ""
    return f"{observation.work} seen: {_format_kernels(observation)}{copied}{detail}"


def _format_kernels(observation: Observation) -> str:
    """Name the kernels and the operator around them; only the operator if it copies by itself."""
    operator = observation.calls[0].operator if observation.calls else ""
    # Only demangled names have return types and arguments.
    names = dict.fromkeys(
        extract_function_name(name) if set("(<") & set(name) else name for name in observation.kernels
    )
    listed = ", ".join(list(names)[:_KERNELS]) + (", ..." if len(names) > _KERNELS else "")
    return f"{listed} under {operator}" if listed and operator else listed or operator


def _format_extent(observation: Observation) -> str:
    """Format count, time and bytes, per step if the file marks steps."""
    steps = observation.steps or 1
    unit = " a step" if observation.steps is not None else " in the file"
    parts = [f"{observation.count / steps:g}×{unit}"]
    if observation.seconds is not None:
        parts.append(format_seconds(observation.seconds / steps))
    if observation.bytes is not None:
        parts.append(format_bytes(round(observation.bytes / steps)))
    return ", ".join(parts)


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
        calls = [
            (claim, quiet)
            for claim in own
            if _is_shown_in(claim, finding, file)
            for quiet in file.quiet
            if _is_claimed(quiet, claim)
        ]
        if not calls or _has_similar_observation(own, file):
            continue
        known = all(_has_known_strides(quiet.call) for _, quiet in calls)
        certain = certain or known
        distinct = {id(quiet): quiet for _, quiet in calls}.values()
        count = sum(quiet.count for quiet in distinct)
        names = ", ".join(dict.fromkeys(quiet.call.operator for quiet in distinct))
        same = "shapes and strides" if known else "shapes; their strides were not recorded"
        evidence.append(
            Evidence(f"not seen: {names} ran {count}× without it on these {same}", file.source, Basis.OBSERVED)
        )
    if not evidence:
        return finding
    lower = confidence.lower_confidence(finding.confidence, same_strides=certain)
    return replace(finding, confidence=lower, evidence=(*finding.evidence, *evidence))


def _is_shown_in(claim: Claim, finding: Finding, file: RunFile) -> bool:
    """Return True if the file would show the claim. A layout that costs time shows in conversions, unless it was
    measured."""
    if claim.kind is None:
        return finding.saving.measured_pct is None and CopyKind.REORDER in file.shows
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


def _has_known_strides(call: ObservedCall) -> bool:
    return all(operand.strides is not None for operand in call.operands or ())
