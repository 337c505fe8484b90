"""Adds the tables up: one SQL statement for each part of the report.

A run that is there twice counts once (`counted`, by its id and the digest of its files). What a thing costs in seconds
is its share of the steps, times the time of all timed steps of its run; where one of both is not known, the run is
counted beside the sum. Sums are rounded to microseconds: their last digits depend on the order in which runs were read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from frx_graph.passes.timeline.labels import INSUFFICIENT
from frx_graph.reports.fleet_document import (
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
from frx_graph.reports.plain_text import one_line
from frx_graph.rules.rule_card import all_cards
from frx_graph.version import __version__

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SITES_LISTED: Final = 1000
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
"""Of rows by run: the `share` that is known, the `seconds` of the run, and whether a part of it is `unpriced`."""
_DEAREST: Final = "cost_seconds DESC NULLS LAST"
_BUNDLES: Final = """
    SELECT count(*) AS read,
        count(*) FILTER (anew) AS analysed_anew,
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
        count(*) FILTER (run IN (SELECT run FROM findings)) AS with_layout_findings,
        coalesce(sum(steps), 0) AS steps,
        round(fsum(seconds), 6) AS seconds,
        count(*) FILTER (seconds IS NULL) AS runs_not_timed
    FROM runs SEMI JOIN counted USING (run)
"""
_BOTTLENECKS: Final = """
    SELECT bottleneck AS label, count(*) AS runs, round(fsum(seconds), 6) AS seconds
    FROM runs SEMI JOIN counted USING (run)
    GROUP BY bottleneck ORDER BY runs DESC, label NULLS LAST
"""
_LABELS: Final = f"""
    WITH present AS (
        SELECT label, seconds, share, share IS NULL AS unpriced
        FROM labels JOIN counted USING (run) WHERE answer = 'present'
    ),
    answers AS (
        SELECT label, bool_or(symptom) AS symptom, count(*) FILTER (answer = 'present') AS runs,
            count(*) FILTER (answer = 'undecidable') AS undecidable, count(*) FILTER (answer = 'absent') AS absent
        FROM labels SEMI JOIN counted USING (run) GROUP BY label
    ),
    costs AS (SELECT label, {_COST} FROM present GROUP BY label)
    SELECT answers.*, cost_seconds, cost_share, coalesce(cost_unknown, 0) AS cost_unknown
    FROM answers LEFT JOIN costs USING (label) ORDER BY {_DEAREST}, runs DESC, label
"""


def _findings(by: str, shown: str) -> str:
    """The costs of findings `by` these columns, with others that are `shown` of them."""
    return f"""
        WITH by_run AS (
            SELECT {by}, run, fsum(share) AS share, bool_or(share IS NULL) AS unpriced, count(*) AS findings,
                fsum(bytes_per_step) AS bytes, count(*) FILTER (bytes_per_step IS NULL) AS unsized, {shown}
            FROM findings GROUP BY {by}, run
        )
        SELECT {by}, count(*) AS runs, sum(findings) AS findings, round(fsum(bytes), 3) AS bytes_per_step,
            sum(unsized) AS findings_without_bytes, {_COST}, arg_min(shown, place) AS shown
        FROM by_run JOIN counted USING (run)
        GROUP BY {by} ORDER BY {_DEAREST}, bytes_per_step DESC NULLS LAST, runs DESC, {by}
    """


_SHOWN: Final = ("title", "file", "line", "function", "module_path", "subject")
_RULES: Final = _findings("rule", "NULL AS shown")
_PLACES: Final = "SELECT rule, count(DISTINCT site) AS sites FROM findings SEMI JOIN counted USING (run) GROUP BY rule"
_SITES: Final = _findings("rule, site", f"arg_min(struct_pack({', '.join(_SHOWN)}), title) AS shown")
_ADVICE: Final = f"""
    SELECT card, min(title) AS title, min(effort) AS effort, min(risk) AS risk, count(*) AS runs, {_COST}
    FROM (SELECT *, share IS NULL AS unpriced FROM advice) JOIN counted USING (run)
    GROUP BY card ORDER BY {_DEAREST}, runs DESC, card
"""


def fleet_document(database: DuckDBPyConnection, source: str) -> FleetDocument:
    """The document of the tables in `database`; `source` is where they come from, in words."""
    database.execute(_COUNTED)
    names = {card.code: card.name for card in all_cards()}
    sites = {row["rule"]: row["sites"] for row in _rows(database, _PLACES)}
    (bundles,) = _rows(database, _BUNDLES)
    (runs,) = _rows(database, _RUNS, insufficient=INSUFFICIENT)
    problems = tuple(ProblemPart(**row) for row in _rows(database, _PROBLEMS, limit=PROBLEMS_LISTED))
    return FleetDocument(
        source=one_line(source),
        frx_version=__version__,
        bundles=BundlesPart(**bundles, problems_listed=problems),
        runs=RunsPart(**runs),
        bottlenecks=tuple(BottleneckPart(**row) for row in _rows(database, _BOTTLENECKS)),
        labels=tuple(LabelPart(cost=_cost(row), **row) for row in _rows(database, _LABELS)),
        rules=tuple(
            RulePart(name=names.get(row["rule"]), sites=sites[row["rule"]], cost=_cost(row), **_without(row, "shown"))
            for row in _rows(database, _RULES)
        ),
        sites=tuple(
            SitePart(cost=_cost(row), **row.pop("shown"), **row)
            for row in _rows(database, f"{_SITES} LIMIT $limit", limit=SITES_LISTED)
        ),
        sites_not_listed=max(0, sum(sites.values()) - SITES_LISTED),
        advice=tuple(AdvicePart(saving=_cost(row), **row) for row in _rows(database, _ADVICE)),
    )


def _rows(database: DuckDBPyConnection, statement: str, **values: object) -> Iterator[dict[str, Any]]:
    """What a statement gives, by the names of its columns."""
    found = database.execute(statement, values or None)
    names = [column[0] for column in found.description or ()]
    for row in found.fetchall():
        yield dict(zip(names, row, strict=True))


def _cost(row: dict[str, Any]) -> CostPart:
    """The cost in a row, which is taken out of it."""
    return CostPart(seconds=row.pop("cost_seconds"), share=row.pop("cost_share"), runs_unknown=row.pop("cost_unknown"))


def _without(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}
