from pathlib import Path

import pytest
import torch
import yaml

from frx_graph.errors import ContractError
from frx_graph.facts.layout import StridePattern
from frx_graph.measure.operators.operator_contract import (
    ContractEntry,
    ContractRow,
    OperatorContract,
    dump_contract,
    load_contract,
    make_contract_name,
    read_contract,
)
from frx_graph.measure.operators.operator_measurement import Mechanism

F32, BF16 = torch.float32, torch.bfloat16
COPIED = ContractEntry(True, 1.0, 8, Mechanism.ATEN)
KEPT = ContractEntry(False)
TARGET = "aten.convolution.default"


def row(
    pattern: StridePattern,
    entry: ContractEntry | None,
    *,
    case: str = "2-D",
    operand: int | None = 0,
    rank: int = 4,
    dtype: torch.dtype = F32,
) -> ContractRow:
    return ContractRow(TARGET, case, operand, rank, pattern, dtype, entry)


def contract(*rows: ContractRow, version: str = "2.15.0") -> OperatorContract:
    return OperatorContract(make_contract_name("cpu", version), "cpu", version, {"device": "a processor"}, rows)


def test_lookup() -> None:
    found = contract(
        row(StridePattern.HEADS, COPIED),
        row(StridePattern.CONTIGUOUS, KEPT),
        row(StridePattern.CONTIGUOUS, COPIED, operand=None),
        row(StridePattern.HEADS, KEPT, dtype=BF16),
    )
    assert found.get_entry(TARGET, 0, StridePattern.HEADS, F32) == COPIED
    assert found.get_entry(TARGET, 0, StridePattern.HEADS, BF16) == KEPT
    assert found.get_entry(TARGET, 0, StridePattern.CONTIGUOUS, F32) == KEPT
    assert found.get_entry(TARGET, None, StridePattern.CONTIGUOUS, F32) == COPIED


def test_unmeasured_entry_is_unknown() -> None:
    found = contract(row(StridePattern.HEADS, COPIED))
    assert found.get_entry(TARGET, 1, StridePattern.HEADS, F32) is None
    assert found.get_entry(TARGET, 0, StridePattern.PERMUTED, F32) is None
    assert found.get_entry(TARGET, 0, StridePattern.HEADS, torch.float16) is None
    assert found.get_entry("aten.nothing.default", 0, StridePattern.HEADS, F32) is None


def test_a_class_in_which_calls_disagree_is_unknown() -> None:
    assert contract(row(StridePattern.PERMUTED, None)).get_entry(TARGET, 0, StridePattern.PERMUTED, F32) is None


def test_forms_of_an_operator_must_agree_but_for_the_number_of_copies() -> None:
    pattern = StridePattern.EXPANDED
    more = ContractEntry(True, 1.0, 16, Mechanism.ATEN)
    agreeing = contract(row(pattern, COPIED), row(pattern, more, case="grouped"))
    assert agreeing.get_entry(TARGET, 0, pattern, F32) == COPIED
    for other in (
        KEPT,
        None,
        ContractEntry(True, 2.0, 8, Mechanism.ATEN),
        ContractEntry(True, 1.0, 8, Mechanism.ONEDNN),
    ):
        disagreeing = contract(row(pattern, COPIED), row(pattern, other, case="3-D", rank=5))
        assert disagreeing.get_entry(TARGET, 0, pattern, F32) is None
        assert disagreeing.get_entry(TARGET, 0, pattern, F32, rank=4) == COPIED


def test_the_file_holds_all_that_the_contract_does(tmp_path: Path) -> None:
    original = contract(
        row(StridePattern.CONTIGUOUS, KEPT),
        row(StridePattern.HEADS, COPIED),
        row(StridePattern.PERMUTED, None),
        row(StridePattern.CONTIGUOUS, COPIED, dtype=BF16),
        row(StridePattern.CONTIGUOUS, COPIED, operand=None),
        row(StridePattern.TRANSPOSED, COPIED, case="3-D", operand=1, rank=5),
    )
    path = tmp_path / "cpu-2.15.yaml"
    path.write_text(dump_contract(original))
    again = read_contract(path)
    assert set(again.rows) == set(original.rows)
    assert (again.name, again.torch_version, again.measured_on) == ("cpu-2.15", "2.15.0", {"device": "a processor"})


