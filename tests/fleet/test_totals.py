"""The sums of SQL are those that plain Python works out from the same rows."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.fleet.rows import AdviceRow, FindingRow, LabelRow, RunRow, RunRows
from frx_graph.fleet.run_tables import ROWS, RowFiles, open_database, write_parquet
from frx_graph.fleet.totals import LISTED, build_fleet_document
from frx_graph.reports.runs.fleet_document import CostPart, FleetDocument
from frx_graph.reports.runs.fleet_report import render_fleet

pytest.importorskip("duckdb")

shares = st.none() | st.floats(0, 1)
names = st.sampled_from(["FRX001", "FRX004", "FRX'; DROP TABLE runs; --"])


@st.composite
def runs(draw: st.DrawFn, place: int) -> RunRows:
    finding = st.builds(
        FindingRow,
        rule=names,
        site=st.sampled_from(["a", "b"]),
        file=st.none() | st.just("model.py"),
        line=st.none() | st.integers(1, 1 << 40),
        function=st.none() | st.text(max_size=3),
        module_path=st.none(),
        subject=st.text(max_size=3),
        title=st.text(max_size=3),
        share=shares,
        bytes_per_step=st.none() | st.floats(0, 1e12),
    )
    label = st.builds(
        LabelRow,
        label=st.sampled_from(["input_bound", "copy_bound"]),
        answer=st.sampled_from(["present", "absent", "undecidable"]),
        symptom=st.just(False),
        share=shares,
    )
    card = st.builds(
        AdviceRow,
        card=st.sampled_from(["rec_a", "rec_b"]),
        title=st.just("A card"),
        priority=st.just("high"),
        effort=st.just("local"),
        risk=st.just("LOW"),
        share=shares,
    )
    row = RunRow(
        place=f"run-{place:03d}",
        run_id=draw(st.sampled_from(["one", "two", "three"])),
        digest=draw(st.sampled_from(["a", "b", "c"])),
        frx_version="1",
        anew=draw(st.booleans()),
        steps=draw(st.integers(0, 1 << 53)),
        seconds=draw(st.none() | st.floats(0, 1e7)),
        bottleneck=draw(st.none() | st.sampled_from(["input_bound", "insufficient_telemetry"])),
        confidence=draw(shares),
        traced=draw(st.booleans()),
        rows_left_out=draw(st.integers(0, 3)),
    )
    return RunRows(
        row,
        tuple(draw(st.lists(label, max_size=2, unique_by=lambda one: one.label))),
        tuple(draw(st.lists(finding, max_size=4))),
        tuple(draw(st.lists(card, max_size=2, unique_by=lambda one: one.card))),
    )


def added_up(folder: Path, found: Iterable[RunRows], problems: Iterable[tuple[str, str]] = ()) -> FleetDocument:
    with open_database(folder) as database:
        with RowFiles(folder) as files:
            for rows in found:
                lines = {
                    "runs": [rows.run], "labels": rows.labels, "findings": rows.findings, "advice": rows.advice
                }  # fmt: skip
                files.add_run(
                    {name: [json.dumps(asdict(row)).encode() for row in each] for name, each in lines.items()}
                )
            for place, reason in problems:
                files.add_problem(place, reason)
        write_parquet(database, folder)
        return build_fleet_document(database, "somewhere")


def once(found: Iterable[RunRows]) -> list[RunRows]:
    counted: dict[tuple[str, str], RunRows] = {}
    for rows in sorted(found, key=lambda rows: rows.run.place):
        counted.setdefault((rows.run.run_id, rows.run.digest), rows)
    return list(counted.values())


def cost(priced: Iterable[tuple[list[float | None], float | None]]) -> CostPart:
    """Of runs that have something: its shares in each, and the run's seconds."""
    total, whole, unknown, known = 0.0, 0.0, 0, False
    for parts, seconds in priced:
        told = [part for part in parts if part is not None]
        if len(told) < len(parts) or seconds is None:
            unknown += 1
        if told and seconds is not None:
            known = True
            total += math.fsum(told) * seconds
            whole += seconds
    return CostPart(
        seconds=total if known else None, share=total / whole if known and whole else None, runs_unknown=unknown
    )


def same(found: CostPart, expected: CostPart) -> bool:
    close = all(
        one is other is None
        or (one is not None and other is not None and math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-5))
        for one, other in ((found.seconds, expected.seconds), (found.share, expected.share))
    )
    return close and found.runs_unknown == expected.runs_unknown


