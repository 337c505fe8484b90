"""`frx fix`: write the fixes of findings into the source, proved by a trial of the old source against the new."""

from __future__ import annotations

import enum
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from frx_graph.advice import Advice
from frx_graph.advisor.target import DTYPES
from frx_graph.autopilot.fix_proof import ProvedFixes, prove_fixes
from frx_graph.autopilot.source_trial import SourceTrial, try_change
from frx_graph.cli.advised_target import AdviseSettings, advise_target
from frx_graph.cli.fix_record import FixRecorder
from frx_graph.cli.ledger import LedgerOption
from frx_graph.cli.options.placement import check_device, check_dtype
from frx_graph.cli.printing.output import (
    JsonOption,
    QuietOption,
    check_folder,
    is_json,
    print_notice,
    print_report,
    print_result,
    show_stages,
)
from frx_graph.config import read_advise_config, read_policy_table
from frx_graph.errors import OptionError, ScriptError
from frx_graph.fix.source_change import (
    FileChange,
    ProposedFix,
    build_changes,
    collect_fixes,
    drop_overlapping,
    format_diff,
    read_sources,
)
from frx_graph.fix.source_file import is_installed
from frx_graph.instrumentation.script import read_script, replace_script
from frx_graph.ledger.database.opening import check_writable
from frx_graph.ledger.location import choose_location
from frx_graph.records import Finding
from frx_graph.reports.advice.fix_document import (
    FixDocument,
    FixedFindingPart,
    FixPart,
    FixState,
    UnfixedPart,
    render_fixes,
)
from frx_graph.reports.advice.github import render_fixes_for_github
from frx_graph.reports.advice.shown_findings import choose_findings, parse_rules
from frx_graph.reports.advice.wording import Outcome as Found
from frx_graph.reports.advice.wording import classify_outcome
from frx_graph.reports.render.source_path import find_checkout_root, get_project_path, shorten_path
from frx_graph.support.atomic_file import write_atomically
from frx_graph.support.supervisor.process import unwind_on_termination
from frx_graph.support.supervisor.run import run_program
from frx_graph.trial_worker.launch import share_warm_arms
from frx_graph.trials.arm_messages import TargetWorkload
from frx_graph.trials.policy import TrialPolicy, read_policy

_GIT_SECONDS = 20.0


