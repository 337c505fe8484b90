from __future__ import annotations

import dataclasses
import json

import pytest

from frx_graph.reports.advice.cards import shipped_cards
from frx_graph.reports.advice.render import DEFAULT_TOP, render
from frx_graph.reports.advice.report_format import Format


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
        assert "data-dependent branch on tensor.item()" in text


def test_top_limits_what_people_read_only(advice, root, cards):
    many = dataclasses.replace(advice, findings=advice.findings * 10)
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
    assert described == set(shipped_cards())