@pytest.mark.integration
@given(st.data())
def test_totals_are_those_of_plain_python(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    found = [data.draw(runs(place)) for place in range(data.draw(st.integers(1, 6)))]
    document = added_up(tmp_path_factory.mktemp("tables"), data.draw(st.permutations(found)))
    counted = once(found)
    assert document.bundles.read == len(found)
    assert document.bundles.twice == len(found) - len(counted)
    assert document.bundles.analysed_anew == sum(rows.run.anew for rows in found)
    assert document.bundles.rows_left_out == sum(rows.run.rows_left_out for rows in found)
    assert document.runs.runs == len(counted)
    assert document.runs.steps == sum(rows.run.steps for rows in counted)
    assert document.runs.with_trace == sum(rows.run.traced for rows in counted)
    assert document.runs.with_bottleneck == sum(rows.run.bottleneck == "input_bound" for rows in counted)
    assert document.runs.with_layout_findings == sum(bool(rows.findings) for rows in counted)
    times = [rows.run.seconds for rows in counted if rows.run.seconds is not None]
    assert document.runs.seconds == (pytest.approx(math.fsum(times), abs=1e-5) if times else None)
    assert document.runs.runs_not_timed == len(counted) - len(times)
    assert {part.label: part.runs for part in document.bottlenecks} == _count(rows.run.bottleneck for rows in counted)

    for part in document.labels:
        labels = [(row, rows.run.seconds) for rows in counted for row in rows.labels if row.label == part.label]
        present = [([row.share], seconds) for row, seconds in labels if row.answer == "present"]
        assert (part.runs, part.runs + part.undecidable + part.absent) == (len(present), len(labels))
        assert same(part.cost, cost(present))
    assert {part.label for part in document.labels} == {row.label for rows in counted for row in rows.labels}

    for card in document.advice:
        given_to = [([row.share], rows.run.seconds) for rows in counted for row in rows.advice if row.card == card.card]
        assert card.runs == len(given_to)
        assert same(card.saving, cost(given_to))

    by_rule: dict[str, list[tuple[list[FindingRow], float | None]]] = defaultdict(list)
    by_site: dict[tuple[str, str], list[tuple[list[FindingRow], float | None]]] = defaultdict(list)
    for rows in counted:
        for rule in {row.rule for row in rows.findings}:
            by_rule[rule].append(([row for row in rows.findings if row.rule == rule], rows.run.seconds))
        for place in {(row.rule, row.site) for row in rows.findings}:
            here = [row for row in rows.findings if (row.rule, row.site) == place]
            by_site[place].append((here, rows.run.seconds))
    assert {part.rule: part.sites for part in document.rules} == _count(rule for rule, _ in by_site)
    assert {(part.rule, part.site) for part in document.sites} == by_site.keys()
    pairs = [(part, by_rule[part.rule]) for part in document.rules]
    for part, expected in [*pairs, *((part, by_site[part.rule, part.site]) for part in document.sites)]:
        all_rows = [row for here, _ in expected for row in here]
        moved = [row.bytes_per_step for row in all_rows if row.bytes_per_step is not None]
        assert (part.runs, part.findings) == (len(expected), len(all_rows))
        assert part.findings_without_bytes == len(all_rows) - len(moved)
        assert part.bytes_per_step == (pytest.approx(math.fsum(moved), abs=1e-2) if moved else None)
        assert same(part.cost, cost([([row.share for row in here], seconds) for here, seconds in expected]))


def _count(values: Iterable[str | None]) -> dict[str | None, int]:
    counts: dict[str | None, int] = defaultdict(int)
    for value in values:
        counts[value] += 1
    return counts


def test_nothing_but_problems(tmp_path: Path) -> None:
    document = added_up(tmp_path, [], [("b", "broken\x1b[31m"), ("a\n", "no run")])
    assert document.bundles.read == document.runs.runs == document.runs.steps == 0
    assert document.runs.seconds is None
    listed = [(problem.place, problem.reason) for problem in document.bundles.problems_listed]
    assert listed == [("a", "no run"), ("b", "broken[31m")]


def test_unlisted_entries_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frx_graph.fleet.totals.LISTED", 2)
    finding = FindingRow(rule="", site="a", subject="", title="", share=0.5)
    card = AdviceRow("", "A card", "high", "local", "LOW", 0.5)
    found = [
        RunRows(
            RunRow(f"run-{number}", f"{number}", "", "1", False, 1, 1.0 + number, f"held {number}", None, True, 0),
            tuple(LabelRow(f"label {one}", "present", False, 0.5) for one in range(number)),
            tuple(replace(finding, rule=f"FRX{one}", site=site) for one in range(number) for site in ("a", "b")),
            tuple(replace(card, card=f"rec_{one}") for one in range(number)),
        )
        for number in range(5)
    ]
    document = added_up(tmp_path, found)
    assert ([part.label for part in document.bottlenecks], document.bottlenecks_not_listed) == (["held 0", "held 1"], 3)
    assert ([part.label for part in document.labels], document.labels_not_listed) == (["label 0", "label 1"], 2)
    assert ([part.rule for part in document.rules], document.rules_not_listed) == (["FRX0", "FRX1"], 2)
    assert [part.sites for part in document.rules] == [2, 2]
    assert ([(part.rule, part.site) for part in document.sites], document.sites_not_listed) == (
        [("FRX0", "a"), ("FRX0", "b")],
        6,
    )
    assert ([part.card for part in document.advice], document.advice_not_listed) == (["rec_0", "rec_1"], 2)
    text = render_fleet(document, top=1, width=80, color=False)
    assert "7 more: --parquet keeps all of them" in text


RUNS, ROWS_OF_A_RUN = 2000, 1000


@pytest.mark.integration
@pytest.mark.parametrize("names", ["of a program", "all different"])
def test_millions_of_rows_are_added_up_within_the_memory_limit(tmp_path: Path, names: str) -> None:
    """Of runs with as many findings as are read of one: of call sites that all runs have, or that no two of them do."""
    site = "row % 1000" if names == "of a program" else "row"
    kind = "row % 7" if names == "of a program" else "row % 100000"
    long = "rpad({0}, 100, '.')"
    tables = {
        "runs": f"""
            SELECT row AS run, 'run-' || row AS place, 'run-' || row AS run_id, 'digest' AS digest,
                '1' AS frx_version, false AS anew, 10 AS steps, 2.0 AS seconds, 'label ' || row % 7 AS bottleneck,
                NULL::DOUBLE AS confidence, true AS traced, 0 AS rows_left_out
            FROM range({RUNS}) AS _(row)""",
        "labels": f"""
            SELECT row // 50 AS run, 'label ' || {kind} AS label, 'present' AS answer, false AS symptom, 0.25 AS share
            FROM range({RUNS * 50}) AS _(row)""",
        "findings": f"""
            SELECT row // {ROWS_OF_A_RUN} AS run, 'FRX' || {kind} AS rule, {long.format(f"'site ' || {site}")} AS site,
                {long.format("'file ' || row")} AS file, 1 AS line, {long.format(f"'f ' || {site}")} AS function,
                'module' AS module_path, 'tensor' AS subject, {long.format(f"'title ' || {site}")} AS title,
                0.001 AS share, 8.0 AS bytes_per_step
            FROM range({RUNS * ROWS_OF_A_RUN}) AS _(row)""",
        "advice": f"""
            SELECT row // 50 AS run, 'rec ' || {kind} AS card, {long.format("'title ' || row")} AS title,
                'high' AS priority, 'local' AS effort, 'LOW' AS risk, 0.5 AS share
            FROM range({RUNS * 50}) AS _(row)""",
        "problems": "SELECT 0 AS run, 'a' AS place, 'b' AS reason WHERE false",
    }
    with open_database(tmp_path) as database:
        for table, rows in tables.items():
            file = str(tmp_path / f"{table}.parquet")
            database.sql(rows).write_parquet(file)
            database.read_parquet(file).create_view(table)
        document = build_fleet_document(database, "somewhere")
    count = RUNS * ROWS_OF_A_RUN
    assert (document.runs.runs, document.runs.with_layout_findings) == (RUNS, RUNS)
    assert len(document.sites) == LISTED
    assert document.bottlenecks_not_listed == 0
    if names == "of a program":
        assert sorted(part.rule for part in document.rules) == [f"FRX{number}" for number in range(7)]
        assert sum(part.findings for part in document.rules) == count
        assert {part.runs for part in document.rules} == {RUNS}
        for part in document.rules:
            assert part.cost.seconds == pytest.approx(part.findings * 0.001 * 2.0)
        assert document.sites_not_listed == sum(part.sites for part in document.rules) - LISTED == 6000
        assert document.labels_not_listed == document.advice_not_listed == 0
        assert sum(part.cost.seconds or 0.0 for part in document.labels) == pytest.approx(RUNS * 50 * 0.25 * 2.0)
    else:
        assert document.sites_not_listed == count - LISTED
        assert {(part.findings, part.runs, part.cost.seconds) for part in document.sites} == {(1, 1, 0.002)}
        assert document.rules_not_listed == document.labels_not_listed == document.advice_not_listed == 100_000 - LISTED
        assert {(part.findings, part.sites) for part in document.rules} == {(20, 20)}


@pytest.mark.integration
def test_rows_with_the_longest_names_are_written_within_the_memory_limit(tmp_path: Path) -> None:
    """More of them than fit."""
    count, name = 70_000, "rpad('' || row, 200, '😀')"
    fields = ", ".join(
        f"{name} AS {field}" for field in ("site", "file", "function", "module_path", "subject", "title")
    )
    for table in ROWS:
        (tmp_path / f"{table}.jsonl").touch()
    with open_database(tmp_path) as database:
        rows = f"SELECT 0 AS run, 'FRX001' AS rule, {fields} FROM range({count}) AS _(row)"
        database.execute(f"COPY ({rows}) TO '{tmp_path}/findings.jsonl' (FORMAT json)")
        write_parquet(database, tmp_path)
        assert database.sql("SELECT count(*), min(length(title)) FROM findings").fetchall() == [(count, 200)]