class FixFormat(enum.StrEnum):
    """Output formats."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


def fix(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="module:callable or file.py:callable, returning (model, args[, kwargs[, optimizer]]).",
        ),
    ],
    apply: Annotated[
        bool, typer.Option("--apply/--diff", help="Write the fixes into the files; default: only show them.")
    ] = False,
    patch: Annotated[Path | None, typer.Option(help="Write the diff to this file.")] = None,
    prove: Annotated[
        bool | None,
        typer.Option(
            "--prove/--no-prove",
            help="Try the new source against the old one, and keep what is proved; the default with --apply.",
        ),
    ] = None,
    unsafe_fixes: Annotated[
        bool,
        typer.Option("--unsafe-fixes", help="Also change strides of outputs, precision, or what is compiled."),
    ] = False,
    select: Annotated[
        list[str] | None, typer.Option(help="Only these rules: FRX002, contiguous_churn, or a prefix, FRX00.")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="Leave these rules out.")] = None,
    train: Annotated[bool | None, typer.Option("--train/--no-train", help="Include the backward pass.")] = None,
    dtype: Annotated[str | None, typer.Option(help=f"Cast model and inputs: {', '.join(DTYPES)}.")] = None,
    device: Annotated[str | None, typer.Option(help="Move model and inputs: cpu, cuda, cuda:1.")] = None,
    inner: Annotated[
        str | None, typer.Option(help="Compiler of the model: eager (the default), inductor, aot_eager.")
    ] = None,
    allow_dirty: Annotated[
        bool, typer.Option("--allow-dirty", help="Also change files that git knows uncommitted changes of.")
    ] = False,
    policy: Annotated[
        Path | None, typer.Option(help="Policy as a YAML file; default: [tool.frx.policy], or the built-in policy.")
    ] = None,
    ignore_load: Annotated[
        bool, typer.Option("--ignore-load", help="Use measurements even if other programs were running.")
    ] = False,
    ledger: LedgerOption = None,
    format: Annotated[FixFormat, typer.Option("--format", help="Output format.")] = FixFormat.TEXT,
    as_document: JsonOption = False,
    _quiet: QuietOption = False,
) -> None:
    """Show, prove and write the changes of the source that fix findings. Files are changed with --apply only, and only
    by what a trial has proved. The ledger keeps its verdict. Exit code 0: no findings are left; 1: there are some; 2:
    an error."""
    config = read_advise_config(Path.cwd())
    rules = read_policy(policy) if policy is not None else read_policy_table(config)
    chosen, left_out = select or config.select, ignore or config.ignore
    parse_rules(chosen, left_out)
    check_folder(patch)
    settings = AdviseSettings(
        train=config.train if train is None else train,
        observe=False,
        measure=config.measure,
        inner=inner or config.inner or "eager",
        dtype=check_dtype(dtype or config.dtype),
        dtype_name=dtype or config.dtype,
        device=check_device(device or config.device),
    )
    started = time.time()
    advice = choose_findings(advise_target(target, settings), chosen, left_out)
    if classify_outcome(advice) is Found.NOTHING_ANALYSED:
        raise OptionError(f"{target}: nothing could be analysed", f"frx advise {target} says why")
    fixes = _choose_fixes(advice, started, unsafe=unsafe_fixes, apply=apply)
    proving = apply if prove is None else prove
    if apply and not allow_dirty:
        _check_clean(fixes.wanted)
    root = find_checkout_root(Path.cwd())
    result, decision = None, ""
    if proving and fixes.wanted:
        place = choose_location(ledger, config.ledger)
        check_writable(place)
        recorder = FixRecorder(target, settings.train, settings.inner, place)
        result, decision = _prove(fixes, settings, rules, recorder, root, ignore_load=ignore_load)
    kept = fixes.wanted if result is None else result.kept
    changes = build_changes(kept, fixes.sources)
    diff = _format_diff(changes, root)
    if apply:
        _write(changes)
    if patch is not None:
        write_atomically(patch, diff)
        print_notice(f"frx: wrote {patch}")
    document = FixDocument(
        target=target,
        fixes=tuple(_describe_fix(fix, fixes, result, root) for fix in fixes.offered),
        not_fixed=tuple(
            UnfixedPart(finding=_name_finding(one, root), fixability=one.offer.fixability, reason=one.offer.reason)
            for one in advice.findings
            if one.offer is not None and not one.offer.edits
        ),
        diff=diff,
        proved=result is not None and result.proved,
        verdict="" if result is None else result.together.reason,
        kernels="" if result is None else result.together.kernels,
        decision=decision,
        applied=apply and bool(changes),
        patch=None if patch is None else str(patch),
    )
    if is_json(format, as_document) or format is not FixFormat.GITHUB:
        print_result(document, partial(render_fixes, document), as_document=is_json(format, as_document))
    else:
        print_report(render_fixes_for_github(document), color=False)
    fixed = sum(len(one.findings) for one in kept) if document.applied else 0
    raise typer.Exit(0 if fixed == len(advice.findings) else 1)


@dataclass(frozen=True)
class _ChosenFixes:
    """The `offered` fixes, and those that are `wanted`; `left` has the reason for each of the others."""

    offered: tuple[ProposedFix, ...]
    wanted: tuple[ProposedFix, ...]
    left: Mapping[int, str]
    sources: Mapping[str, bytes]


def _choose_fixes(advice: Advice, started: float, *, unsafe: bool, apply: bool) -> _ChosenFixes:
    """Choose from the fixes on offer; `started` is a time before the target was imported."""
    offered = collect_fixes(advice.findings)
    left: dict[int, str] = {}
    wanted = []
    for number, one in enumerate(offered):
        if one.unsafe and not unsafe:
            left[number] = "it changes more than speed: --unsafe-fixes takes it"
        elif any(Path(file).stat().st_mtime > started for file in one.files):
            left[number] = "the file has changed since it was imported: run frx fix again"
        elif apply and any(is_installed(file) for file in one.files):
            left[number] = "the file belongs to an installed package: --patch writes the change for its source"
        else:
            wanted.append(one)
    apart = drop_overlapping(wanted)
    for number, one in enumerate(offered):
        if one in wanted and one not in apart:
            left[number] = "it overlaps with a fix before: run again after that one"
    return _ChosenFixes(offered, apart, left, read_sources(apart))


def _check_clean(fixes: Sequence[ProposedFix]) -> None:
    """Raise `OptionError` if git knows of uncommitted changes in a file that would be changed."""
    if (git := shutil.which("git")) is None:
        return
    for file in dict.fromkeys(file for one in fixes for file in one.files):
        command = [git, "-C", str(Path(file).parent), "status", "--porcelain", "--", file]
        ran = run_program(command, limit_seconds=_GIT_SECONDS, environment=os.environ)
        if ran.problem is None and ran.output.strip():
            raise OptionError(f"{file} has changes that are not committed", "commit them, or use --allow-dirty")


def _prove(
    fixes: _ChosenFixes,
    settings: AdviseSettings,
    policy: TrialPolicy,
    recorder: FixRecorder,
    root: Path,
    *,
    ignore_load: bool,
) -> tuple[ProvedFixes, str]:
    """Run the trials, and record each. Return also what became of the record of all fixes that are kept."""
    workload = TargetWorkload(recorder.target, settings.device, settings.dtype_name)
    recorded: list[tuple[SourceTrial, str]] = []
    with unwind_on_termination(), share_warm_arms(), show_stages() as progress:

        def try_fixes(some: Sequence[ProposedFix], candidates: int) -> SourceTrial:
            changes = build_changes(some, fixes.sources)
            trial = try_change(
                workload,
                {change.path: change.after for change in changes},
                policy,
                progress,
                train=settings.train,
                inner=settings.inner,
                candidates=candidates,
                ignore_load=ignore_load,
            )
            recorded.append((trial, recorder.record(trial, _format_diff(changes, root))))
            return trial

        result = prove_fixes(fixes.wanted, try_fixes)
    return result, next(said for trial, said in recorded if trial is result.together)


def _format_diff(changes: Sequence[FileChange], root: Path) -> str:
    return format_diff(changes, {change.path: _name_file(change.path, root) for change in changes})


def _describe_fix(fix: ProposedFix, chosen: _ChosenFixes, result: ProvedFixes | None, root: Path) -> FixPart:
    state, reason = FixState.PROPOSED, ""
    if (why := chosen.left.get(chosen.offered.index(fix))) is not None:
        state, reason = FixState.LEFT, why
    elif result is not None:
        trial = result.find_trial(fix)
        reason = trial.reason
        state = FixState.OPEN if trial.is_open else FixState.REJECTED
        if fix in result.kept:
            state = FixState.PROVED
    offer = fix.findings[0].offer
    return FixPart(
        findings=tuple(_name_finding(one, root) for one in fix.findings),
        fixer="" if offer is None else offer.fixer,
        unsafe=fix.unsafe,
        edits=fix.edits,
        diff="" if offer is None else offer.diff,
        state=state,
        reason=reason,
    )


def _name_file(path: Path, root: Path) -> str:
    """Return the path in the diff: relative to the checkout, or to the installed packages."""
    return get_project_path(str(path), root) or shorten_path(str(path), root).lstrip("/")


def _write(changes: Sequence[FileChange]) -> None:
    """Write the changed files, each completely or not at all. Raises `ScriptError` if one has changed since."""
    scripts = [(read_script(change.path), change) for change in changes]
    for script, change in scripts:
        if script.data != change.before:
            raise ScriptError(f"{change.path} has changed since it was read", "run frx fix again")
    for script, change in scripts:
        replace_script(script, change.after.decode("utf-8").removeprefix("\ufeff"))


def _name_finding(finding: Finding, root: Path) -> FixedFindingPart:
    site = finding.site
    file = get_project_path(site.file, root) or site.file
    return FixedFindingPart(
        rule=finding.rule,
        title=finding.title,
        file=file,
        line=site.line,
        module_path=site.module_path,
        effort=finding.effort,
    )
