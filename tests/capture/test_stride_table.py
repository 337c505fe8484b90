"""The list of operators whose kernels make other strides than their fakes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from frx_graph.capture.stride_table import (
    CallClass,
    StrideTable,
    classify_call,
    dump_stride_table,
    load_stride_table,
    make_table_name,
    read_stride_table,
)
from frx_graph.errors import ContractError
from frx_graph.support.cache_directory import get_own_contracts

PLAIN, LAST = ((2, 3, 4, 4), (48, 16, 4, 1)), ((2, 3, 4, 4), (48, 1, 12, 3))
SEEN = {
    "aten.roll.default": {CallClass.PLAIN: True, CallClass.CHANNELS_LAST: False, CallClass.OTHER: True},
    "aten.sin.default": {CallClass.PLAIN: True, CallClass.OTHER: True},
}


@pytest.mark.parametrize(
    ("operands", "kind"),
    [
        ([PLAIN, ((3,), (1,))], CallClass.PLAIN),
        ([LAST, ((3,), (1,))], CallClass.CHANNELS_LAST),
        ([LAST, PLAIN], CallClass.OTHER),
        ([((3, 4), (1, 3))], CallClass.OTHER),
        ([((2, 3, 1, 1), (3, 1, 3, 3))], CallClass.PLAIN),
        ([((0, 3), (1, 7))], CallClass.PLAIN),
        ([], CallClass.PLAIN),
    ],
)
def test_classes(operands: list[tuple[tuple[int, ...], tuple[int, ...]]], kind: CallClass) -> None:
    assert classify_call(operands) is kind


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "table.yaml"
    path.write_text(dump_stride_table("cpu", "2.15.0+cpu", SEEN))
    table = read_stride_table(path)
    assert table == StrideTable(
        {"aten.roll.default": frozenset({CallClass.PLAIN, CallClass.OTHER})}, frozenset({"aten.sin.default"})
    )
    assert table.agrees("aten.roll.default", [PLAIN])
    assert not table.agrees("aten.roll.default", [LAST])


def test_calls_of_no_common_kind_are_never_trusted() -> None:
    table = StrideTable({"aten.roll.default": frozenset(CallClass)})
    assert not table.agrees("aten.roll.default", [LAST, PLAIN])


def test_the_shipped_table_knows_the_installed_torch() -> None:
    table = load_stride_table()
    assert {"aten.roll.default", "aten.channel_shuffle.default", "aten.copysign.Tensor"} <= table.differ.keys()
    assert {"aten.add.Tensor", "aten.convolution.default"} <= table.same
    assert not table.same & table.differ.keys()


def test_a_table_of_this_machine_goes_before_the_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRX_CACHE_DIR", str(tmp_path))
    own = get_own_contracts()
    own.mkdir()
    version = str(torch.__version__)
    (own / f"{make_table_name('cpu', version)}.yaml").write_text(dump_stride_table("cpu", version, SEEN))
    load_stride_table.cache_clear()
    try:
        assert set(load_stride_table().differ) == {"aten.roll.default"}
    finally:
        load_stride_table.cache_clear()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schema: another", "malformed: schema"),
        ("[", "cannot be read"),
        (dump_stride_table("cpu", "2.15", SEEN).replace("channels_last", "sideways"), "malformed: kernels"),
    ],
)
def test_a_broken_table_is_an_error_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "table.yaml"
    path.write_text(text)
    with pytest.raises(ContractError, match=words):
        read_stride_table(path)
