"""Compare files of two sides for `frx analyze`: `--before` and `--after`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frx_graph.cli.compare_records import compare_records, detect_record_kind
from frx_graph.cli.options.evidence_options import note_unused_gpu
from frx_graph.cli.printing.output import print_notice, show_stages
from frx_graph.errors import OptionError
from frx_graph.evidence.file_kind import FileKind, detect_file_kind
from frx_graph.rules.gpu_profile import GpuProfile

if TYPE_CHECKING:
    from frx_graph.analyzers.layers import Layers

Before = Annotated[Path | None, typer.Option("--before", help="Compare this file, of any kind, ...")]
After = Annotated[Path | None, typer.Option("--after", help="... with this one.")]
BeforeSource = Annotated[Path | None, typer.Option(help="CUDA source of the old version.")]
BeforePtx = Annotated[Path | None, typer.Option(help="PTX of the old version.")]
BeforeNcu = Annotated[Path | None, typer.Option(help="Nsight Compute measurement of this side.")]
AfterSource = Annotated[Path | None, typer.Option(help="CUDA source of the new version.")]
AfterPtx = Annotated[Path | None, typer.Option(help="PTX of the new version.")]
AfterNcu = Annotated[Path | None, typer.Option(help="Nsight Compute measurement of this side.")]
BeforeLabel = Annotated[str | None, typer.Option(help="Name in the report; default: the file's name.")]
AfterLabel = Annotated[str | None, typer.Option(help="Name in the report; default: the file's name.")]
Baseline = Annotated[Path | None, typer.Option("--baseline", help="Deprecated: --before.", hidden=True)]
Optimized = Annotated[Path | None, typer.Option("--optimized", help="Deprecated: --after.", hidden=True)]

_KINDS = {
    "source": (FileKind.CUDA,),
    "ptx": (FileKind.PTX,),
    "ncu": (FileKind.NCU_CSV, FileKind.NCU_REPORT),
}
_SUFFIXES = {"ptx": ".ptx", "ncu": ".csv"}


@dataclass(frozen=True, slots=True)
class SideFiles:
    """The files and label that the command line names for one side; `word` is `before` or `after`."""

    word: str
    any: Path | None
    source: Path | None
    ptx: Path | None
    ncu: Path | None
    label: str | None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files of the side."""
        return tuple(path for _, path in self._collect_options() if path is not None)

    @property
    def given(self) -> bool:
        """True if the command line names a file or a label."""
        return bool(self.paths) or self.label is not None

    def format_options(self) -> Iterator[str]:
        """Yield the options of this side as typed on the command line."""
        for option, path in self._collect_options():
            if path is not None:
                yield from (option, str(path))
        if self.label is not None:
            yield from (f"--{self.word}-label", self.label)

    def read_layers(self, gpu: GpuProfile | None) -> Layers:
        """Read the files. Raises `OptionError` for a trace, and for a file of another kind than its option names."""
        from frx_graph.analyze.layers import read_layers

        for kind, expected in _KINDS.items():
            path = getattr(self, kind)
            if path is not None and (told := detect_file_kind(path)) not in expected:
                raise OptionError(
                    f"--{self.word}-{kind} {path} is {told.value}", f"--{self.word} detects the kind of the file"
                )
        found = read_layers(self.paths, gpu)
        if found.trace is not None:
            raise OptionError(f"--{self.word} {self.any} is a trace", "two traces are compared, or files about kernels")
        return found

    def _collect_options(self) -> Iterator[tuple[str, Path | None]]:
        yield f"--{self.word}", self.any
        for kind in _KINDS:
            yield f"--{self.word}-{kind}", getattr(self, kind)


def resolve_renamed_option(current: Path | None, deprecated: Path | None, option: str, old: str) -> Path | None:
    """Return the value of a renamed option, with a notice for its old name. Raises `OptionError` if both are given."""
    if deprecated is None:
        return current
    if current is not None:
        raise OptionError(f"{old} is the old name of {option}", f"leave {old} out")
    print_notice(f"frx: {old} is deprecated: {option}")
    return deprecated


def analyze_sides(
    before: SideFiles,
    after: SideFiles,
    gpu: GpuProfile | None,
    gpu_model: str | None,
    *,
    as_document: bool,
    top: int,
    output: Path | None,
) -> int:
    """Compare two sides, of kernels or of recorded programs, write the report, and return the exit code. Raises
    `OptionError` if one side has no file."""
    from frx_graph.analyzers.comparison.comparison import compare_layers
    from frx_graph.cli.compare import show_comparison
    from frx_graph.reports.kernels.compare_text import NextCommand

    for side, other in ((before, after), (after, before)):
        if not side.paths:
            raise OptionError(f"--{other.word} has nothing to be compared with", f"--{side.word} FILE")
    if before.any is not None and after.any is not None and len(before.paths) == len(after.paths) == 1:
        if detect_record_kind(before.any) is not None:
            note_unused_gpu(gpu_model)
        labels = (before.label, after.label)
        code = compare_records(before.any, after.any, as_document=as_document, top=top, labels=labels, output=output)
        if code is not None:
            return code
    with show_stages() as progress:
        progress(f"reading {before.paths[0]}")
        layers_a = before.read_layers(gpu)
        progress(f"reading {after.paths[0]}")
        layers_b = after.read_layers(gpu)
    label_a, label_b = (side.label or str(side.paths[0]) for side in (before, after))
    found = compare_layers(layers_a, layers_b, label_a, label_b)
    typed = ["frx", "analyze", *before.format_options(), *after.format_options()]
    typed += [] if gpu_model is None else ["--gpu-model", gpu_model]
    sides = (layers_a, layers_b)
    again = NextCommand(
        typed,
        for_ptx=_suggest_missing_options(sides, "ptx"),
        for_gpu=(),
        for_ncu=(_suggest_missing_options(sides, "ncu"),),
    )
    return show_comparison(found, again, as_document=as_document, top=top, output=output)


def _suggest_missing_options(sides: Sequence[Layers], kind: str) -> tuple[str, ...]:
    """Return the options to add for sides that have no such file."""
    words = [word for word, layers in zip(("before", "after"), sides, strict=True) if getattr(layers, kind) is None]
    return tuple(text for word in words for text in (f"--{word}-{kind}", f"{word}{_SUFFIXES[kind]}"))
