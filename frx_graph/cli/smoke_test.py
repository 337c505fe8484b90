"""`frx smoke-test`: whether collecting, bundling and analysing work here, on a run that is known."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from frx_graph.progress import stages
from frx_graph.reports.plain_text import one_line
from frx_graph.reports.smoke_document import as_json, smoke_document
from frx_graph.runs.smoke_test import smoke_test as run_smoke_test


def smoke_test(
    as_document: Annotated[bool, typer.Option("--json", help="The checks as JSON.")] = False,
) -> None:
    """Take a run that waits for its input through all of the pipeline, in a temporary directory. Exit code 0: all
    checks passed; 1: some failed."""
    with stages() as progress:
        progress("running the smoke test")
        document = smoke_document([(check.name, check.problem) for check in run_smoke_test()])
    if as_document:
        typer.echo(json.dumps(as_json(document), indent=2))
    else:
        for check in document.result.checks:
            problem = "" if check.problem is None else f": {one_line(check.problem)}"
            typer.echo(f"[{'PASS' if check.passed else 'FAIL'}] {check.name}{problem}")
        failed = sum(not check.passed for check in document.result.checks)
        typer.echo("All smoke-test checks passed." if not failed else f"{failed} of the smoke test's checks failed.")
    raise typer.Exit(0 if document.result.passed else 1)
