"""The figures that docs/rewrites.md gives are those of the results that it names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frx_graph.passes.rewrites import REWRITES

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "rewrites.md").read_text()
MEASURED = " ".join(TEXT[TEXT.index("## What was measured") :].split())
CASES = json.loads((ROOT / "benchmarks" / "results" / "versus-cpu-amd-avx512.json").read_text())["cases"]


def rows(columns: int) -> dict[str, tuple[str, ...]]:
    """The rows of the tables of so many columns, by their first."""
    split = (
        tuple(cell.strip() for cell in line.strip("|").split("|")) for line in TEXT.splitlines() if line[:1] == "|"
    )
    return {" ".join(cells[: columns - 3 or 1]): cells for cells in split if len(cells) == columns}


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


def test_networks_that_lose_to_the_best_variant_are_named() -> None:
    lost = {
        case["entry"] for case in under_inductor() if speed(best(case, "frx")) < 0.98 * speed(best(case, "variant"))
    }
    (said,) = re.findall(r"- At least as fast as the best variant, within 2 %: (.*?)\. Frozen", MEASURED)
    assert set(re.findall(r"`(\w+)`", said)) == lost


def test_without_a_compiler() -> None:
    frozen = {c["entry"]: speed(a) for c in CASES if c["inner"] == "eager" for a in c["arms"] if a["frozen"]}
    (said,) = re.findall(r"mean ([\d.]+) over (\d+) networks with frozen weights, from ([\d.]+) to ([\d.]+)", MEASURED)
    product = 1.0
    for value in frozen.values():
        product *= value
    mean = product ** (1 / len(frozen))
    assert said == (f"{mean:.2f}", str(len(frozen)), f"{min(frozen.values()):.2f}", f"{max(frozen.values()):.2f}")


@pytest.mark.parametrize(
    ("arm", "start", "most"),
    [("frx frozen", "- Frozen under Inductor", 12), ("frx eager frozen", "- Frozen in eager", 18)],
)
def test_every_frozen_network_that_keeps_many_conversions_is_named(arm: str, start: str, most: int) -> None:
    part = MEASURED[MEASURED.index(start) :].partition(" - ")[0]
    left = {
        case["entry"]: 100 * found["conversion_bytes"] / case["arms"][0]["conversion_bytes"]
        for case in under_inductor()
        for found in case["arms"]
        if found["arm"] == arm and case["arms"][0]["conversion_bytes"] and case["dtype"] == "fp32"
    }
    many = {name: share for name, share in left.items() if share >= most}
    assert set(re.findall(r"`(\w+)`", part)) - {"unet_3d"} == set(many)
    figures = {int(figure) for figure in re.findall(r"(\d+)(?= %| to)", part)}
    assert {int(share) for share in many.values()} <= figures | {figure - 1 for figure in figures}


def test_weights_that_stay_parameters_keep_as_much_as_is_said() -> None:
    left = [
        100 * found["conversion_bytes"] / case["arms"][0]["conversion_bytes"]
        for case in under_inductor()
        for found in case["arms"]
        if found["arm"] == "frx prepared" and case["arms"][0]["conversion_bytes"]
    ]
    part = MEASURED[MEASURED.index("- With weights that stay parameters, prepared") :]
    figures = [int(figure) for figure in re.findall(r"(\d+) %", part)]
    small = {round(share) for share in left if share < 30}
    assert small <= set(figures)
    assert sorted(round(share) for share in left)[-2] == max(figures)


def test_every_rewrite_is_in_the_table_of_rewrites() -> None:
    named = {name for first in rows(3) for name in re.findall(r"`(\w+)`", first)}
    assert {rewrite.name for rewrite in REWRITES} <= named


def test_files_and_rewrites_that_are_mentioned_exist() -> None:
    python = {path.stem for path in ROOT.glob("**/*.py") if ".venv" not in path.parts}
    defined = {path.read_text().partition('NAME = "')[2].partition('"')[0] for path in ROOT.glob("frx_graph/*.py")}
    first_column = [name for first in rows(3) for name in re.findall(r"`(\w+)`", first)]
    assert [name for name in first_column if name not in python | defined] == []
    assert [name for name in re.findall(r"`(?:\w+/)*(\w+)\.py`", TEXT) if name not in python] == []
