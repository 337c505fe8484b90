"""Match an observation with the finding that explains it, or explain why a match would be a guess.

An observation belongs to a finding if operator, shapes, dtypes, strides, direction, line and role agree, if both have
them, and no other finding agrees equally well. An operator's name alone is not enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from frx_graph.analyzers.observations.claims import Claim
from frx_graph.analyzers.observations.observation import ElementCount, Observation, ObservedCall, Work
from frx_graph.capture.call_site import CallSite
from frx_graph.evidence.trace.events import Operand
from frx_graph.facts.operator_families import CONVOLUTIONS, get_profiler_names
from frx_graph.records import Finding, OperandRole

_CONVOLUTIONS = get_profiler_names(CONVOLUTIONS)
_NAMED = 3


@dataclass(frozen=True, slots=True)
class FindingMatch:
    """The position of the matching finding. Without one, `reason` explains why, and `possible` lists the candidates."""

    finding: int | None
    reason: str = ""
    possible: frozenset[int] = frozenset()


def match_finding(observation: Observation, claims: Sequence[Claim], findings: Sequence[Finding]) -> FindingMatch:
    """Return the finding that the observation belongs to; `claims` come from `findings`."""
    left = [claim for claim in claims if claim.kind in observation.kinds]
    if observation.calls:
        left, reason = _filter_by_call(observation, left)
    elif observation.ranges:
        # Findings prefix the root module.
        paths = (observation.ranges[-1], f"model.{observation.ranges[-1]}")
        left = [claim for claim in left if claim.site.module_path in paths]
        reason = f"no finding covers what runs in the range {observation.ranges[-1]}"
    else:
        left, reason = _filter_by_kernel(observation, left)
    for agrees, covered in _FACTS:
        if not left:
            return FindingMatch(None, reason)
        left = [claim for claim in left if agrees(observation, claim)]
        reason = f"no finding covers {covered(observation)}"
    if not left:
        return FindingMatch(None, reason)
    return _pick_sole(_prefer_line(observation, _select_owners(left)), findings)


def _filter_by_kernel(observation: Observation, claims: Sequence[Claim]) -> tuple[list[Claim], str]:
    """Keep the claims that may apply to a kernel alone: a conversion for a convolution, or a copy of equal size."""
    if observation.work is Work.CONVERSION:
        return [claim for claim in claims if claim.operators & _CONVOLUTIONS], "no finding covers a convolution"
    if observation.elements is not None:
        return [claim for claim in claims if claim.copied is not None], "no finding covers a copy"
    return [], "the file does not tell which operator launched it (ncu --nvtx, and emit_nvtx(record_shapes=True))"


def _filter_by_call(observation: Observation, claims: Sequence[Claim]) -> tuple[list[Claim], str]:
    called = {call.operator for call in observation.calls}
    left = [claim for claim in claims if claim.operators & called]
    if not left:
        return [], f"no finding covers {observation.calls[-1].operator}"
    told = observation.site is not None or observation.copied is not None or observation.elements is not None
    operators = {operator for claim in left for operator in claim.operators}
    if not told and all(call.operands is None for call in observation.calls if call.operator in operators):
        return [], "the file tells neither shapes nor lines (record_shapes=True, with_stack=True)"
    return left, ""


def _compare_operands(observation: Observation, claim: Claim, same: Callable[[Operand, Operand], bool]) -> bool:
    calls = [call for call in observation.calls if call.operator in claim.operators]
    return not calls or not claim.operands or any(match_operands(call, claim.operands, same) for call in calls)


def match_operands(call: ObservedCall, operands: Sequence[Operand], same: Callable[[Operand, Operand], bool]) -> bool:
    """Return True if `same` holds for all operands of the call, or it has none."""
    if call.operands is None:
        return True
    if call.complete and len(call.operands) != len(operands):
        return False
    return len(call.operands) <= len(operands) and all(map(same, call.operands, operands))


def is_same_tensor(seen: Operand, claimed: Operand) -> bool:
    """Return True for the same shape and, if known, dtype and strides, without those of size-1 dimensions."""
    if seen.shape != claimed.shape or (seen.dtype and claimed.dtype and seen.dtype != claimed.dtype):
        return False
    if seen.strides is None or claimed.strides is None:
        return True
    return all(n == 1 or a == b for n, a, b in zip(seen.shape, seen.strides, claimed.strides, strict=True))


def _is_same_copy(observation: Observation, claim: Claim) -> bool:
    return observation.copied is None or claim.copied is None or is_same_tensor(observation.copied, claim.copied)


def _is_same_size(observation: Observation, claim: Claim) -> bool:
    if observation.elements is None or claim.copied is None:
        return True
    return observation.elements.least <= math.prod(claim.copied.shape) <= observation.elements.most


def _is_same_place(observation: Observation, claim: Claim) -> bool:
    """Compare file and function: a trace may have the line of the function instead of the call's."""
    site = observation.site
    if site is None or not claim.site.line:
        return True
    # The known names and folders: profilers cut paths, and they differ between machines.
    ours, theirs = PurePath(site.file).parts[-2:], PurePath(claim.site.file).parts[-2:]
    shared = min(len(ours), len(theirs))
    return shared > 0 and ours[-shared:] == theirs[-shared:] and site.function == claim.site.function


