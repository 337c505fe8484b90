from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
import unicodedata
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from frx_graph.advice import Totals
from frx_graph.reports.advice.html import FRAGMENT_FINDINGS, render_fragment, render_html

VOID = {"meta", "input", "br", "wbr", "link", "img"}


class Page(HTMLParser):
    """What a browser would make of a page: elements with attributes, text, and whether all tags are closed."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def named(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def html(root, cards):
    return lambda advice: render_html(advice, root=root, cards=cards)


def _without_assets(page):
    """Style and script have their own files; what is held here is the structure."""
    page = re.sub(r"<style>.*?</style>", "<style></style>", page, flags=re.DOTALL)
    page = re.sub(r"<script>.*?</script>", "<script></script>", page, flags=re.DOTALL)
    return re.sub(r"'sha256-[^']+'", "'sha256-'", page)


@pytest.mark.parametrize("name", ["observed", "empty", "failed", "hostile"])
def test_golden(name, request, html, golden):
    page = html(request.getfixturevalue(name))
    golden(f"{name}.html", _without_assets(page))
    assert page == html(request.getfixturevalue(name))


def test_fragment_golden(observed, root, cards, golden):
    golden("fragment.html", _without_assets(render_fragment(observed, root=root, cards=cards)))


@pytest.mark.parametrize("name", ["advice", "observed", "empty", "failed", "hostile"])
def test_well_formed_and_self_contained(name, request, html):
    source = html(request.getfixturevalue(name))
    page = Page(source)
    assert "url(" not in source
    assert "@import" not in source
    assert not [attributes for _, attributes in page.elements if "src" in attributes or "srcset" in attributes]
    assert not page.named("link")
    links = [attributes["href"] for _, attributes in page.elements if "href" in attributes]
    assert all(link.startswith("https://docs.pytorch.org/") for link in links)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    labelled = [attributes["aria-labelledby"] for _, attributes in page.elements if "aria-labelledby" in attributes]
    assert set(labelled) <= set(ids)


def test_only_our_script_may_run(observed, hostile, html):
    for advice in (observed, hostile):
        source = html(advice)
        (script,) = re.findall(r"<script>(.*?)</script>", source, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        (policy,) = [m["content"] for m in Page(source).named("meta") if m.get("http-equiv")]
        assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_hostile_names_are_text(hostile, html):
    source = html(hostile)
    page = Page(source)
    assert len(page.named("script")) == 1
    assert not [a for _, attributes in page.elements for a in attributes if a.startswith("on")]
    assert any("<script>alert(1)</script>" in text for text in page.text)
    assert not {unicodedata.category(c) for c in source} & {"Cf", "Cs"}
    assert {c for c in source if unicodedata.category(c) == "Cc"} == {"\n"}
    assert "x" * 300 not in source


def test_pictures_are_described(observed, html):
    source = html(observed)
    pictures = re.findall(r"<svg.*?</svg>", source, flags=re.DOTALL)
    assert len(pictures) >= 4
    for picture in pictures:
        ElementTree.fromstring(picture)
    for attributes in Page(source).named("svg"):
        assert attributes.get("aria-hidden") == "true" or (attributes["role"] == "img" and attributes["aria-label"])


def test_every_finding_can_be_opened_and_holds_its_parts(observed, html):
    source = html(observed)
    page = Page(source)
    findings = [a for a in page.named("details") if "finding" in a["class"].split()]
    assert len(findings) == len(observed.findings)
    text = "".join(page.text)
    for wanted in (
        "model = model.to(memory_format=torch.channels_last)",
        "2 reorder lines, 0.31 ms together",
        "y = conv(x)  # <copies>",
        "model.blocks.11.attn",
        "6.1–8.0 %",
        "measured",
        "no anchor was measured on this device",
    ):
        assert wanted in text


def test_nothing_analysed_is_not_shown_as_clean(failed, empty, html):
    bad, good = html(failed), html(empty)
    assert 'class="outcome is-nothing-analysed"' in bad
    assert "Nothing was analysed" in bad
    assert "data-dependent branch" in bad
    assert 'class="tiles"' not in bad
    assert "indings" not in "".join(Page(_without_assets(bad)).text)
    assert 'class="outcome is-clean"' in good
    assert "No findings in 36 operators." in good


def test_unknown_is_written_as_unknown(advice, html):
    unknown = dataclasses.replace(advice, totals=Totals(36, 17, None, None, 2))
    assert html(unknown).count("<dd>unknown</dd>") == 2


def test_fragment_can_be_embedded_in_any_page(observed, root, cards):
    first = observed.findings[0]
    places = (dataclasses.replace(first, site=dataclasses.replace(first.site, line=line)) for line in range(1, 21))
    many = dataclasses.replace(observed, findings=tuple(places))
    source = render_fragment(many, root=root, cards=cards)
    page = Page(source)
    assert page.elements[0] == ("div", {"class": "frx frx-fragment"})
    assert not page.named("script")
    assert not [attributes for _, attributes in page.elements if "id" in attributes]
    assert len([a for a in page.named("details") if "finding" in a["class"].split()]) == FRAGMENT_FINDINGS
    assert "10 more places not shown here." in source
    style = re.search(r"<style>(.*?)</style>", source, flags=re.DOTALL)[1]
    selectors = re.findall(r"^\s*([^{}@\n][^{}\n]*)\{", style, flags=re.MULTILINE)
    assert selectors
    assert all(".frx" in selector for selector in selectors)


def test_fragment_reports_that_nothing_was_analysed(failed, root, cards):
    assert "Nothing was analysed" in render_fragment(failed, root=root, cards=cards)
