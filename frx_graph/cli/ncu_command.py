"""`frx ncu-command`: the Nsight Compute command of a preset."""

from __future__ import annotations

from typing import Annotated

import typer

from frx_graph.cli.printing.output import OnlyJsonOption, print_document
from frx_graph.errors import OptionError
from frx_graph.evidence.ncu.presets import PRESETS, build_ncu_arguments, format_shell_line, get_preset

_YOURS = "./your_app"


def ncu_command(
    preset: Annotated[str | None, typer.Argument(help="memory, tensor, occupancy, stalls or full.")] = None,
    command: Annotated[list[str] | None, typer.Argument(help="The program, after --.")] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="File for ncu to write.")] = "ncu_report.csv",
    kernel_name: Annotated[str | None, typer.Option(help="Only kernels of this name; regex:... for a pattern.")] = None,
    launch_skip: Annotated[int | None, typer.Option(min=0, help="Leave the first launches out.")] = None,
    launch_count: Annotated[int | None, typer.Option(min=1, help="Measure this many launches.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the presets.")] = False,
    as_document: OnlyJsonOption = False,
) -> None:
    """Print the ncu command of a preset. Nothing is run."""
    if listed:
        _print_list(as_document)
        return
    if preset is None:
        raise OptionError("which preset?", f"one of {', '.join(PRESETS)}")
    arguments = build_ncu_arguments(
        get_preset(preset),
        command or [_YOURS],
        output=output,
        kernel=kernel_name,
        launch_skip=launch_skip,
        launch_count=launch_count,
    )
    if as_document:
        print_document({"preset": preset, "command": arguments})
    else:
        typer.echo(format_shell_line(arguments))


def _print_list(as_document: bool) -> None:
    if as_document:
        found = [{"preset": one.name, "use": one.use, "metrics": list(one.counters)} for one in PRESETS.values()]
        print_document(found)
        return
    for one in PRESETS.values():
        typer.echo(f"{one.name:<10} {one.use} ({len(one.counters)} metrics)")
