"""Add up the tables, each part of the report by SQL.

A run that appears twice counts once (`counted`, by id and digest). The cost in seconds is the share of the steps, times
the time of all timed steps of the run. If either is unknown, the run is counted separately. Sums are rounded to
microseconds: their last digits depend on the order in which runs were read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from frx_graph.analyzers.timeline.labels import INSUFFICIENT
from frx_graph.reports.runs.fleet_document import (
    AdvicePart,
    BottleneckPart,
    BundlesPart,
    CostPart,
    FleetDocument,
    LabelPart,
    ProblemPart,
    RulePart,
    RunsPart,
    SitePart,
)
from frx_graph.rules.rule_card import load_all_cards
from frx_graph.support.plain_text import clean_line
from frx_graph.version import __version__

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LISTED: Final = 1000
"""Limit for each of rules, call sites, labels, cards and bottlenecks: runs may have any number of these."""
PROBLEMS_LISTED: Final = 100
_COUNTED: Final = """
    CREATE TEMP TABLE counted AS
    SELECT run, place, seconds FROM runs
    QUALIFY row_number() OVER (PARTITION BY run_id, digest ORDER BY place, run) = 1
"""
_COST: Final = """
    round(fsum(share * seconds), 6) AS cost_seconds,
    fsum(share * seconds) / nullif(fsum(seconds) FILTER (share IS NOT NULL), 0) AS cost_share,
    count(*) FILTER (unpriced OR seconds IS NULL) AS cost_unknown
"""
"""Needs rows by run with the known `share`, the run's `seconds`, and `unpriced` if a part of the share is unknown."""
_DEAREST: Final = "cost_seconds DESC NULLS LAST"
_DEAREST_FINDINGS: Final = f"{_DEAREST}, bytes_per_step DESC NULLS LAST, runs DESC"
_NEW: Final = "anew"  # The column for runs whose files were analysed again.
_BUNDLES: Final = f"""
    SELECT count(*) AS read,
        count(*) FILTER ({_NEW}) AS analysed_anew,
        count(*) - (SELECT count(*) FROM counted) AS twice,
        (SELECT count(*) FROM problems) AS problems,
        coalesce(sum(rows_left_out), 0) AS rows_left_out
    FROM runs
"""
_PROBLEMS: Final = "SELECT place, reason FROM problems ORDER BY place, reason, run LIMIT $limit"
_RUNS: Final = """
    SELECT count(*) AS runs,
        count(*) FILTER (traced) AS with_trace,
        count(*) FILTER (bottleneck <> $insufficient) AS with_bottleneck,
        -- Runs with findings.
        (SELECT count(DISTINCT run) FROM findings SEMI JOIN counted USING (run)) AS with_layout_findings,
        coalesce(sum(steps), 0) AS steps,
        round(fsum(seconds), 6) AS seconds,
        count(*) FILTER (seconds IS NULL) AS runs_not_timed
    FROM runs SEMI JOIN counted USING (run)
"""


@dataclass(frozen=True, slots=True)
class _ReportSection:
    """A part of the report. `groups` has one row for each item; the first in this `order` are listed. The `texts`, by
    the columns `keys`, are looked up only for listed items: those of all would have to stay in memory."""

    groups: str
    order: str
    keys: str = ""
    texts: str = ""


_BOTTLENECKS: Final = _ReportSection(
    """
    SELECT bottleneck AS label, count(*) AS runs, round(fsum(seconds), 6) AS seconds
    FROM runs SEMI JOIN counted USING (run) GROUP BY bottleneck
    """,
    order="runs DESC, label NULLS LAST",
)
_LABELS: Final = _ReportSection(
    f"""
    WITH present AS (
        -- Runs with the label.
        SELECT label, seconds, share, share IS NULL AS unpriced
        FROM labels JOIN counted USING (run) WHERE answer = 'present'
    ),
    answers AS (
        -- All answers, by label.
        SELECT label, bool_or(symptom) AS symptom, count(*) FILTER (answer = 'present') AS runs,
            count(*) FILTER (answer = 'undecidable') AS undecidable, count(*) FILTER (answer = 'absent') AS absent
        FROM labels SEMI JOIN counted USING (run) GROUP BY label
    ),
    costs AS (SELECT label, {_COST} FROM present GROUP BY label)
    SELECT answers.*, cost_seconds, cost_share, coalesce(cost_unknown, 0) AS cost_unknown
    FROM answers LEFT JOIN costs USING (label)
    """,
    order=f"{_DEAREST}, runs DESC, label",
)


def _build_findings_query(by: str) -> str:
    """Return the query for the costs of findings, grouped `by` these columns."""
    return f"""
        WITH by_run AS (
            SELECT {by}, run, fsum(share) AS share, bool_or(share IS NULL) AS unpriced, count(*) AS findings,
                fsum(bytes_per_step) AS bytes, count(*) FILTER (bytes_per_step IS NULL) AS unsized
            FROM findings GROUP BY {by}, run
        )
        SELECT {by}, count(*) AS runs, sum(findings) AS findings, round(fsum(bytes), 3) AS bytes_per_step,
            sum(unsized) AS findings_without_bytes, {_COST}
        FROM by_run JOIN counted USING (run) GROUP BY {by}
    """


