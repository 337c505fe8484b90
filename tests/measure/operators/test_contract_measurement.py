import pytest
import torch

from frx_graph.facts.layout import StridePattern
from frx_graph.facts.operator_signature import OperatorSignature
from frx_graph.measure.operators.contract_cases import Case, Operand
from frx_graph.measure.operators.contract_measurement import build_contract_rows, measure_contract, plan_trials
from frx_graph.measure.operators.contract_table import CASES
from frx_graph.measure.operators.operator_contract import ContractEntry, ContractRow, load_contract
from frx_graph.measure.operators.operator_measurement import Mechanism, OperatorMeasurement, SeenCopy

CASE = Case("aten.mm.default", "small", (Operand((4, 8)), Operand((8, 2), varied=False)))
F32 = (torch.float32,)
SAMPLE = (
    ("aten.bmm.default", "batched"),
    ("aten.addmm.default", "with bias"),
    ("aten.convolution.default", "2-D, 3x3"),
    ("aten.convolution.default", "3-D"),
    ("aten.convolution_backward.default", "2-D, depthwise"),
    ("aten._scaled_dot_product_flash_attention_for_cpu.default", "attention heads"),
    ("aten.native_layer_norm.default", "over features"),
    ("aten.native_group_norm.default", "images"),
    ("aten.native_batch_norm.default", "images, training"),
    ("aten.max_pool2d_with_indices.default", "2-D"),
    ("aten.upsample_nearest2d.default", "2-D"),
    ("aten.cat.default", "along channels"),
    ("aten.embedding.default", "table"),
    ("aten.masked_fill.Scalar", "mask"),
    ("aten.constant_pad_nd.default", "2-D"),
)
"""Cases that together see every mechanism, results and operands, and both outcomes. The table is four times this."""


def copy(operand: int | None, shape: tuple[int, ...], mechanism: Mechanism = Mechanism.ATEN) -> SeenCopy:
    return SeenCopy(mechanism, shape, 4, "a", "b", "input", operand=operand)


def row_of(rows: tuple[ContractRow, ...], pattern: StridePattern, operand: int | None = 0) -> ContractRow:
    (found,) = (row for row in rows if (row.pattern, row.operand) == (pattern, operand))
    return found


def measured(copies_of: dict[StridePattern, list[tuple[SeenCopy, ...]]]) -> tuple[ContractRow, ...]:
    """Rows for CASE when its representatives make these copies, in turn; all others make none."""
    planned = plan_trials([CASE], "cpu", F32)
    pending = {pattern: list(copies) for pattern, copies in copies_of.items()}
    results: dict[OperatorSignature, OperatorMeasurement] = {}
    for trial in planned:
        if trial.operand == 0:
            copies = pending.get(trial.pattern) or [()]
            results[trial.signature] = OperatorMeasurement(copies.pop(0))
    return build_contract_rows(planned, results)


def test_only_varied_operands_and_the_results_have_rows() -> None:
    assert {row.operand for row in measured({})} == {0, None}
    assert {row.entry for row in measured({})} == {ContractEntry(False)}


def test_bytes_are_relative_to_the_operand() -> None:
    rows = measured(
        {StridePattern.TRANSPOSED: [(copy(0, (4, 8)),)], StridePattern.ROW_SLICED: [(copy(0, (2, 8)),) * 2]}
    )
    assert row_of(rows, StridePattern.TRANSPOSED).entry == ContractEntry(True, 1.0, 1, Mechanism.ATEN)
    assert row_of(rows, StridePattern.ROW_SLICED).entry == ContractEntry(True, 1.0, 2, Mechanism.ATEN)


def test_bytes_of_results_are_relative_to_the_results() -> None:
    rows = measured({StridePattern.TRANSPOSED: [(copy(None, (4, 2)),)]})
    assert row_of(rows, StridePattern.TRANSPOSED, None).entry == ContractEntry(True, 1.0, 1, Mechanism.ATEN)
    assert row_of(rows, StridePattern.TRANSPOSED).entry == ContractEntry(False)


def test_copies_of_another_operand_are_not_this_ones() -> None:
    rows = measured({StridePattern.TRANSPOSED: [(copy(1, (8, 2)),)]})
    assert row_of(rows, StridePattern.TRANSPOSED).entry == ContractEntry(False)


def test_the_mechanism_of_most_bytes_is_named_and_strides_break_a_tie() -> None:
    both = (copy(0, (4, 8), Mechanism.ONEDNN), copy(0, (4, 8)))
    more = (copy(0, (4, 8), Mechanism.ONEDNN), copy(0, (2, 8)))
    rows = measured({StridePattern.TRANSPOSED: [both], StridePattern.ROW_SLICED: [more]})
    assert row_of(rows, StridePattern.TRANSPOSED).entry == ContractEntry(True, 2.0, 2, Mechanism.ATEN)
    assert row_of(rows, StridePattern.ROW_SLICED).entry == ContractEntry(True, 1.5, 2, Mechanism.ONEDNN)


def test_representatives_that_disagree_leave_the_class_unknown() -> None:
    rows = measured({StridePattern.EXPANDED: [(copy(0, (4, 8)),), ()]})
    assert row_of(rows, StridePattern.EXPANDED).entry is None


def test_calls_that_failed_are_left_out() -> None:
    impossible = Case("aten.mm.default", "impossible", (Operand((4, 8)), Operand((4, 8))))
    failures: list[str] = []
    contract = measure_contract([impossible], "cpu", on_failure=lambda _, reason: failures.append(reason))
    assert contract.rows == ()
    assert failures


@pytest.fixture(scope="module")
def fresh() -> set[ContractRow]:
    cases = [case for case in CASES if (case.target, case.name) in SAMPLE]
    assert len(cases) == len(SAMPLE)
    return set(measure_contract(cases, "cpu", dtypes=F32).rows)


@pytest.mark.integration
def test_shipped_contract_matches_measurements(
    fresh: set[ContractRow], tmp_path_factory: pytest.TempPathFactory
) -> None:
    shipped = load_contract("cpu", torch.__version__, own=tmp_path_factory.mktemp("empty"))
    assert shipped is not None
    if not shipped.exact:
        pytest.skip(f"no contract ships for torch {torch.__version__}")
    if shipped.measured_on["cpu_capability"] != torch.backends.cpu.get_cpu_capability():
        pytest.skip("oneDNN takes other kernels on this processor than on the one that the contract was measured on")
    promised = {row for row in shipped.rows if (row.target, row.case) in SAMPLE and row.dtype in F32}
    assert fresh == promised


def test_the_sample_sees_every_kind_of_outcome(fresh: set[ContractRow]) -> None:
    mechanisms = {row.entry.mechanism for row in fresh if row.entry is not None}
    assert {None, Mechanism.ATEN} <= mechanisms
    assert any(row.operand is None and row.entry is not None and row.entry.copied for row in fresh)
    assert any(row.entry is None for row in fresh)
