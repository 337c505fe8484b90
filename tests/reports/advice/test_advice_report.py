from __future__ import annotations

import json

import pytest

from frx_graph.errors import OptionError
from frx_graph.reports.advice.advice_report import AdviceReport
from frx_graph.reports.advice.report_format import Format


def test_the_ending_names_the_format(advice, tmp_path):
    path = AdviceReport(advice).save(tmp_path / "a.json")
    assert len(json.loads(path.read_text(encoding="utf-8"))["findings"]) == len(advice.findings)


@pytest.mark.parametrize("name", ["a.xyz", "a"])
def test_an_unknown_ending_names_the_formats(advice, tmp_path, name):
    with pytest.raises(OptionError) as error:
        AdviceReport(advice).save(tmp_path / name)
    assert all(format in error.value.hint for format in Format)
    assert not list(tmp_path.iterdir())


def test_an_unknown_format_names_the_formats(advice, tmp_path):
    report = AdviceReport(advice)
    for call in (lambda: report.render("yaml"), lambda: report.save(tmp_path / "a.json", "yaml")):
        with pytest.raises(OptionError, match="'yaml'") as error:
            call()
        assert all(format in error.value.hint for format in Format)


def test_a_missing_folder_and_a_folder_for_a_file(advice, tmp_path):
    report = AdviceReport(advice)
    with pytest.raises(OptionError, match="no such folder"):
        report.save(tmp_path / "missing" / "a.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(OptionError, match="cannot write"):
        report.save(tmp_path / "folder.json")