_RULES: Final = _ReportSection(
    _build_findings_query("rule"),
    order=f"{_DEAREST_FINDINGS}, rule",
    keys="rule",
    texts="""
    SELECT rule, count(*) AS sites FROM (
        SELECT DISTINCT rule, site FROM findings SEMI JOIN counted USING (run) SEMI JOIN listed USING (rule)
    ) GROUP BY rule
    """,
)
_SHOWN: Final = ("title", "file", "line", "function", "module_path", "subject")
_SITES: Final = _ReportSection(
    _build_findings_query("rule, site"),
    order=f"{_DEAREST_FINDINGS}, rule, site",
    keys="rule, site",
    texts=f"""
    SELECT rule, site, arg_min(struct_pack({", ".join(_SHOWN)}), struct_pack(place, title)) AS shown
    FROM findings SEMI JOIN listed USING (rule, site) JOIN counted USING (run) GROUP BY rule, site
    """,
)
_ADVICE: Final = _ReportSection(
    f"""
    SELECT card, count(*) AS runs, {_COST}
    FROM (SELECT *, share IS NULL AS unpriced FROM advice) JOIN counted USING (run) GROUP BY card
    """,
    order=f"{_DEAREST}, runs DESC, card",
    keys="card",
    texts="""
    SELECT card, min(title) AS title, min(effort) AS effort, min(risk) AS risk
    FROM advice SEMI JOIN counted USING (run) SEMI JOIN listed USING (card) GROUP BY card
    """,
)


def build_fleet_document(database: DuckDBPyConnection, source: str) -> FleetDocument:
    """Build the document from the tables in `database`; `source` describes their origin."""
    database.execute(_COUNTED)
    names = {card.code: card.name for card in load_all_cards()}
    (bundles,) = _query_rows(database, _BUNDLES)
    (runs,) = _query_rows(database, _RUNS, insufficient=INSUFFICIENT)
    problems = _query_rows(database, _PROBLEMS, limit=PROBLEMS_LISTED)
    bottlenecks, more_bottlenecks = _query_section(database, _BOTTLENECKS)
    labels, more_labels = _query_section(database, _LABELS)
    rules, more_rules = _query_section(database, _RULES)
    sites, more_sites = _query_section(database, _SITES)
    advice, more_advice = _query_section(database, _ADVICE)
    return FleetDocument(
        source=clean_line(source),
        frx_version=__version__,
        bundles=BundlesPart(**bundles, problems_listed=tuple(ProblemPart(**row) for row in problems)),
        runs=RunsPart(**runs),
        bottlenecks=tuple(BottleneckPart(**row) for row in bottlenecks),
        bottlenecks_not_listed=more_bottlenecks,
        labels=tuple(LabelPart(cost=_take_cost(row), **row) for row in labels),
        labels_not_listed=more_labels,
        rules=tuple(RulePart(name=names.get(row["rule"]), cost=_take_cost(row), **row) for row in rules),
        rules_not_listed=more_rules,
        sites=tuple(SitePart(cost=_take_cost(row), **row.pop("shown"), **row) for row in sites),
        sites_not_listed=more_sites,
        advice=tuple(AdvicePart(saving=_take_cost(row), **row) for row in advice),
        advice_not_listed=more_advice,
    )


def _query_section(database: DuckDBPyConnection, part: _ReportSection) -> tuple[list[dict[str, Any]], int]:
    """Return the listed rows of a part, and the number of those not listed."""
    database.execute(f"CREATE OR REPLACE TEMP TABLE grouped AS {part.groups}")
    (groups,) = _query_rows(database, "SELECT count(*) AS total FROM grouped")
    database.execute(
        f"CREATE OR REPLACE TEMP TABLE listed AS SELECT * FROM grouped ORDER BY {part.order} LIMIT {LISTED}"
    )
    database.execute("DROP TABLE grouped")
    texts = f"JOIN ({part.texts}) USING ({part.keys})" if part.texts else ""
    rows = _query_rows(database, f"SELECT * FROM listed {texts} ORDER BY {part.order}")
    return list(rows), max(0, groups["total"] - LISTED)


def _query_rows(database: DuckDBPyConnection, statement: str, **values: object) -> Iterator[dict[str, Any]]:
    """Yield the rows of a statement as dictionaries by column."""
    found = database.execute(statement, values or None)
    names = [column[0] for column in found.description or ()]
    for row in found.fetchall():
        yield dict(zip(names, row, strict=True))


def _take_cost(row: dict[str, Any]) -> CostPart:
    """Remove the cost from a row and return it."""
    return CostPart(seconds=row.pop("cost_seconds"), share=row.pop("cost_share"), runs_unknown=row.pop("cost_unknown"))
