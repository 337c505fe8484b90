"""Is PTX read rightly, and how fast?

    python benchmarks/ptx_corpus.py MODULES SOURCES...
    python benchmarks/ptx_accuracy.py MODULES [--megabytes 50] [--json FILE]

MODULES is a folder of `.ptx` files. Of each module that is read:

- entries are as many as there are lines with `.entry`;
- opcodes fall into the 17 kinds, and what is `other` is in the ISA's list (`OTHER`): the rest is named as unknown;
- loops are as many as control flow has headers, found here once more in the plainest way: a block that dominates one
  from which it can be reached at once;
- registers and spills of the report are those that ptxas prints when it is asked here;
- an entry whose report has tensor cores has tensor instructions in SASS, and the other way round. Where the kernel has
  no loop, which the assembler may unroll, and the shape is one of `ONE_EACH`, as many.

Then modules are put together to a file of that many megabytes, and read in a process of its own, for megabytes a second
(of its processor time, and of the clock's) and the most memory.

Exit code 1 where something is read otherwise, or slower than 2 MB/s.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from plain_flow import plain_loop_headers
from sass import truth
from tabulate import tabulate

from frx_graph.errors import EvidenceError
from frx_graph.evidence.ptx.instruction import Kind, parse_opcode
from frx_graph.evidence.ptx.module import Function
from frx_graph.evidence.ptx.parsing import read_ptx
from frx_graph.evidence.ptx.ptxas import Assembled, assemble

LEAST_MB_PER_S = 2.0
_ENTRY = re.compile(r"^(?!\s*//).*\.entry\b", re.MULTILINE)
_OPCODE = re.compile(r"(?<=[;{}:])\s*(?:@\s*!?\s*%?\w+\s+)?([a-z]\w*(?:\.[\w:]+)*)(?=[\s;])(?!\s*:)")
_CALL = re.compile(r"\bcall(?:\.uni)?\s+(?:\([^()]*\)\s*,\s*)?([\w$]+)")
_BODY = re.compile(r"\.(entry|func)\s+(?:\([^()]*\)\s*)?([\w$]+)[^{;]*\{")
ONE_EACH = re.compile(
    r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f(?:16|32)\.b?f16\.b?f16\.f(?:16|32)"
    r"|mma\.sync\.aligned\.m16n8k32\.row\.col\.(?:satfinite\.)?s32\.[su]8\.[su]8\.s32"
    r"|wgmma\.mma_async\..*|tcgen05\.mma\..*"
)
"""Products that are one instruction each on every target that has them in hardware (sm_80 and later)."""
OTHER = frozenset(
    """activemask alloca applypriority bar barrier brkpt clusterlaunchcontrol cp createpolicy discard elect fence
    getctarank griddepcontrol isspacep istypep ld ldu lop3 mapa match mbarrier membar mov movmatrix nanosleep pmevent
    prefetch prefetchu redux selp setmaxnreg shfl slct st stackrestore stacksave suq tcgen05 tensormap txq vote wgmma
    wmma""".split()  # noqa: SIM905 - as a list it takes sixty lines
)
"""Opcodes of PTX 9.0 that are of no kind of their own, or, as `ld`, `cp` and `wgmma`, only in some of their forms."""


@dataclass
class ModuleResult:
    """One module; counts are of what was compared, and of what was equal. `None`: it was not compared."""

    name: str
    megabytes: float
    entries: int = 0
    entries_listed: int = 0
    instructions: int = 0
    loops: int = 0
    functions: int = 0
    functions_with_the_same_loops: int = 0
    assembled: int = 0
    as_assembled: int = 0
    tensor_compared: int = 0
    tensor_equal: int = 0
    tensor_kernels: int = 0
    counts_compared: int = 0
    counts_equal: int = 0
    refused_by_ptxas: str | None = None
    unknown: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Speed:
    """One reading; `peak_mb` is the process's largest resident memory, `idle_mb` what it had before."""

    megabytes: float
    mb_per_cpu_s: float
    mb_per_s: float
    idle_mb: float
    peak_mb: float