@pytest.mark.parametrize("version", ["2.15.0+cu132", "2.13.0+cpu"])
def test_shipped_contracts_answer_for_their_own_version(version: str, tmp_path: Path) -> None:
    found = load_contract("cpu", version, own=tmp_path)
    assert found is not None
    assert (found.name, found.exact) == (make_contract_name("cpu", version), True)
    transposed = found.get_entry("aten.native_layer_norm.default", 0, StridePattern.TRANSPOSED, F32)
    assert transposed == ContractEntry(True, 1.0, 1, Mechanism.ATEN)
    assert found.get_entry("aten.mm.default", 1, StridePattern.TRANSPOSED, F32) == KEPT
    assert found.get_entry("aten.cat.default", 0, StridePattern.PERMUTED, F32) == KEPT


@pytest.mark.parametrize(("version", "nearest"), [("2.11.0", "cpu-2.13"), ("2.16.1", "cpu-2.15"), ("3.0", "cpu-2.13")])
def test_another_version_gets_the_nearest_contract_marked_as_inexact(
    version: str, nearest: str, tmp_path: Path
) -> None:
    found = load_contract("cpu", version, own=tmp_path)
    assert found is not None
    assert (found.name, found.exact) == (nearest, False)


def test_a_device_without_contract(tmp_path: Path) -> None:
    assert load_contract("cuda", "2.15.0", own=tmp_path) is None


def test_local_contract_takes_precedence_over_the_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "cpu-2.15.yaml").write_text(dump_contract(contract(row(StridePattern.HEADS, COPIED))))
    (tmp_path / "cuda-2.15.yaml").write_text(
        dump_contract(OperatorContract("cuda-2.15", "cuda", "2.15.0", {}, (row(StridePattern.HEADS, KEPT),)))
    )
    (tmp_path / "cpu-backup.yaml").write_text("not a version")
    own = load_contract("cpu", "2.15.1", own=tmp_path)
    assert own is not None
    assert own.path == tmp_path / "cpu-2.15.yaml"
    assert load_contract("cpu", "2.13.0", own=tmp_path).path.parent != tmp_path
    assert load_contract("cuda", "2.15.0", own=tmp_path).device == "cuda"


VALID = yaml.safe_load(dump_contract(contract(row(StridePattern.HEADS, COPIED), row(StridePattern.PERMUTED, None))))


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "frx_operator_contract_v2"},
        {"torch": "newest"},
        {"unexpected": 1},
        {"calls": [{"target": "no overload", "case": "x", "operands": []}]},
        {"calls": [{"target": TARGET, "case": "x", "operands": [{"operand": -1, "rank": 4}]}]},
        {
            "calls": [
                {
                    "target": TARGET,
                    "case": "x",
                    "operands": [
                        {"operand": 0, "rank": 4, "float32": {"not_copied": ["heads"], "varies": ["heads"]}},
                    ],
                }
            ]
        },
        {
            "calls": [
                {
                    "target": TARGET,
                    "case": "x",
                    "operands": [{"operand": 0, "rank": 4, "float32": {"not_copied": ["sideways"]}}],
                }
            ]
        },
    ],
    ids=["schema", "version", "unknown key", "target", "operand", "two outcomes", "pattern"],
)
def test_a_malformed_contract_is_refused_by_name(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "cpu-2.15.yaml"
    path.write_text(yaml.safe_dump(VALID))
    read_contract(path)
    path.write_text(yaml.safe_dump(VALID | change))
    with pytest.raises(ContractError, match=r"cpu-2\.15\.yaml"):
        read_contract(path)


@pytest.mark.parametrize("content", ["", "[1, 2", "- a list", "\x00", "!!python/object/apply:os.getcwd []"])
def test_non_contract_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "cpu-2.15.yaml"
    path.write_text(content)
    with pytest.raises(ContractError):
        read_contract(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError):
        read_contract(tmp_path / "cpu-2.15.yaml")
