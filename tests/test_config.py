from __future__ import annotations

import pytest

from frx_graph.config import AdviseConfig, find_pyproject, read_advise_config
from frx_graph.errors import OptionError
from frx_graph.reports.advice.terminal import Format


def _project(folder, text):
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_nearest_file_counts(tmp_path):
    _project(tmp_path, "[tool.frx]\ntrain = true\n")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert read_advise_config(below).train is True
    _project(tmp_path / "a", "[project]\nname = 'x'\n")
    assert read_advise_config(below) == AdviseConfig()
    assert find_pyproject(below) == tmp_path / "a" / "pyproject.toml"


def test_all_keys(tmp_path):
    config = read_advise_config(
        _project(
            tmp_path,
            """
            [tool.frx]
            select = ["FRX001", "FRX00"]
            ignore = ["FRX005"]
            inner = "inductor"
            device = "cpu"
            dtype = "bfloat16"
            train = true
            observe = true
            format = "sarif"
            top = 3
            baseline = "ci/baseline.json"
            exit_zero = true
            ledger = "ci/ledger.sqlite3"
            """,
        )
    )
    assert config == AdviseConfig(
        select=("FRX001", "FRX00"),
        ignore=("FRX005",),
        inner="inductor",
        device="cpu",
        dtype="bfloat16",
        train=True,
        observe=True,
        format=Format.SARIF,
        top=3,
        baseline=tmp_path / "ci" / "baseline.json",
        exit_zero=True,
        ledger=str(tmp_path / "ci" / "ledger.sqlite3"),
    )


def test_the_gpu_of_the_advice_is_a_key(tmp_path):
    assert read_advise_config(_project(tmp_path, '[tool.frx]\nfor = "h100"\n')).gpu == "h100"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[tool.frx]\nfor = "h100"\ndevice = "cpu"\n', "for and device name two places"),
        ('[tool.frx]\ngpu = "h100"\n', "unknown key 'gpu'"),
        ("[tool.frx]\nexit-zero = true\n", "unknown key 'exit-zero'.*did you mean 'exit_zero'"),
        ("[tool.frx]\nignored = []\n", "did you mean 'ignore'"),
        ("[tool.frx]\nzzz = 1\n", "known keys: targets, select"),
        ("[tool.frx]\ntrain = 'yes'\n", r"\[tool.frx\] train: Input should be a valid boolean"),
        ("[tool.frx]\ntop = 0\n", "top: Input should be greater than or equal to 1"),
        ("[tool.frx]\nselect = 'FRX001'\n", "select"),
        ("[tool.frx]\nselect = [1]\n", r"select\.0"),
        ("[tool.frx]\nformat = 'pdf'\n", "format: Input should be 'text', 'json'"),
        ("[tool]\nfrx = 3\n", "tool.frx is not a table"),
        ("[tool.frx\n", "cannot be read"),
    ],
)
def test_mistakes_are_one_clear_line(tmp_path, text, message):
    with pytest.raises(OptionError, match=message) as error:
        read_advise_config(_project(tmp_path, text))
    assert "pyproject.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_not_utf8(tmp_path):
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(OptionError, match="cannot be read"):
        read_advise_config(tmp_path)


def test_no_file_is_all_defaults(tmp_path, monkeypatch):
    monkeypatch.setattr("frx_graph.config.find_pyproject", lambda start: None)
    assert read_advise_config(tmp_path) == AdviseConfig()


@pytest.mark.parametrize("ledger", ["postgresql://host/x", "sqlite:////l.db", "~/l.db", "/l.db"])
def test_a_ledger_that_is_nowhere_near_the_file_stays_as_it_is(tmp_path, ledger):
    assert read_advise_config(_project(tmp_path, f"[tool.frx]\nledger = {ledger!r}\n")).ledger == ledger
