import torch
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.facts.layout import StridePattern, is_contiguous
from frx_graph.measure.operators.contract_cases import MEASURED_DTYPES, Case, Operand, make_representatives
from frx_graph.measure.operators.contract_table import CASES


@given(st.lists(st.integers(2, 6), max_size=5))
def test_representatives_are_distinct_and_start_with_contiguous(shape: list[int]) -> None:
    found = list(make_representatives(shape))
    strides = [strides for _, strides in found]
    assert len(set(strides)) == len(strides)
    assert is_contiguous(shape, strides[0])
    assert all(len(own) == len(shape) for own in strides)


def test_every_class_has_a_representative() -> None:
    image = {pattern for pattern, _ in make_representatives((2, 3, 4, 5))}
    assert image == set(StridePattern)
    assert {pattern for pattern, _ in make_representatives((8,))} == {
        StridePattern.CONTIGUOUS,
        StridePattern.INNER_STRIDED,
        StridePattern.EXPANDED,
    }


def test_a_signature_varies_one_tensor() -> None:
    case = Case("aten.cat.default", "two", ((Operand((2, 3)), Operand((2, 3), torch.int64)), 1))
    signature = case.make_signature(torch.bfloat16, "cpu", 1, (1, 2))
    first, second = signature.tensors
    assert (first.strides, first.dtype) == ((3, 1), torch.bfloat16)
    assert (second.strides, second.dtype) == ((1, 2), torch.int64)
    assert signature.args[1] == 1


def test_cases_are_unique_by_operator_and_name() -> None:
    names = [(case.target, case.name) for case in CASES]
    assert len(set(names)) == len(names)


def test_every_case_varies_something() -> None:
    for case in CASES:
        assert any(operand.varied for operand in case.operands), case
    assert torch.float32 in MEASURED_DTYPES
