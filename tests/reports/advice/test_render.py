from __future__ import annotations

import dataclasses
import json

import pytest

from frx_graph.errors import OptionError
from frx_graph.reports.advice.render import AdviceReport, render
from frx_graph.reports.advice.terminal import DEFAULT_TOP, Format
from frx_graph.reports.advice.wording import load_cards


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize("name", ["observed", "empty", "failed", "hostile"])
def test_every_format_renders_every_advice(name, format, request, root, cards):
    advice = request.getfixturevalue(name)
    text = render(advice, format, root=root, cards=cards)
    assert text.endswith("\n")
    assert text == render(advice, format, root=root, cards=cards)
    text.encode("utf-8")


@pytest.mark.parametrize("format", Format)
def test_nothing_analysed_never_reads_like_no_findings(format, failed, root, cards):
    text = render(failed, format, root=root, cards=cards)
    assert "No findings" not in text
    if format is Format.JSON:
        assert json.loads(text)["graphs"] == []
        assert json.loads(text)["refusals"]
    else:
        assert "Nothing was analysed" in text
        assert "data-dependent branch on tensor.item()" in " ".join(text.split())


def test_top_limits_what_people_read_only(advice, root, cards):
    places = [dataclasses.replace(one.site, file="net.py", line=at) for at, one in enumerate(advice.findings * 10, 1)]
    findings = zip(advice.findings * 10, places, strict=True)
    many = dataclasses.replace(advice, findings=tuple(dataclasses.replace(one, site=site) for one, site in findings))
    counts = {
        format: render(many, format, top=3, root=root, cards=cards).count("Tag the operator flexible")
        for format in Format
    }
    assert counts == {
        Format.TEXT: 0, Format.MD: 0, Format.JSON: 10, Format.SARIF: 10, Format.GITHUB: 10, Format.HTML: 10,
    }  # fmt: skip
    assert f"--top {len(many.findings)} shows all" in render(many, Format.TEXT, root=root)
    assert len(many.findings) > DEFAULT_TOP


def test_machine_formats_are_relative_to_the_checkout(advice, tmp_path, cards):
    (tmp_path / ".git").mkdir()
    folder = tmp_path / "models"
    folder.mkdir()
    site = dataclasses.replace(advice.findings[0].site, file=str(folder / "net.py"))
    one = dataclasses.replace(advice, findings=(dataclasses.replace(advice.findings[0], site=site),))
    assert "::warning file=models/net.py,line=142" in render(one, Format.GITHUB, root=folder)
    assert '"uri": "models/net.py"' in render(one, Format.SARIF, root=folder, cards=cards)
    assert " net.py:142 in forward" in render(one, Format.TEXT, root=folder)


def test_cards_of_the_package_are_the_default(advice, root):
    document = json.loads(render(advice, Format.SARIF, root=root))
    described = {rule["id"] for rule in document["runs"][0]["tool"]["driver"]["rules"] if "name" in rule}
    assert described == set(load_cards())


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
