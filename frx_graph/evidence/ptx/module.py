"""Records of a PTX file: its kernels, their instructions and loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from frx_graph.evidence.ptx.instruction import Kind


@dataclass(frozen=True, slots=True)
class Loop:
    """The instructions between a label and the last branch back to it; `mix` counts them, loops inside included."""

    label: str
    line: int
    instructions: int
    mix: Mapping[Kind, int]
    innermost: bool


@dataclass(frozen=True, slots=True)
class Function:
    """An entry, or a function that entries call. `line` counts from 1.

    `virtual_registers` are 32-bit ones, with 64-bit ones as two; the assembler usually gives a kernel far fewer.
    `local_bytes` is the function's declared local memory: arrays that the compiler could not keep in registers, not
    spills, which only the assembler reports. `shared_bytes` includes variables of the module that it uses, and for an
    entry those of functions that it calls.
    """

    name: str
    entry: bool
    linkage: str
    line: int
    mix: Mapping[Kind, int]
    virtual_registers: int
    local_bytes: int
    shared_bytes: int
    branches: int
    """Number of instructions that depend on a predicate."""
    loops: tuple[Loop, ...]
    capabilities: frozenset[str]
    """Capabilities in use, including those of called functions."""
    calls: frozenset[str]
    tuning: tuple[str, ...]
    """Directives such as `.maxntid 256`."""
    reductions: int = 0
    """Double-precision multiplications in `sinf` and its like, which reduce arguments above 105,615."""

    @property
    def instructions(self) -> int:
        """Number of instructions of all kinds."""
        return sum(self.mix.values())

    @property
    def has_back_edge(self) -> bool:
        """Return True for a function with a loop."""
        return bool(self.loops)


@dataclass(frozen=True, slots=True)
class PtxModule:
    """One file. `declared` are functions without a body."""

    source: str
    version: str
    target: str
    functions: tuple[Function, ...]
    declared: tuple[str, ...]

    @property
    def kernels(self) -> tuple[Function, ...]:
        """The entries."""
        return tuple(function for function in self.functions if function.entry)
