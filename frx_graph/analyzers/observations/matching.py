"""Match an observation with the finding that explains it, or explain why a match would be a guess.

An observation belongs to a finding if operator, shapes, dtypes, strides, direction, line and role agree, if both have
them, and no other finding agrees equally well. An operator's name alone is not enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from frx_graph.analyzers.observations.claims import Claim
from frx_graph.analyzers.observations.observation import Observation, ObservedCall, Work
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
        paths = _list_module_paths(observation)
        left = [claim for claim in left if claim.site.module_path in paths]
        reason = f"no finding covers what runs in the range {observation.ranges[-1]}"
    else:
        left, reason = _filter_by_kernel(observation, left)
    for agrees, disagreement in _FACTS:
        if not left:
            break
        kept = [claim for claim in left if agrees(observation, claim)]
        if not kept:
            reason = disagreement(observation)
        left = kept
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
    if not told and all(call.operands is None for call in observation.calls if _is_claimed(call, left)):
        return [], "the file tells neither shapes nor lines (record_shapes=True, with_stack=True)"
    return left, ""


def _is_claimed(call: ObservedCall, claims: Sequence[Claim]) -> bool:
    return any(call.operator in claim.operators for claim in claims)


def _list_module_paths(observation: Observation) -> frozenset[str]:
    """Return the module paths of the innermost range; findings prefix the root module."""
    return frozenset({observation.ranges[-1], f"model.{observation.ranges[-1]}"})


def _is_same_operands(observation: Observation, claim: Claim) -> bool:
    calls = [call for call in observation.calls if call.operator in claim.operators]
    return (
        not calls or not claim.operands or any(match_operands(call, claim.operands, _is_same_shape) for call in calls)
    )


def _is_same_strides(observation: Observation, claim: Claim) -> bool:
    calls = [call for call in observation.calls if call.operator in claim.operators]
    return (
        not calls or not claim.operands or any(match_operands(call, claim.operands, is_same_tensor) for call in calls)
    )


def match_operands(call: ObservedCall, operands: Sequence[Operand], same: Callable[[Operand, Operand], bool]) -> bool:
    """Return True if `same` holds for all operands of the call, or it has none."""
    if call.operands is None:
        return True
    if call.complete and len(call.operands) != len(operands):
        return False
    return len(call.operands) <= len(operands) and all(map(same, call.operands, operands))


def _is_same_shape(seen: Operand, claimed: Operand) -> bool:
    return seen.shape == claimed.shape


def is_same_tensor(seen: Operand, claimed: Operand) -> bool:
    """Return True for the same shape, and the same dtype and strides if known; strides of size-1 dimensions mean
    nothing."""
    if seen.shape != claimed.shape or (seen.dtype and claimed.dtype and seen.dtype != claimed.dtype):
        return False
    if seen.strides is None or claimed.strides is None:
        return True
    return all(n == 1 or a == b for n, a, b in zip(seen.shape, seen.strides, claimed.strides, strict=True))


def _is_same_copy(observation: Observation, claim: Claim) -> bool:
    if observation.copied is None or claim.copied is None:
        return True
    return is_same_tensor(observation.copied, claim.copied)


def _is_same_size(observation: Observation, claim: Claim) -> bool:
    if observation.elements is None or claim.copied is None:
        return True
    count = 1
    for size in claim.copied.shape:
        count *= size
    return observation.elements.least <= count <= observation.elements.most


def _is_same_phase(observation: Observation, claim: Claim) -> bool:
    return observation.phase is None or observation.phase is claim.phase


def _is_same_place(observation: Observation, claim: Claim) -> bool:
    """Compare file and function: a trace may have the line of the function instead of the call's."""
    site = observation.site
    if site is None or not claim.site.line:
        return True
    return _is_same_file(site.file, claim.site.file) and site.function == claim.site.function


def _is_same_file(one: str, other: str) -> bool:
    """Compare the known names and folders: profilers cut paths, and they differ between machines."""
    ours, theirs = PurePath(one).parts, PurePath(other).parts
    shared = min(len(ours), len(theirs), 2)
    return shared > 0 and ours[-shared:] == theirs[-shared:]


def _is_same_role(observation: Observation, claim: Claim) -> bool:
    """Compare roles; claims on whole operators are about images, not weights."""
    if claim.role is None:
        return bool(observation.roles - {OperandRole.WEIGHT})
    return claim.role in observation.roles


_Agrees = Callable[[Observation, Claim], bool]
_FACTS: tuple[tuple[_Agrees, Callable[[Observation], str]], ...] = (
    (_is_same_operands, lambda seen: f"no finding covers {_format_call(seen)} on operands of these shapes"),
    (
        _is_same_strides,
        lambda seen: f"no finding covers {_format_call(seen)} on operands of this dtype in these strides",
    ),
    (_is_same_copy, lambda seen: f"no finding covers a copy of {_format_copied(seen)}"),
    (_is_same_size, lambda seen: f"no finding covers a copy of {_format_elements(seen)}"),
    (_is_same_phase, lambda seen: f"no finding covers {_format_call(seen)} in the {seen.phase}"),
    (_is_same_place, lambda seen: f"no finding covers {_format_call(seen)} in {_format_place(seen.site)}"),
    (_is_same_role, lambda seen: f"no finding covers the {' or '.join(sorted(seen.roles))} of {_format_call(seen)}"),
)
"""Facts that must agree, in this order, and the message if none agrees."""


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
    named = ", ".join(_format_finding(findings[number]) for number in numbers[:_NAMED])
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return FindingMatch(None, f"it may belong to any of {named}{more}", frozenset(numbers))


def _format_finding(finding: Finding) -> str:
    return f"{finding.rule} ({PurePath(finding.site.file).name}:{finding.site.line})"


def _format_call(observation: Observation) -> str:
    return observation.calls[-1].operator if observation.calls else "what runs there"


def _format_copied(observation: Observation) -> str:
    copied = observation.copied
    assert copied is not None
    return f"{copied.shape}" if copied.strides is None else f"{copied.shape} in strides {copied.strides}"


def _format_elements(observation: Observation) -> str:
    elements = observation.elements
    assert elements is not None
    return f"{elements.least:,} to {elements.most:,} elements"


def _format_place(site: CallSite | None) -> str:
    assert site is not None
    return f"{site.function} of {PurePath(site.file).name}"
