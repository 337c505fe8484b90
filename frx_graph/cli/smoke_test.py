"""`frx smoke-test`: check that collecting, bundling and analysing work here, on a known run."""

from __future__ import annotations

import typer

from frx_graph.cli.printing.output import OnlyJsonOption, QuietOption, print_document, print_report, show_stages
from frx_graph.reports.doctor_document import build_smoke_document
from frx_graph.reports.render.document import to_json
from frx_graph.runs.smoke_test import run_smoke_checks as run_smoke_test
from frx_graph.support.plain_text import clean_line


def smoke_test(
    as_document: OnlyJsonOption = False,
    _quiet: QuietOption = False,
) -> None:
    """Run the whole pipeline on a known input-bound run, in a temporary directory. Exit code 0: all checks passed; 1:
    some failed."""
    with show_stages() as progress:
        progress("running the smoke test")
        document = build_smoke_document([(check.name, check.problem) for check in run_smoke_test()])
    if as_document:
        print_document(to_json(document))
    else:
        for check in document.result.checks:
            problem = "" if check.problem is None else f": {clean_line(check.problem)}"
            print_report(f"[{'PASS' if check.passed else 'FAIL'}] {check.name}{problem}", color=False)
        failed = sum(not check.passed for check in document.result.checks)
        said = "All smoke-test checks passed." if not failed else f"{failed} of the smoke test's checks failed."
        print_report(said, color=False)
    raise typer.Exit(0 if document.result.passed else 1)
