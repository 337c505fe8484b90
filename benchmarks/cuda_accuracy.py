"""What is found in CUDA source that somebody else has written, how much of it is understood, and how fast?

    python benchmarks/cuda_accuracy.py FOLDER... [--findings RULE] [--json FILE]

FOLDER holds `.cu` and `.cuh` files, in folders of any depth, with the headers that they include. Prints for each folder
kernels, launches against a count of `<<<` outside comments, strings and `#if 0`, the share of bytes that the parser
understood, of global accesses whose stride is known, megabytes a second of processor time, and findings by rule. MB/s
is from a file, and the headers read with it, to its findings, over the file's own bytes; parser MB/s is of what takes
the parser alone, tree-sitter with what is blanked and passed over before it (the bodies of host functions). Both are of
one round, and of all files, those without a kernel too, which are parsed for the second figure alone.
`--findings RULE` lists those of a rule with
their lines, to be judged by reading the code. Precision is not computed: only a reader can say what is right.

Exit code 1 where a file cannot be read for another reason than that there is no kernel in it, or a launch was missed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tabulate import tabulate

from frx_graph.analyzers.cuda.analysis import CudaFinding, detect_cuda_defects
from frx_graph.errors import EvidenceError
from frx_graph.evidence.cuda.parsing import read_cuda
from frx_graph.evidence.cuda.source import Space, StrideKind
from frx_graph.evidence.cuda.syntax import parse_tree

_NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|^[ \t]*#[ \t]*define(?:[^\n]*\\\n)*[^\n]*'
    r"|^[ \t]*#[ \t]*if[ \t]+0\b.*?^[ \t]*#[ \t]*(?=e)",
    re.DOTALL | re.M,
)
"""Comments, strings, macros and what `#if 0` removes: a `<<<` in these launches nothing."""


@dataclass
class Folder:
    """Sums over one folder; times are of the processor, in seconds."""

    name: str
    files: int = 0
    kernels: int = 0
    unread: int = 0
    launches: int = 0
    launches_by_grep: int = 0
    bytes: int = 0
    unparsed: int = 0
    accesses: int = 0
    strides_known: int = 0
    seconds: float = 0.0
    parser_seconds: float = 0.0
    rules: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--findings", metavar="RULE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    results = []
    for path in arguments.folders:
        folder = Folder(path.name)
        for file, finding in _read(path, folder):
            if finding.card.id == arguments.findings:
                print(f"{file}:{finding.line} {finding.kernel}: {finding.seen}")
        results.append(folder)
    _print(results)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([vars(one) for one in results], indent=2) + "\n")
    return 1 if any(one.failed or one.launches < one.launches_by_grep for one in results) else 0


def _read(path: Path, folder: Folder) -> Iterator[tuple[Path, CudaFinding]]:
    for file in sorted(one for suffix in ("cu", "cuh") for one in path.rglob(f"*.{suffix}")):
        text = file.read_text(errors="replace")
        folder.files += 1
        folder.bytes += len(text)
        folder.launches_by_grep += _NOT_CODE.sub(" ", text).count("<<<")
        begin = time.process_time()
        parse_tree(text.encode("utf-8", "replace"))
        folder.parser_seconds += time.process_time() - begin
        begin = time.process_time()
        try:
            source = read_cuda(file)
        except EvidenceError as error:
            if "no kernel and no launch" not in str(error):
                folder.failed.append(str(error))
            folder.seconds += time.process_time() - begin
            continue
        analysis = detect_cuda_defects(source)
        folder.seconds += time.process_time() - begin
        folder.kernels += len(source.kernels)
        folder.unread += len(source.unread)
        folder.launches += len(source.launches)
        folder.unparsed += source.coverage.unparsed
        for kernel in source.kernels:
            accesses = [access for access in kernel.accesses if access.space is Space.GLOBAL]
            folder.accesses += len(accesses)
            folder.strides_known += sum(access.stride.kind is not StrideKind.UNKNOWN for access in accesses)
        folder.rules.update(finding.card.id for finding in analysis.findings)
        for finding in analysis.findings:
            yield file, finding


def _print(results: list[Folder]) -> None:
    head = ["folder", "files", "kernels", "unread", "launches", "by grep", "understood", "strides known"]
    rows = [
        [
            one.name,
            one.files,
            one.kernels,
            one.unread,
            one.launches,
            one.launches_by_grep,
            f"{1 - one.unparsed / max(1, one.bytes):.2%}",
            f"{one.strides_known / max(1, one.accesses):.0%}",
            f"{one.bytes / 1e6 / max(1e-9, one.seconds):.1f}",
            f"{one.bytes / 1e6 / max(1e-9, one.parser_seconds):.1f}",
            f"{one.rules.total() / max(1, one.kernels):.2f}",
        ]
        for one in results
    ]
    print(tabulate(rows, headers=[*head, "MB/s", "parser MB/s", "findings/kernel"]))
    for one in results:
        print(f"\n{one.name}")
        print(tabulate(one.rules.most_common(), headers=["rule", "findings"]))
        for failed in one.failed:
            print(failed, file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
