"""`frx probe`: measure the operator layout contract of this torch version and device."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from frx_graph.capture.stride_table import dump_stride_table, make_table_name
from frx_graph.cli.printing.output import (
    FormatOption,
    JsonOption,
    QuietOption,
    TextOrJson,
    check_folder,
    is_json,
    is_quiet,
    print_document,
    print_notice,
)
from frx_graph.errors import EvidenceError, OptionError
from frx_graph.facts.operator_signature import OperatorSignature
from frx_graph.measure.operators.contract_cases import Case
from frx_graph.measure.operators.contract_measurement import measure_contract, plan_trials
from frx_graph.measure.operators.contract_table import CASES, STRIDE_CASES
from frx_graph.measure.operators.operator_contract import (
    ContractRow,
    OperatorContract,
    dump_contract,
)
from frx_graph.measure.operators.operator_database import collect_case_calls, collect_database_calls
from frx_graph.measure.operators.stride_comparison import compare_strides, summarize_comparison
from frx_graph.support.atomic_file import write_atomically
from frx_graph.support.cache_directory import get_own_contracts


class ProbeDevice(enum.StrEnum):
    """Devices that can run the operators."""

    CPU = "cpu"
    CUDA = "cuda"


def probe(
    device: Annotated[ProbeDevice, typer.Option(help="Where to run the operators.")] = ProbeDevice.CPU,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the contract to this YAML file instead of the cache, where frx advise looks for it."),
    ] = None,
    format: FormatOption = TextOrJson.TEXT,
    as_document: JsonOption = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="OPERATOR", help="Only this operator (aten.bmm); may be given several times."),
    ] = None,
    _quiet: QuietOption = False,
) -> None:
    """Measure which operators copy which operands, by class of strides: the operator layout contract."""
    if device is ProbeDevice.CUDA and not torch.cuda.is_available():
        raise OptionError("this machine has no CUDA device that torch can use", "see frx doctor")
    check_folder(output)
    cases = select_cases(only)
    failures: dict[str, str] = {}

    def record_failure(signature: OperatorSignature, reason: str) -> None:
        dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in signature.tensors[:1]}
        failures.setdefault(f"{signature.target} {' '.join(dtypes)}", reason)

    with _make_progress() as progress:
        calls = len({trial.signature for trial in plan_trials(cases, device.value)})
        task = progress.add_task("operators", total=calls)

        def advance(signature: OperatorSignature) -> None:
            progress.update(task, advance=1, description=signature.target)

        contract = measure_contract(cases, device.value, progress=advance, on_failure=record_failure)
    written = _write(contract, output, whole=only is None)
    strides = _compare_strides(device.value) if only is None and output is None else None
    if is_json(format, as_document):
        document = {
            "contract": yaml.safe_load(dump_contract(contract)),
            "file": None if written is None else str(written),
            "not_measured": [{"call": call, "reason": reason} for call, reason in failures.items()],
            "strides": None if strides is None else yaml.safe_load(strides.read_text(encoding="utf-8")),
        }
        print_document(document)
    elif not is_quiet():
        _print(contract, failures)
    if written is not None:
        print_notice(f"contract {contract.name} written to {written}")
    if strides is not None:
        print_notice(f"strides of results written to {strides}")


def select_cases(only: Sequence[str] | None) -> tuple[Case, ...]:
    """Return the cases of the named operators (`bmm`, `aten.bmm` or `aten.bmm.default`), or all cases without names.
    Raises `OptionError` for a name that is not in the table."""
    if not only:
        return CASES
    by_name: dict[str, list[Case]] = {}
    for case in CASES:
        namespace, packet, overload = case.target.split(".")
        for name in (packet, f"{namespace}.{packet}", f"{namespace}.{packet}.{overload}"):
            by_name.setdefault(name, []).append(case)
    for name in only:
        if name not in by_name:
            near = difflib.get_close_matches(name, by_name, n=1)
            hint = f"did you mean {near[0]}?" if near else "frx probe without --only measures all operators"
            raise OptionError(f"the contract's table has no operator {name!r}", hint)
    return tuple(dict.fromkeys(case for name in only for case in by_name[name]))


def _compare_strides(device: str) -> Path | None:
    """Write the list of operators whose kernels make other strides than their fakes to the cache."""
    try:
        with _make_progress() as progress:
            task = progress.add_task("strides of results", total=None)

            def advance(name: str) -> None:
                progress.update(task, advance=1, description=name)

            calls = [*collect_database_calls(device, advance), *collect_case_calls(STRIDE_CASES, device)]
            progress.update(task, completed=0, total=len(calls))
            seen = summarize_comparison(compare_strides(calls, advance))
    except EvidenceError as error:
        print_notice(f"strides of results were not compared: {error}")
        return None
    path = get_own_contracts() / f"{make_table_name(device, str(torch.__version__))}.yaml"
    return _write_file(path, dump_stride_table(device, str(torch.__version__), seen))


def _write(contract: OperatorContract, output: Path | None, *, whole: bool) -> Path | None:
    """Write to `output`, else to the cache. A partial contract never replaces the one in the cache."""
    path = output or (get_own_contracts() / f"{contract.name}.yaml" if whole else None)
    return None if path is None else _write_file(path, dump_contract(contract))


def _write_file(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        message = f"the contract cannot be written to {path}"
        raise OptionError(message, "name a file that can be written with --output") from error
    return path


def _make_progress() -> Progress:
    """Return a progress bar on standard error, hidden unless that is a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("measuring"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        transient=True,
        disable=is_quiet() or not console.is_terminal,
    )


def _print(contract: OperatorContract, failures: dict[str, str]) -> None:
    console = Console(highlight=False, markup=False)
    outcomes: dict[tuple[str, str, int | None, torch.dtype], list[ContractRow]] = {}
    for row in contract.rows:
        outcomes.setdefault((row.target, row.case, row.operand, row.dtype), []).append(row)
    lines: dict[tuple[str, str, str, str], list[str]] = {}
    silent = 0
    for (target, case, operand, dtype), rows in outcomes.items():
        copied = ", ".join(
            f"{r.pattern} {r.entry.bytes_ratio:.2g}x" for r in rows if r.entry is not None and r.entry.copied
        )
        varies = ", ".join(str(r.pattern) for r in rows if r.entry is None)
        if not copied and not varies:
            silent += 1
            continue
        tensor = "result" if operand is None else f"operand {operand}"
        call = f"{target.removesuffix('.default')} ({case})"
        lines.setdefault((call, tensor, copied, varies), []).append(str(dtype).removeprefix("torch."))
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("Operator", "Tensor", "Dtype", "Copied", "Only some calls copy"):
        table.add_column(column, overflow="fold")
    for (call, tensor, copied, varies), dtypes in lines.items():
        table.add_row(call, tensor, "\n".join(dtypes), copied, varies)
    console.print(f"{contract.name}: torch {contract.torch_version} on {contract.measured_on['device']}")
    if lines:
        console.print(table)
    console.print(f"{silent} {'more ' if lines else ''}tensors (by operator, position and dtype) are never copied.")
    for call, reason in failures.items():
        console.print(f"not measured: {call}: {reason}")
