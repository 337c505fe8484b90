"""Measure precision and recall of the CUDA source rules on code that they were not tuned on.

    python benchmarks/cuda_judged.py FOLDER [--sample N] [--wrong]

FOLDER holds checkouts as `owner+name`, at the commits that `cuda_judgments.csv` names. A reader's
judgements are in that file: whether a kernel has a rule's defect at a line, and why.

How it was judged, by one reader. Repositories are public ones found by name ("learn-cuda", "pmpp", "cuda-kernel", …)
and libraries; none that was read before. They were dealt to samples 1 and 2 in turn before any was opened; sample 3 was
fetched when the rules had been corrected after sample 2. Samples 8, 9 and 10 are 21, 19 and 10 more repositories, each
fetched when the rules had been corrected after the one before. Copies count once: kernels that are the same but for
names and blanks were left out, those of cuda-samples, llm.c, HeCBench, FasterTransformer, Apex, SHOC and PolyBench
among them.

- `blind`: kernels of at most 110 lines (130 for races) in an order drawn with a seed (1124, 2411, 3112), at most 12, 8
  and 6 of a repository, among those that a regular expression takes for candidates: a barrier below a brace; a shuffle
  or `volatile`; shared memory with a product, or the thread's place before another bracket, in its index; a write and
  another read of one shared array with no word like a barrier between; a remainder or a bit in a condition. Of these
  the reader was shown what words and braces alone cut out (heads of the conditions around each barrier, lines that name
  shared memory, definitions of what they use), and the file where that was not enough. Nothing had been run on
  them. Recall is the share of kernels with the defect in which the rule finds it: of such as a reader finds so.
- `found`: findings drawn with the same seeds, one a kernel and at most three of a repository (four in sample 3). The
  reader looked at each and wrote down whether it is true. Precision is the share that is. What is not found any more
  counts for neither. Of samples 8 to 10 (seeds 8118, 9119, 10120), at most 14 findings of a rule and three of a
  repository were drawn, among `blind` kernels without a finding, and the reader did not know which is which. Of sample
  11, all findings of races and of barriers below a condition were judged, each kernel once, and at most 12 of each of
  five other rules, three of a repository.
- `planted`: what `cuda_planted.py` makes of kernels, drawn with the seed 2411, samples 7 to 9 and 11 with 7117, 8118,
  9119 and 11121: a defect may be there that was not before. The reader said whether it is, before anything was run.
  Recall is the share of those with it in which the rule finds it and did not before; precision their share among all in
  which it does.

What counts as the defect:

- `conditional_syncthreads`: the language forbids it: a barrier of the block below a condition or in a loop that not all
  of its threads that still run need take alike. A thread that has returned does not count.
- `warp_level_sync_misuse`: a shuffle or vote without a mask; one with all lanes in the mask, where not all lanes that
  still run need come by; `volatile` shared memory in place of a barrier.
- `possible_shared_memory_bank_conflict`: with the sizes that the file gives, a warp wants two or more words of a bank.
- `shared_memory_without_barrier`: a thread reads what another has written, in one way or the other around a loop,
  without a barrier that all come by. Memory that is overwritten too early counts from sample 8 on.
- `warp_divergence`: the threads of a warp, by their place alone, take two ways that each do work, or wait in a loop
  for those that do. A border, and one thread or a first few that do what is left, are not meant.
- `uncoalesced_access`: with blocks as they are launched, a warp's access to global memory touches at least twice the
  sectors that its bytes need.
- `unnecessary_syncthreads`: without the barrier, no thread could read or overwrite what another still needs.

Intervals are Wilson's, of 95 %. Exit code 1 where a row names a file that is not there.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cuda_planted import planted
from scipy.stats import binomtest
from tabulate import tabulate

from frx_graph.analyzers.cuda.analysis import detect_cuda_defects
from frx_graph.errors import EvidenceError
from frx_graph.evidence.cuda.headers import read_headers
from frx_graph.evidence.cuda.parsing import parse_cuda

JUDGMENTS = Path(__file__).parent / "cuda_judgments.csv"


@dataclass(frozen=True)
class Judgment:
    """One kernel and rule, as it was read. `line` is that of the defect, or of what was taken for one."""

    sample: str
    how: str
    rule: str
    defect: bool
    repository: str
    commit: str
    path: str
    kernel: str
    line: int
    reason: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sample", help="only this one")
    parser.add_argument("--wrong", action="store_true", help="list what was missed, and what was said wrongly")
    arguments = parser.parse_args()
    judged = [one for one in judgments() if arguments.sample in (None, one.sample)]
    missing = {file for one in judged if not (file := _file(arguments.folder, one)).is_file()}
    for file in sorted(missing):
        print(f"{file} is not there", file=sys.stderr)
    by_rule: dict[tuple[str, str], dict[str, list[tuple[Judgment, bool]]]] = defaultdict(lambda: defaultdict(list))
    for one in judged:
        file = _file(arguments.folder, one)
        if file not in missing:
            natural = one.how != "planted"
            said = _is_said(file, one)
            for part in (one.how,) if natural else ("blind", "found"):
                by_rule[one.rule, one.sample if natural else f"{one.sample} planted"][part].append((one, said))
    rows = []
    for (rule, sample), parts in sorted(by_rule.items()):
        found = [one for one, said in parts["found"] if said]
        there = [(one, said) for one, said in parts["blind"] if one.defect]
        rows.append(
            [
                rule,
                sample,
                *_share(sum(one.defect for one in found), len(found)),
                *_share(sum(said for _, said in there), len(there)),
            ]
        )
        if arguments.wrong:
            for one in found:
                if not one.defect:
                    print(f"wrong: {one.rule} {one.repository} {one.path}:{one.line} {one.kernel}: {one.reason}")
            for one, said in there:
                if not said:
                    print(f"missed: {one.rule} {one.repository} {one.path}:{one.line} {one.kernel}: {one.reason}")
    print(tabulate(rows, headers=["rule", "sample", "right", "precision", "95 %", "found", "recall", "95 %"]))
    return 1 if missing else 0


def judgments(path: Path = JUDGMENTS) -> Iterator[Judgment]:
    """All rows, in order."""
    with path.open(newline="") as stream:
        for row in csv.DictReader(stream):
            yield Judgment(
                row["sample"],
                row["how"],
                row["rule"],
                row["defect"] == "yes",
                row["repository"],
                row["commit"],
                row["path"],
                row["kernel"],
                int(row["line"]),
                row["reason"],
            )


@cache
def findings(file: Path) -> frozenset[tuple[str, str]]:
    """The kernels and rules of a file that something is said of; kernels by their own name alone."""
    return _findings_of(file.read_text(errors="replace"), file)


def _findings_of(text: str, file: Path) -> frozenset[tuple[str, str]]:
    try:
        source = parse_cuda(text, str(file), read_headers(file, text))
    except EvidenceError:
        return frozenset()
    return frozenset(
        (one.kernel.split("<", 1)[0].rsplit("::", 1)[-1], one.card.id) for one in detect_cuda_defects(source).findings
    )


def _is_said(file: Path, one: Judgment) -> bool:
    """True if the rule speaks of the kernel; of what was planted, if it does since."""
    said = (one.kernel, one.rule) in findings(file)
    if one.how != "planted":
        return said
    mutant = planted(one.rule, file.read_text(errors="replace"), one.line)
    return not said and (one.kernel, one.rule) in _findings_of(mutant, file)


def _file(folder: Path, one: Judgment) -> Path:
    return folder / one.repository.replace("/", "+") / one.path


def _share(right: int, of: int) -> tuple[str, str, str]:
    """As a count, a share and its interval."""
    if not of:
        return "0 of 0", "", ""
    low, high = binomtest(right, of).proportion_ci(method="wilson")
    return f"{right} of {of}", f"{right / of:.2f}", f"{low:.2f} to {high:.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
