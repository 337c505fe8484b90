"""What a run shows goes to the finding that speaks of it, and nowhere where that would be a guess."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from frx_graph.analyzers.observations.matching import FindingMatch, match_finding
from frx_graph.analyzers.observations.observation import (
    CONVERSIONS,
    ElementCount,
    Observation,
    ObservedCall,
    Work,
)
from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import Phase
from frx_graph.evidence.dtype import DType
from frx_graph.evidence.trace.events import Operand
from frx_graph.records import CopyKind, Finding, OperandRole

INPUT, WEIGHT, OUTPUT = OperandRole.INPUT, OperandRole.WEIGHT, OperandRole.OUTPUT
TO_LAST = "void nchwToNhwcKernel<float>(int)"


def conversion(*calls: ObservedCall, roles: frozenset[OperandRole] = frozenset({INPUT}), **fields: Any) -> Observation:
    return Observation(
        work=Work.CONVERSION,
        kernels=(TO_LAST,),
        where="correlation 7",
        count=1,
        calls=calls,
        kinds=CONVERSIONS,
        roles=roles,
        **fields,
    )


def found(observation: Observation, program: Any, *findings: Finding) -> FindingMatch:
    return match_finding(observation, program.claims(*findings), findings)


def test_operator_and_shapes_lead_back(program: Any) -> None:
    first, second, _ = program.convolutions
    findings = (program.finding("FRX001", first, INPUT), program.finding("FRX001", second, INPUT))
    inner = ObservedCall("aten::cudnn_convolution", program.call(second).operands)
    assert found(conversion(inner, program.call(second)), program, *findings) == FindingMatch(1)
    assert found(conversion(program.call(first, strides=False)), program, *findings) == FindingMatch(0)


def other_shape(call: ObservedCall) -> ObservedCall:
    image, weight = call.operands or ()
    return replace(call, operands=(replace(image, shape=(4, *image.shape[1:])), weight))


def other_strides(call: ObservedCall) -> ObservedCall:
    image, weight = call.operands or ()
    return replace(call, operands=(replace(image, strides=(1152, 1, 96, 8)), weight))


def other_dtype(call: ObservedCall) -> ObservedCall:
    image, weight = call.operands or ()
    return replace(call, operands=(replace(image, dtype=DType.FLOAT16), weight))


def with_bias(call: ObservedCall) -> ObservedCall:
    return replace(call, operands=(*(call.operands or ()), Operand((16,), DType.FLOAT32)))


@pytest.mark.parametrize("change", [other_shape, other_strides, other_dtype, with_bias])
def test_other_operands_are_another_call(program: Any, change: Any) -> None:
    first = program.convolutions[0]
    finding = program.finding("FRX001", first, INPUT)
    answer = found(conversion(change(program.call(first))), program, finding)
    assert answer.finding is None
    assert answer.reason.startswith("no finding covers aten::convolution on operands of")


def test_another_operator_is_another_call(program: Any) -> None:
    first = program.convolutions[0]
    call = replace(program.call(first), operator="aten::convolution_overrideable")
    answer = found(conversion(call), program, program.finding("FRX001", first, INPUT))
    assert answer == FindingMatch(None, "no finding covers aten::convolution_overrideable")


def test_strides_of_a_dimension_of_size_1_mean_nothing(program: Any) -> None:
    first = program.convolutions[0]
    claims = program.claims(program.finding("FRX001", first, INPUT))
    one = replace(claims[0], operands=(Operand((1, 8), DType.FLOAT32, (8, 1)),), copied=None)
    call = ObservedCall("aten::convolution", (Operand((1, 8), DType.FLOAT32, (999, 1)),))
    assert match_finding(conversion(call), [one], [program.finding("FRX001", first, INPUT)]).finding == 0


def test_the_backward_is_another_call(program: Any) -> None:
    first = program.convolutions[0]
    observation = conversion(program.call(first), phase=Phase.BACKWARD)
    answer = found(observation, program, program.finding("FRX001", first, INPUT))
    assert answer.reason == "no finding covers aten::convolution in the backward"


def test_identical_calls_are_distinguished_only_by_line(program: Any) -> None:
    _, second, third = program.convolutions
    findings = (program.finding("FRX001", second, INPUT), program.finding("FRX001", third, INPUT))
    answer = found(conversion(program.call(third)), program, *findings)
    assert (answer.finding, answer.possible) == (None, frozenset({0, 1}))
    assert f"FRX001 (conftest.py:{second.site.line}), FRX001 (conftest.py:{third.site.line})" in answer.reason
    # The profiler cuts the beginning off file names, and another machine has another one.
    for file in ("conftest.py", "observations/conftest.py", "/home/me/tests/observations/conftest.py"):
        site = replace(third.site, file=file)
        assert found(conversion(program.call(third), site=site), program, *findings) == FindingMatch(1)


def test_another_function_is_another_place(program: Any) -> None:
    first = program.convolutions[0]
    finding = program.finding("FRX001", first, INPUT)
    for site in (replace(first.site, function="other"), replace(first.site, file="/elsewhere/conftest.py")):
        answer = found(conversion(program.call(first), site=site), program, finding)
        assert answer.reason.startswith("no finding covers aten::convolution in ")


def test_the_line_of_the_definition_is_taken_where_no_other_was_recorded(program: Any) -> None:
    first = program.convolutions[0]
    site = CallSite(first.site.file, first.site.line - 1, first.site.function)
    assert (
        found(conversion(program.call(first), site=site), program, program.finding("FRX001", first, INPUT)).finding == 0
    )


def test_a_weight_belongs_to_the_finding_on_weights(program: Any) -> None:
    first = program.convolutions[0]
    findings = (program.finding("FRX001", first, INPUT, OUTPUT), program.finding("FRX007", first, WEIGHT))
    call = program.call(first)
    assert found(conversion(call, roles=frozenset({WEIGHT})), program, *findings) == FindingMatch(1)
    assert found(conversion(call, roles=frozenset({OUTPUT})), program, *findings) == FindingMatch(0)
    alone = found(conversion(call, roles=frozenset({WEIGHT})), program, findings[0])
    assert alone.reason == "no finding covers the weight of aten::convolution"


def test_unidentified_tensor_may_belong_to_either_operand(program: Any) -> None:
    first = program.convolutions[0]
    findings = (program.finding("FRX001", first, INPUT), program.finding("FRX007", first, WEIGHT))
    observation = conversion(program.call(first), roles=frozenset({INPUT, WEIGHT}))
    assert found(observation, program, *findings).possible == frozenset({0, 1})
    # What speaks of the whole operator is right in both cases.
    whole = program.finding("FRX004", first)
    assert found(observation, program, *findings, whole) == FindingMatch(2)


def test_finding_for_the_copy_wins_over_one_for_the_whole_operator(program: Any) -> None:
    first = program.convolutions[0]
    findings = (program.finding("FRX004", first), program.finding("FRX001", first, INPUT))
    assert found(conversion(program.call(first)), program, *findings) == FindingMatch(1)
    assert found(conversion(program.call(first)), program, findings[0]) == FindingMatch(0)


def test_rules_on_other_matters_are_left_alone(program: Any) -> None:
    first = program.convolutions[0]
    answer = found(conversion(program.call(first)), program, program.finding("FRX005", first))
    assert answer == FindingMatch(None, "no finding covers aten::convolution")


def test_a_name_alone_is_too_little(program: Any) -> None:
    first = program.convolutions[0]
    finding = program.finding("FRX001", first, INPUT)
    bare = conversion(ObservedCall("aten::convolution"))
    assert "neither shapes nor lines" in found(bare, program, finding).reason
    assert found(replace(bare, site=first.site), program, finding) == FindingMatch(0)


def test_a_range_names_a_module(program: Any) -> None:
    first = program.convolutions[0]
    finding = program.finding("FRX001", first, INPUT)
    assert first.site.module_path == "model.first"
    for name in ("first", "model.first"):
        assert found(conversion(ranges=("step", name)), program, finding) == FindingMatch(0)
    for names in (("step",), ("first", "first.inner"), ("second",)):
        answer = found(conversion(ranges=names), program, finding)
        assert answer.reason == f"no finding covers what runs in the range {names[-1]}"


def test_a_kernel_alone_leads_to_the_sole_finding_on_convolutions(program: Any) -> None:
    first, second, _ = program.convolutions
    finding = program.finding("FRX001", first, INPUT)
    assert found(conversion(), program, finding) == FindingMatch(0)
    assert found(conversion(), program, finding, program.finding("FRX001", second, INPUT)).finding is None
    assert found(conversion(), program).reason == "no finding covers a convolution"


def test_copy_without_a_call_is_matched_by_size(program: Any) -> None:
    first = program.convolutions[0]
    (copy,) = program.finding("FRX001", first, INPUT).copies
    finding = program.finding("FRX002", first, copies=(replace(copy, kind=CopyKind.EXPLICIT),))
    size = 2 * 8 * 12 * 12
    kinds = frozenset({CopyKind.EXPLICIT, CopyKind.RESHAPE})
    alone = Observation(work=Work.COPY, kernels=("copy",), where="line 2", count=1, kinds=kinds)
    assert found(replace(alone, elements=ElementCount(size - 200, size)), program, finding) == FindingMatch(0)
    other = found(replace(alone, elements=ElementCount(size + 1, size + 512)), program, finding)
    assert other.reason == "no finding covers a copy of 2,305 to 2,816 elements"
    assert "does not tell which operator" in found(alone, program, finding).reason
