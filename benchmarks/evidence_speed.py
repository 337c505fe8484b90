"""How fast is evidence of every kind read, and how much memory does that take?

    python benchmarks/evidence_speed.py FILE_OR_FOLDER... [--rounds 5] [--beside] [--json FILE]

Files are told apart as `frx analyze` tells them. All of one kind are read one after the other, `--rounds` times, in
a process of their own, from opening a file to its findings: without imports, reports, and ptxas. The rate is the
median of the rounds, by processor time, since other work may share the machine; bytes are those of the text, so of a
gzipped trace those of its JSON. Memory is the process's largest resident set, beside what it had before the first
file. Files that cannot be read count for nothing, and are counted.

With --beside, fournex, the tool that was there before, reads the same files in the same process, file by file in turns
with ours, after memory was measured; it has to be on the path of modules. `times_fournex` is its time over ours, the
median of the rounds, on those files that it could read, which are counted; what it makes of them is not compared.

Exit code 1 where a kind is slower than was aimed at, or nothing could be read at all.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tabulate import tabulate

from frx_graph.analyze.cuda_source import analyze_cuda
from frx_graph.analyze.nsight_compute import analyze_ncu
from frx_graph.analyze.trace import analyze_run
from frx_graph.analyzers.kernels.ptx_analysis import analyze_ptx_module, resolve_target_gpu
from frx_graph.errors import EvidenceError
from frx_graph.evidence.file_kind import FileKind, detect_file_kind
from frx_graph.evidence.ptx.parsing import read_ptx

_AIMS: Mapping[FileKind, float] = {FileKind.TRACE: 20, FileKind.NCU_CSV: 50, FileKind.PTX: 2, FileKind.CUDA: 5}
"""Megabytes a second. A binary report is read by NVIDIA's own library."""
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Speed:
    """Of one kind. Megabytes are decimal; rates are a second of processor time: the median, the worst and the best."""

    kind: str
    files: int
    unread: int
    megabytes: float
    mb_per_s: float
    worst_mb_per_s: float
    best_mb_per_s: float
    idle_mb: float
    peak_mb: float
    times_fournex: float | None = None
    fournex_files: int | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, metavar="FILE_OR_FOLDER")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", action="store_true", help="and compare with fournex")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    parser.add_argument("--kind", type=FileKind, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.kind is not None:
        print(json.dumps(asdict(measured(given.kind, given.paths, given.rounds, beside=given.beside))))
        return 0
    found: dict[FileKind, list[Path]] = {}
    for kind, file in _kinds(given.paths):
        found.setdefault(kind, []).append(file)
    results = [_in_process(kind, files, given.rounds, given.beside) for kind, files in sorted(found.items())]
    print(tabulate([asdict(one) for one in results], headers="keys", floatfmt=".1f"))
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")
    slow = [one for one in results if one.megabytes and one.mb_per_s < _AIMS.get(FileKind(one.kind), 0)]
    return 1 if slow or not any(one.megabytes for one in results) else 0


def measured(kind: FileKind, files: Sequence[Path], rounds: int, *, beside: bool = False) -> Speed:
    """The files, read in this process; then, with `beside`, by fournex as well."""
    idle, sizes, rates = _peak_mb(), dict[Path, int](), list[float]()
    for _ in range(rounds):
        seconds = 0.0
        for file in files if not rates else sizes:
            began = time.process_time()
            try:
                _READERS[kind](file)
            except EvidenceError:
                continue
            seconds += time.process_time() - began
            if not rates:
                sizes[file] = _text_bytes(file)
        rates.append(sum(sizes.values()) / 1e6 / seconds if seconds else 0.0)
    median, megabytes = statistics.median(rates), sum(sizes.values()) / 1e6
    unread = len(files) - len(sizes)
    found = Speed(kind, len(sizes), unread, megabytes, median, min(rates), max(rates), idle, _peak_mb())
    if not beside or kind not in _FOURNEX:
        return found
    times, count = _beside(kind, tuple(sizes), rounds)
    return replace(found, times_fournex=times, fournex_files=count)


def _beside(kind: FileKind, files: Sequence[Path], rounds: int) -> tuple[float | None, int]:
    """Times of fournex over ours, and of how many files."""
    readable = [file for file in files if _seconds(_FOURNEX[kind], file) is not None]
    if not readable:
        return None, 0
    ratios = []
    for _ in range(rounds):
        pairs = [(_seconds(_READERS[kind], file) or 0.0, _seconds(_FOURNEX[kind], file) or 0.0) for file in readable]
        ratios.append(sum(theirs for _, theirs in pairs) / sum(ours for ours, _ in pairs))
    return statistics.median(ratios), len(readable)


def _seconds(reader: Callable[[Path], object], file: Path) -> float | None:
    began = time.process_time()
    try:
        reader(file)
    # Another's reader may raise anything.
    except Exception:  # noqa: BLE001
        return None
    return time.process_time() - began


def _in_process(kind: FileKind, files: Sequence[Path], rounds: int, beside: bool) -> Speed:
    options = ["--kind", kind, "--rounds", str(rounds), *(["--beside"] if beside else [])]
    command = [sys.executable, __file__, *options, *map(str, files)]
    return Speed(**json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))


def _kinds(paths: Sequence[Path]) -> Iterator[tuple[FileKind, Path]]:
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            try:
                yield detect_file_kind(file), file
            except EvidenceError:
                continue


def _ptx(path: Path) -> None:
    module = read_ptx(path)
    analyze_ptx_module(module, {}, resolve_target_gpu(module.target, None))


_READERS: Mapping[FileKind, Callable[[Path], object]] = {
    FileKind.TRACE: analyze_run,
    FileKind.NCU_CSV: analyze_ncu,
    FileKind.NCU_REPORT: lambda path: analyze_ncu(path, None, FileKind.NCU_REPORT),
    FileKind.PTX: _ptx,
    FileKind.CUDA: analyze_cuda,
}


def _fournex_ncu(path: Path) -> None:
    importlib.import_module("fournex.ncu_analysis").analyze_ncu_csv(str(path))


def _fournex_ptx(path: Path) -> None:
    importlib.import_module("fournex.ptx_analysis").analyze_ptx_text(path.read_text())


def _fournex_cuda(path: Path) -> None:
    importlib.import_module("fournex.cuda_static").inspect_cuda_files([path])


def _fournex_trace(path: Path) -> None:
    """Its records of a trace, which is all that it makes of one by itself."""
    fournex = importlib.import_module("fournex.pytorch_profiler_ir")
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt") as file:
        trace = fournex.PytorchProfilerTrace.from_json_payload(json.load(file))
    fournex.map_pytorch_profiler_to_ir(trace, run_id="run")


_FOURNEX: Mapping[FileKind, Callable[[Path], object]] = {
    FileKind.TRACE: _fournex_trace,
    FileKind.NCU_CSV: _fournex_ncu,
    FileKind.PTX: _fournex_ptx,
    FileKind.CUDA: _fournex_cuda,
}


def _text_bytes(path: Path) -> int:
    with path.open("rb") as file:
        if file.read(2) != _GZIP_MAGIC:
            return path.stat().st_size
    size = 0
    with gzip.open(path) as file:
        while chunk := file.read(1 << 20):
            size += len(chunk)
    return size


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    sys.exit(main())
