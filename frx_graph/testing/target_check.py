"""Advise on one target as `frx advise` does, with the options of `[tool.frx]`."""

from __future__ import annotations

from pathlib import Path

from frx_graph.advisor.absent_gpu import load_on_absent_gpu
from frx_graph.advisor.advisor import advise
from frx_graph.advisor.target import load_target, place
from frx_graph.cli.options.placement import check_device, check_dtype, check_gpu
from frx_graph.config import read_advise_config
from frx_graph.errors import TargetError
from frx_graph.reports.advice.baseline import filter_new, read_baseline
from frx_graph.reports.advice.render import render
from frx_graph.reports.advice.shown_findings import choose_findings
from frx_graph.reports.advice.terminal import DEFAULT_TOP, Format
from frx_graph.reports.advice.wording import Outcome, classify_outcome
from frx_graph.reports.render.source_path import find_checkout_root


def check_target(target: str, folder: Path) -> str | None:
    """Return the report of a target in `folder` if it has findings; None if it has none. Raises `TargetError` if
    nothing of it could be analysed."""
    config = read_advise_config(folder)
    dtype = check_dtype(config.dtype)
    if gpu := check_gpu(config.gpu, device=config.device, observe=False):
        workload = load_on_absent_gpu(target, dtype)
    else:
        workload = place(load_target(target), check_device(config.device), dtype)
    advice = advise(
        workload.model,
        workload.args,
        workload.kwargs,
        train=config.train,
        observe=config.observe and gpu is None,
        inner=config.inner or "eager",
        measure=config.measure,
        target=target,
        device=gpu,
    ).advice
    shown = choose_findings(advice, config.select, config.ignore)
    if config.baseline is not None:
        shown = filter_new(shown, read_baseline(config.baseline), find_checkout_root(folder))
    outcome = classify_outcome(shown)
    if outcome is Outcome.NOTHING_ANALYSED:
        raise TargetError(f"nothing of {target} could be analysed", f"frx advise {target} says why")
    text = render(shown, Format.TEXT, top=config.top or DEFAULT_TOP, root=folder)
    return text if outcome is Outcome.FINDINGS else None