def judged(path: Path, folder: Path) -> ModuleResult:
    """What is read of a module, beside what can be told of it otherwise."""
    text = path.read_text(encoding="utf-8", errors="replace")
    result = ModuleResult(path.name, path.stat().st_size / 1e6, entries_listed=len(_ENTRY.findall(text)))
    try:
        module = read_ptx(path)
    except EvidenceError as error:
        result.wrong.append(str(error))
        return result
    declared = len(re.findall(r"\.entry\s+[\w$]+\s*(?:\([^()]*\))?\s*;", text))
    result.entries = len(module.kernels) + declared
    result.instructions = sum(function.instructions for function in module.functions)
    if result.entries != result.entries_listed:
        result.wrong.append(f"{result.entries} entries and not {result.entries_listed}")
    bodies = plain_bodies(text)
    for function in module.functions:
        headers = plain_loop_headers(bodies[function.name][1:])
        result.loops += len(function.loops)
        result.functions += 1
        result.functions_with_the_same_loops += headers == {loop.label for loop in function.loops}
        if headers != {loop.label for loop in function.loops}:
            result.wrong.append(f"loops of {function.name}: {[one.label for one in function.loops]}, not {headers}")
    for opcode, count in Counter(_OPCODE.findall("\n".join(bodies.values()))).items():
        parsed = parse_opcode(opcode)
        if parsed.kind is Kind.OTHER and parsed.words[0] not in OTHER:
            result.unknown[opcode] = count
    _compare_assembled(result, path, module.target, module.kernels, bodies, folder)
    return result


def _compare_assembled(
    result: ModuleResult,
    path: Path,
    target: str,
    kernels: Sequence[Function],
    bodies: Mapping[str, str],
    folder: Path,
) -> None:
    architecture = re.search(r"sm_\w+", target)
    assert architecture is not None
    known, tensor = truth(path, architecture[0], folder)
    try:
        said: Mapping[str, Assembled] = assemble(path, target)
    except EvidenceError as error:
        if not isinstance(known, str):
            result.wrong.append(f"ptxas takes it, and not from us: {error}")
        result.refused_by_ptxas = str(error)
        return
    assert not isinstance(known, str), known
    for kernel in kernels:
        result.assembled += 1
        ours, theirs = said.get(kernel.name), known[kernel.name]
        mine = None if ours is None else (ours.registers, ours.spill_store_bytes, ours.spill_load_bytes)
        if mine == (theirs.registers, theirs.spill_stores, theirs.spill_loads):
            result.as_assembled += 1
        else:
            result.wrong.append(f"registers and spills of {kernel.name}: {mine}, not {theirs}")
        if tensor is not None:
            _compare_tensor(result, kernel, tensor, bodies)


def _compare_tensor(
    result: ModuleResult, kernel: Function, known: Mapping[str, Counter[str]], bodies: Mapping[str, str]
) -> None:
    reached = _called(kernel.name, bodies)
    # Instructions of functions that it calls stand in SASS with its own.
    products = [
        opcode
        for name in reached
        for opcode in _OPCODE.findall(bodies.get(name, ""))
        if parse_opcode(opcode).kind is Kind.TENSOR
    ]
    mine = "tensor_cores" in kernel.capabilities
    theirs = sum(sum(known[name].values()) for name in reached if name in known)
    result.tensor_compared += 1
    result.tensor_kernels += mine
    if mine == bool(theirs):
        result.tensor_equal += 1
    else:
        result.wrong.append(f"tensor instructions of {kernel.name}: {mine}, in SASS {theirs}")
    if products and len(reached) == 1 and not kernel.loops and all(map(ONE_EACH.fullmatch, products)):
        result.counts_compared += 1
        if kernel.mix[Kind.TENSOR] == theirs:
            result.counts_equal += 1
        else:
            result.wrong.append(f"{kernel.mix[Kind.TENSOR]} tensor instructions of {kernel.name}, in SASS {theirs}")