def _is_same_role(observation: Observation, claim: Claim) -> bool:
    """Compare roles; claims on whole operators are about images, not weights."""
    if claim.role is None:
        return bool(observation.roles - {OperandRole.WEIGHT})
    return claim.role in observation.roles


_FACTS: tuple[tuple[Callable[[Observation, Claim], bool], Callable[[Observation], str]], ...] = (
    (
        lambda seen, claim: _compare_operands(seen, claim, lambda one, other: one.shape == other.shape),
        lambda seen: f"{_format_call(seen)} on operands of these shapes",
    ),
    (
        lambda seen, claim: _compare_operands(seen, claim, is_same_tensor),
        lambda seen: f"{_format_call(seen)} on operands of this dtype in these strides",
    ),
    (_is_same_copy, lambda seen: f"a copy of {_format_copied(seen.copied)}"),
    (_is_same_size, lambda seen: f"a copy of {_format_elements(seen.elements)}"),
    (
        lambda seen, claim: seen.phase is None or seen.phase is claim.phase,
        lambda seen: f"{_format_call(seen)} in the {seen.phase}",
    ),
    (_is_same_place, lambda seen: f"{_format_call(seen)} in {_format_place(seen.site)}"),
    (_is_same_role, lambda seen: f"the {' or '.join(sorted(seen.roles))} of {_format_call(seen)}"),
)
"""Facts that must agree, in this order, and what no finding covers if none agrees."""


def _select_owners(claims: Sequence[Claim]) -> list[Claim]:
    """Keep the claims of the single finding that owns the copy, or else those on the whole operator."""
    owners = [claim for claim in claims if claim.role is not None]
    others = [claim for claim in claims if claim.role is None]
    if len({claim.finding for claim in owners}) == 1 or not others:
        return owners
    return others if len({claim.finding for claim in others}) == 1 else list(claims)


def _prefer_line(observation: Observation, claims: list[Claim]) -> list[Claim]:
    line = None if observation.site is None else observation.site.line
    return [claim for claim in claims if claim.site.line == line] or claims


def _pick_sole(claims: Sequence[Claim], findings: Sequence[Finding]) -> FindingMatch:
    numbers = sorted({claim.finding for claim in claims})
    if len(numbers) == 1:
        return FindingMatch(numbers[0])
    sites = ((findings[number].rule, findings[number].site) for number in numbers[:_NAMED])
    named = ", ".join(f"{rule} ({PurePath(site.file).name}:{site.line})" for rule, site in sites)
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return FindingMatch(None, f"it may belong to any of {named}{more}", frozenset(numbers))


def _format_call(observation: Observation) -> str:
    return observation.calls[-1].operator if observation.calls else "what runs there"


def _format_copied(copied: Operand | None) -> str:
    if copied is None:
        return ""
    return f"{copied.shape}" if copied.strides is None else f"{copied.shape} in strides {copied.strides}"


def _format_elements(elements: ElementCount | None) -> str:
    return f"{elements.least:,} to {elements.most:,} elements" if elements is not None else ""


def _format_place(site: CallSite | None) -> str:
    return f"{site.function} of {PurePath(site.file).name}" if site is not None else ""
