import json
from pathlib import Path

import pytest
import torch
import typer
import yaml
from typer.testing import CliRunner

from frx_graph.capture.stride_table import read_stride_table
from frx_graph.cli.probe import probe, select_cases
from frx_graph.errors import EvidenceError, OptionError
from frx_graph.measure.operators.contract_cases import Case, Operand
from frx_graph.measure.operators.contract_table import CASES
from frx_graph.measure.operators.operator_contract import (
    load_contract,
    make_contract_name,
    read_contract,
)
from frx_graph.support.cache_directory import get_own_contracts

app = typer.Typer()
app.command()(probe)
NAME = make_contract_name("cpu", torch.__version__)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("FRX_CACHE_DIR", str(folder))
    return folder


def test_text_names_what_is_copied(cache: Path) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["--only", "native_layer_norm"])
    assert result.exit_code == 0, result.output
    assert NAME in result.stdout
    assert "operand 0" in result.stdout
    assert "transposed 1x" in result.stdout
    assert not cache.exists()


def test_json(cache: Path) -> None:
    result = CliRunner().invoke(app, ["--only", "aten.native_layer_norm", "--format", "json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [call["target"] for call in document["contract"]["calls"]] == ["aten.native_layer_norm.default"]
    assert document["file"] is None
    assert document["not_measured"] == []


def test_output_is_a_contract(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    result = CliRunner().invoke(app, ["--only", "aten.cat", "--only", "flip", "--output", str(path)])
    assert result.exit_code == 0, result.output
    assert str(path) in result.stderr
    assert {row.target for row in read_contract(path).rows} == {"aten.cat.default", "aten.flip.default"}


def test_a_whole_contract_goes_where_advice_looks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = tuple(case for case in CASES if case.target == "aten.flip.default")
    monkeypatch.setattr("frx_graph.cli.probe.CASES", cases)
    monkeypatch.setattr("frx_graph.cli.probe.STRIDE_CASES", tuple(c for c in CASES if c.target == "aten.roll.default"))
    monkeypatch.setattr("frx_graph.cli.probe.collect_database_calls", lambda _device, _progress: [])
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0, result.output
    (strides,) = get_own_contracts().glob("strides-cpu-*.yaml")
    assert strides.name in result.stderr
    assert set(read_stride_table(strides).differ) == {"aten.roll.default"}
    found = load_contract("cpu", torch.__version__)
    assert found is not None
    assert found.path == get_own_contracts() / f"{NAME}.yaml"
    assert {row.target for row in found.rows} == {"aten.flip.default"}


def test_without_the_operator_database_the_contract_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_device: str, _progress: object) -> list[object]:
        raise EvidenceError("torch's operator database cannot be imported: no expecttest")

    monkeypatch.setattr("frx_graph.cli.probe.CASES", CASES[:1])
    monkeypatch.setattr("frx_graph.cli.probe.collect_database_calls", fail)
    result = CliRunner().invoke(app, ["--json"])
    assert result.exit_code == 0, result.output
    assert "strides of results were not compared" in result.stderr
    assert json.loads(result.stdout)["strides"] is None


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").mkdir()
    result = CliRunner().invoke(app, ["--only", "flip", "--output", str(tmp_path / "x.yaml")])
    assert isinstance(result.exception, OptionError)
    assert result.exception.message == f"the contract cannot be written to {tmp_path / 'x.yaml'}"


def test_calls_that_cannot_be_made_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    impossible = Case("aten.mm.default", "sizes that do not fit", (Operand((4, 8)), Operand((4, 8))))
    monkeypatch.setattr("frx_graph.cli.probe.CASES", (impossible,))
    result = CliRunner().invoke(app, ["--only", "mm"])
    assert result.exit_code == 0, result.output
    assert "not measured: aten.mm.default bfloat16: RuntimeError" in result.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there() -> None:
    result = CliRunner().invoke(app, ["--device", "cuda"])
    assert isinstance(result.exception, OptionError)
    assert "no CUDA device" in str(result.exception)


def test_names_of_operators() -> None:
    for name in ("bmm", "aten.bmm", "aten.bmm.default"):
        assert {case.target for case in select_cases([name])} == {"aten.bmm.default"}
    assert select_cases(None) == CASES
    assert len(select_cases(["bmm", "aten.bmm"])) == 1
    with pytest.raises(OptionError, match=r"did you mean aten\.bmm"):
        select_cases(["aten.bmn"])
    with pytest.raises(OptionError, match="without --only"):
        select_cases(["zzzzzz"])


def test_no_progress_bar_without_a_terminal() -> None:
    result = CliRunner().invoke(app, ["--only", "flip", "--format", "json"])
    assert "measuring" not in result.stderr
    assert yaml.safe_load(result.stdout)


def test_a_missing_folder_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: object, **__: object) -> None:
        pytest.fail("operators were measured")

    monkeypatch.setattr("frx_graph.cli.probe.measure_contract", measured)
    result = CliRunner().invoke(app, ["--only", "aten.flip", "--output", str(tmp_path / "missing" / "mine.yaml")])
    assert isinstance(result.exception, OptionError)
    assert result.exception.message == f"no such folder: {tmp_path / 'missing'}"
