"""Log advice and trials as MLflow runs: figures to compare runs by, and the whole document.

from frx_graph.tracking.mlflow import log_advice
log_advice(frx_graph.advise(model, (x,)))           # into the active run, or else a new one

python -m frx_graph.tracking.mlflow trial.json      # a file of `frx trial --format json` or `frx advise`
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import TypeAdapter, ValidationError

from frx_graph.advice import Advice
from frx_graph.errors import EvidenceError, FrxError
from frx_graph.records import Severity
from frx_graph.reports.advice.advice_file import is_advice, read_advice
from frx_graph.reports.render.document import to_json
from frx_graph.reports.render.quantities import drop_non_finite
from frx_graph.reports.trials.trial_document import TrialDocument, TrialMatrixDocument
from frx_graph.support.plain_text import clean_line

try:
    import mlflow
except ImportError as error:
    raise ImportError(f"frx_graph.tracking.mlflow needs MLflow: pip install 'frx-graph[mlflow]' ({error})") from None

ADVICE_FILE: Final = "frx/advice.json"
TRIAL_FILE: Final = "frx/trial.json"
_TRIALS: Final[TypeAdapter[TrialDocument | TrialMatrixDocument]] = TypeAdapter(TrialDocument | TrialMatrixDocument)
_LONGEST_PARAMETER = 250
"""Characters; the shortest limit of MLflow's stores."""


def log_advice(advice: Advice) -> str:
    """Log `advice` to the active run, or else a new one, and return the run's id. Unknown figures are left out."""
    environment, totals = advice.environment, advice.totals
    figures: dict[str, float | None] = {
        "frx.copies_per_step": totals.copies_per_step,
        "frx.copy_bytes_per_step": totals.copy_bytes_per_step,
        "frx.bandwidth_overhead_pct": totals.bandwidth_overhead_pct,
        "frx.quick_wins": totals.quick_wins,
        "frx.findings": len(advice.findings),
        "frx.refusals": len(advice.refusals),
    }
    for severity in Severity:
        figures[f"frx.findings.{severity.value}"] = sum(one.severity is severity for one in advice.findings)
    for rule in sorted({finding.rule for finding in advice.findings}):
        figures[f"frx.findings.{rule}"] = sum(finding.rule == rule for finding in advice.findings)
    parameters = {
        "frx.target": advice.target,
        "frx.device": f"{environment.device}, {environment.device_name}",
        "frx.inner": environment.inner,
        "frx.torch": environment.torch_version,
        "frx.version": environment.frx_version,
    }
    return _log("frx advice", parameters, figures, {"frx.kind": "advice"}, ADVICE_FILE, to_json(advice))


def log_trial(trial: TrialDocument) -> str:
    """Log a trial to the active run, or else a new one, and return the run's id. Unmeasured figures are left out."""
    stats = trial.stats
    figures: dict[str, float | None] = {} if stats is None else {
        "frx.ratio_median": stats.ratio_median,
        "frx.ratio_low": stats.ci_low,
        "frx.ratio_high": stats.ci_high,
        "frx.quads": stats.quads,
        "frx.void_quads": stats.void,
    }  # fmt: skip
    for gate in trial.gates:
        figures[f"frx.gate.{gate.name}"] = None if gate.passed is None else float(gate.passed)
    parameters = {
        "frx.target": trial.target,
        "frx.train": str(trial.train),
        "frx.inner": trial.arms[0].inner,
        "frx.rewrites": ", ".join(candidate.rewrite for arm in trial.arms for candidate in arm.candidates),
    }
    tags = {"frx.kind": "trial", "frx.verdict": trial.verdict, "frx.reason": clean_line(trial.reason, 1000)}
    return _log("frx trial", parameters, figures, tags, TRIAL_FILE, to_json(trial))


def log_file(path: Path) -> tuple[str, ...]:
    """Log the advice, trial or trials in the file `path`, the latter in a new (nested) run each, and return the runs'
    ids. Raises `EvidenceError` for another file."""
    if is_advice(path):
        return (log_advice(read_advice(path)),)
    try:
        written = _TRIALS.validate_json(path.read_bytes())
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValidationError:
        raise EvidenceError(
            f"{path}: is neither advice nor a trial", "frx advise or frx trial with --format json writes one"
        ) from None
    if isinstance(written, TrialDocument):
        return (log_trial(written),)
    return tuple(_log_in_own_run(entry.trial) for entry in written.trials if entry.trial is not None)


def _log_in_own_run(trial: TrialDocument) -> str:
    with mlflow.start_run(run_name="frx trial", nested=mlflow.active_run() is not None):
        return log_trial(trial)


def _log(
    name: str,
    parameters: Mapping[str, str],
    figures: Mapping[str, float | None],
    tags: Mapping[str, str],
    file: str,
    document: Mapping[str, Any],
) -> str:
    active = mlflow.active_run()
    with nullcontext(active) if active else mlflow.start_run(run_name=name) as run:
        shown = {key: clean_line(value, _LONGEST_PARAMETER) for key, value in parameters.items()}
        # MLflow refuses to change a parameter, and a run may be logged to before and after a change.
        there = mlflow.get_run(run.info.run_id).data.params
        mlflow.log_params({key: value for key, value in shown.items() if key not in there})
        mlflow.set_tags({key: value for key, value in shown.items() if there.get(key, value) != value})
        known = {key: drop_non_finite(value) for key, value in figures.items()}
        mlflow.log_metrics({key: float(value) for key, value in known.items() if value is not None})
        mlflow.set_tags(dict(tags))
        mlflow.log_text(json.dumps(document, indent=2, allow_nan=False), file)
        found: str = run.info.run_id
        return found


def main(
    file: Annotated[Path, typer.Argument(help="a document of frx advise or frx trial with --format json")],
) -> None:
    """Log advice or a trial to MLflow. MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say where."""
    try:
        for run in log_file(file):
            typer.echo(run)
    except FrxError as error:
        typer.echo(f"frx: {clean_line(str(error), 1000)}", err=True)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    typer.run(main)
