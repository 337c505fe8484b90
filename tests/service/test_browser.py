"""The page in a real browser: upload, error, hostile names, a large trace, the keyboard, a phone's width."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from frx_graph.ledger.database.opening import open_ledger
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.location import Location
from frx_graph.reports.trials.event_text import group_trials

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("FRX_CHROMIUM") or shutil.which("chromium")
pytestmark = [pytest.mark.integration, pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")]
QUIET = ["--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-component-update"]
DATA = Path(__file__).parents[1] / "data"
LARGE = 50_000_000


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield opened
        opened.close()


@pytest.fixture(params=["wide and light", "phone and dark"])
def page(browser, client, request):
    """What a page complains of fails the test that looks at it, but for answers that are errors."""
    phone = request.param.startswith("phone")
    view = {"width": 375 if phone else 1100, "height": 700}
    page = browser.new_page(viewport=view, color_scheme="dark" if phone else "light", base_url=str(client.base_url))
    page.set_default_timeout(120_000)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
    page.on("console", lambda said: complaints.append(said.text) if "status of 4" not in said.text else None)
    page.on(
        "request", lambda asked: None if asked.url.startswith(str(client.base_url)) else complaints.append(asked.url)
    )
    yield page
    page.close()
    assert complaints == []


def send(page, *files: Path, by_keyboard: bool = False) -> None:
    page.goto("/")
    for field, file in zip(("#file", "#other"), files, strict=False):
        page.set_input_files(field, file)
    if by_keyboard:
        page.focus("#gpu_model")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
    else:
        page.click("button[type=submit]")
    page.wait_for_url("**/report")


def fits(page) -> bool:
    """Nothing makes the page wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_a_trace_is_sent_and_its_findings_are_filtered(page):
    send(page, DATA / "traces" / "kineto_resnet50_two_steps.pt.trace.json.gz", by_keyboard=True)
    assert page.locator("h1").inner_text() == "kineto_resnet50_two_steps.pt.trace.json.gz"
    assert page.locator("svg.layout-bars rect").count() > 0
    assert page.locator("h2", has_text="Kernels").count() == 1
    assert fits(page)
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to the content"
    page.fill("#filter", "nothing has these words")
    assert page.locator("#filter-count").inner_text().startswith("0 of ")
    page.fill("#filter", "")
    page.click("#expand")
    assert page.locator(".findings > li details:not([open])").count() == 0


def test_two_files_are_compared(page):
    bad, good = (DATA / "cuda" / f"uncoalesced_access_{word}.cu" for word in ("bad", "good"))
    send(page, bad, good)
    assert "B is better" in page.locator(".outcome").inner_text()
    assert fits(page)


def test_unrecognized_file_is_reported(page, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("hello")
    send(page, file)
    assert page.locator("[role=alert]").inner_text().startswith("notes.txt: neither its name nor its content")
    assert fits(page)
    page.click("text=Analyse another file")
    page.wait_for_selector("#file")


def test_hostile_names_are_text(page, tmp_path):
    name = "<img src=x onerror=alert(1)><script>alert(2)</script>" + "long" * 60
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 0, "dur": 99, "args": {}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 5, "dur": 5,
         "args": {"correlation": 1}},
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 20, "dur": 30,
         "args": {"correlation": 1, "device": 0, "stream": 7}},
    ]  # fmt: skip
    file = tmp_path / "<b>trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    send(page, file)
    assert page.locator("h1").inner_text() == "file-1.json"
    assert "<img src=x onerror=alert(1)>" in page.inner_text("main")
    assert page.locator("main img, main script").count() == 0
    assert fits(page)


def test_a_trace_of_fifty_megabytes(browser, client, tmp_path):
    event = {
        "ph": "X",
        "cat": "kernel",
        "name": "add",
        "pid": 0,
        "tid": 7,
        "dur": 3,
        "args": {"device": 0, "stream": 7},
    }
    file = tmp_path / "large.json"
    with file.open("w") as out:
        out.write('{"traceEvents": [')
        out.write(",".join(json.dumps({**event, "ts": 5 * number}) for number in range(100)))
        number = 100
        while out.tell() < LARGE:
            out.write("," + ",".join(json.dumps({**event, "ts": 5 * (number + more)}) for more in range(10_000)))
            number += 10_000
        out.write("]}")
    page = browser.new_page(base_url=str(client.base_url))
    page.set_default_timeout(300_000)
    send(page, file)
    assert page.locator("h1").inner_text() == "large.json"
    assert f"{number:,}" in page.inner_text("main")
    page.close()


def test_files_can_be_dropped(page):
    page.goto("/")
    page.evaluate(
        """() => {
            const carried = new DataTransfer();
            carried.items.add(new File(["a"], "one.cu"));
            carried.items.add(new File(["b"], "two.cu"));
            const drop = document.getElementById("drop");
            drop.dispatchEvent(new DragEvent("drop", {dataTransfer: carried, bubbles: true, cancelable: true}));
        }"""
    )
    assert page.inner_text("#drop-hint") == "one.cu, two.cu"
    assert page.evaluate("[...document.querySelectorAll('input[type=file]')].map(one => one.files[0].name)") == [
        "one.cu", "two.cu",
    ]  # fmt: skip


def test_decisions_are_browsed(page, ledger_file, decide):
    source = open_ledger(Location(ledger_file))
    before = len(group_trials(source.read_events()))
    source.append([decide(Kind.PROPOSED), decide(Kind.TRIED), decide(Kind.PROMOTED, reason="word" * 200)])
    page.goto("/decisions")
    # The three events of a trial are one row.
    assert page.locator("tbody tr").count() == before + 1
    assert fits(page)
    page.select_option("#kind", "promoted")
    page.click("button[type=submit]")
    page.wait_for_url("**kind=promoted**")
    page.locator("tbody a").first.click()
    page.wait_for_url("**/decisions/*")
    assert page.locator("h1").inner_text().startswith("promoted")
    assert fits(page)