def plain_bodies(text: str) -> dict[str, str]:
    """The text of each function between its braces, without comments."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/|\.loc\s[^\n]*", "", text, flags=re.DOTALL)
    found = {}
    for begin in _BODY.finditer(text):
        depth, end = 1, begin.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        found[begin[2]] = text[begin.end() - 1 : end - 1]
    return found


def _called(name: str, bodies: Mapping[str, str]) -> set[str]:
    reached, waiting = {name}, [name]
    while waiting:
        for called in _CALL.findall(bodies.get(waiting.pop(), "")):
            if called in bodies and called not in reached:
                reached.add(called)
                waiting.append(called)
    return reached


def write_large(modules: Sequence[Path], path: Path, megabytes: int) -> None:
    """The functions of the modules behind one header, again and again."""
    texts = []
    for module in modules:
        text = module.read_text(encoding="utf-8", errors="replace")
        begin = re.search(r"\.address_size\s+64", text)
        # Debug sections are no part of what code is made of.
        if begin is not None and ".section" not in text:
            texts.append(text[begin.end() :])
    size = 0
    with path.open("w", encoding="utf-8") as file:
        file.write(".version 9.0\n.target sm_90a\n.address_size 64\n")
        while size < megabytes * 10**6:
            for text in texts:
                size += file.write(text)
                if size >= megabytes * 10**6:
                    break


def read_once(path: Path) -> Speed:
    """In this process."""
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    clock, processor = time.perf_counter(), time.process_time()
    read_ptx(path)
    clock, processor = time.perf_counter() - clock, time.process_time() - processor
    megabytes = path.stat().st_size / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return Speed(megabytes, megabytes / processor, megabytes / clock, idle, peak)


def measured(modules: Sequence[Path], megabytes: int, folder: Path) -> Speed:
    """A large file read in a process of its own."""
    path = folder / "large.ptx"
    write_large(modules, path, megabytes)
    command = [sys.executable, __file__, "--read", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=3600)
    return Speed(**json.loads(done.stdout))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", type=Path, nargs="*", help="folders of .ptx files")
    parser.add_argument("--megabytes", type=int, default=50, help="of the file that is made; 0: none")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.read is not None:
        print(json.dumps(asdict(read_once(given.read))))
        return 0
    modules = sorted(path for folder in given.modules for path in folder.rglob("*.ptx"))
    if not modules:
        parser.error("which folders of MODULES?")
    with tempfile.TemporaryDirectory() as folder:
        results = [judged(path, Path(folder)) for path in modules]
        speed = measured(modules, given.megabytes, Path(folder)) if given.megabytes else None
    totals = _totals(results)
    print(tabulate(totals.items(), headers=["", "of all modules"]))
    unknown = sum((Counter(result.unknown) for result in results), Counter())
    print(f"unknown opcodes: {dict(unknown) or 'none'}")
    for result in results:
        if result.refused_by_ptxas:
            print(f"not assembled: {result.name}: {result.refused_by_ptxas[:160]}")
        for line in result.wrong:
            print(f"WRONG: {result.name}: {line[:300]}")
    if speed is not None:
        print(tabulate([asdict(speed)], headers="keys", floatfmt=".1f"))
    if given.json:
        found = {
            "totals": totals,
            "unknown": unknown,
            "speed": None if speed is None else asdict(speed),
            "wrong": [f"{result.name}: {line}" for result in results for line in result.wrong],
            "not_assembled": {result.name: result.refused_by_ptxas for result in results if result.refused_by_ptxas},
        }
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    slow = speed is not None and speed.mb_per_cpu_s < LEAST_MB_PER_S
    return 1 if slow or unknown or any(result.wrong for result in results) else 0


def _totals(results: Sequence[ModuleResult]) -> dict[str, float]:
    numbers = [asdict(result) for result in results]
    summed = {key: sum(one[key] for one in numbers) for key, value in numbers[0].items() if isinstance(value, int)}
    return {"modules": len(results), "megabytes": round(sum(one.megabytes for one in results), 1), **summed}


if __name__ == "__main__":
    sys.exit(main())
