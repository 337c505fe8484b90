"""The figures in docs/measured.md are those of the results that it names; docs/rewrites.md lists every rewrite."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from peers import CaseTimes
from pydantic import TypeAdapter
from versus_timing import geometric_mean

from frx_graph.passes.rewrites import REWRITES

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
TEXT = (DOCS / "measured.md").read_text()
MEASURED = " ".join(TEXT.split())
INTERNALS = sorted((DOCS / "internals").glob("*.md"))
CASES = json.loads((ROOT / "benchmarks" / "results" / "versus-cpu-amd-avx512.json").read_text())["cases"]


def rows(columns: int, text: str = TEXT) -> dict[str, tuple[str, ...]]:
    """Return the rows of the tables of so many columns, by their first two cells, or one in a table of three."""
    split = (
        tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
        for line in text.splitlines()
        if line[:1] == "|"
    )
    return {" ".join(cells[: 1 if columns == 3 else 2]): cells for cells in split if len(cells) == columns}


def speed(arm: dict[str, Any]) -> float:
    return float(arm["ratio"]["median"])


def best(case: dict[str, Any], kind: str, *, frozen: bool = True) -> dict[str, Any]:
    return max((a for a in case["arms"] if a["kind"] == kind and (frozen or not a["frozen"])), key=speed)


def step(case: dict[str, Any]) -> str:
    return f"{'' if case['dtype'] == 'fp32' else case['dtype'] + ' '}{case['mode']}, batch {case['batch']}"


def under_inductor() -> Iterator[dict[str, Any]]:
    return (case for case in CASES if case["inner"] == "inductor")


def test_table_of_speeds() -> None:
    def row(case: dict[str, Any]) -> tuple[str, ...]:
        variant, frx, parameters = best(case, "variant"), best(case, "frx"), best(case, "frx", frozen=False)
        names = variant["arm"], frx["arm"].removeprefix("frx ")
        speeds = f"{speed(variant):.2f} {names[0]}", f"{speed(frx):.2f} {names[1]}", f"{speed(parameters):.2f}"
        return case["entry"], step(case), *speeds

    listed = {key: cells for key, cells in rows(5).items() if re.match(r"\d\.\d\d", cells[2])}
    assert listed == {f"{case['entry']} {step(case)}": row(case) for case in under_inductor()}


@pytest.mark.parametrize("machine", ["intel-6.207.2", "amd-25.17.1", "amd-25.17.1-onednn"])
def test_table_of_peers(machine: str) -> None:
    name = f"peers-cpu-{machine}.json"
    found = json.loads((ROOT / "benchmarks" / "results" / name).read_text())
    (section,) = (part for part in re.split("^#+ ", TEXT, flags=re.MULTILINE) if f"`benchmarks/results/{name}`" in part)
    cases = TypeAdapter(list[CaseTimes]).validate_python(found["cases"])

    def row(case: CaseTimes) -> tuple[str, ...]:
        return (case.network, *(f"{1e3 * median(arm.wall_s):.1f}" for arm in case.arms), f"{case.over_peer:.2f}")

    listed = {cells[0]: cells for cells in rows(2 + len(cases[0].arms), section).values()}
    assert {network: listed.get(network) for network in (case.network for case in cases)} == {
        case.network: row(case) for case in cases
    }
    mean = geometric_mean([case.over_peer or 0.0 for case in cases])
    assert f"The geometric mean over the better peer is {mean:.2f}." in " ".join(section.split())


def test_networks_that_lose_to_the_best_variant_are_named() -> None:
    lost = {
        case["entry"] for case in under_inductor() if speed(best(case, "frx")) < 0.98 * speed(best(case, "variant"))
    }
    (said,) = re.findall(r"More than 2 % behind the best variant: (.*?)\. That variant", MEASURED)
    assert set(re.findall(r"`(\w+)`", said)) == lost


def test_without_a_compiler() -> None:
    frozen = {c["entry"]: speed(a) for c in CASES if c["inner"] == "eager" for a in c["arms"] if a["frozen"]}
    (said,) = re.findall(r"mean ([\d.]+) over (\d+) networks with frozen weights, from ([\d.]+) to ([\d.]+)", MEASURED)
    product = 1.0
    for value in frozen.values():
        product *= value
    mean = product ** (1 / len(frozen))
    assert said == (f"{mean:.2f}", str(len(frozen)), f"{min(frozen.values()):.2f}", f"{max(frozen.values()):.2f}")


def test_table_of_conversions() -> None:
    def left(case: dict[str, Any], name: str) -> str:
        default = case["arms"][0]["conversion_bytes"]
        found = [arm["conversion_bytes"] for arm in case["arms"] if arm["arm"] == name]
        if not found:
            return ""
        return f"{100 * found[0] / default:.0f} %" if default else f"{found[0] / 1e6:.1f} MB"

    def row(case: dict[str, Any]) -> tuple[str, ...]:
        default = f"{case['arms'][0]['conversion_bytes'] / 1e6:.1f} MB"
        arms = ("frx frozen", "frx eager frozen", "frx prepared")
        return case["entry"], step(case), default, *(left(case, arm) for arm in arms)

    listed = {key: cells for key, cells in rows(6).items() if cells[2].endswith("MB")}
    assert listed == {f"{case['entry']} {step(case)}": row(case) for case in under_inductor()}


def test_every_rewrite_is_in_the_table_of_rewrites() -> None:
    listed = rows(3, (DOCS / "rewrites.md").read_text())
    named = {name for first in listed for name in re.findall(r"`(\w+)`", first)}
    assert {rewrite.name for rewrite in REWRITES} <= named


def test_every_name_in_the_table_of_rewrites_exists() -> None:
    sources = [path for path in ROOT.glob("passes/**/*.py") if path.name != "__init__.py"]
    known = {path.stem for path in sources}
    known |= {name for path in sources for name in re.findall(r'^NAME = "(\w+)"', path.read_text(), re.MULTILINE)}
    named = [name for first in rows(3, (DOCS / "rewrites.md").read_text()) for name in re.findall(r"`(\w+)`", first)]
    assert [name for name in named if name not in known] == []


@pytest.mark.parametrize("page", INTERNALS, ids=lambda page: page.stem)
def test_files_that_are_mentioned_exist(page: Path) -> None:
    python = {path.stem for path in ROOT.glob("**/*.py") if ".venv" not in path.parts}
    mentioned = re.findall(r"`((?:[\w.]+/)*)(\w+)\.py`", page.read_text())
    names = [name for folder, name in mentioned if not (folder.startswith("torch/") or re.search(r"your_|000N", name))]
    assert [name for name in names if name not in python] == []
