"""Classify PTX opcodes into 17 kinds, and name the capabilities that they use.

Kinds go by the unit that an instruction keeps busy. A copy from global to shared memory (`cp.async`, `cp.async.bulk`)
is a global load, since it reads global memory; a fence or a commit of such copies is none. Opcodes as of PTX 9.0:
https://docs.nvidia.com/cuda/parallel-thread-execution/#instruction-set
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """Kinds of instructions."""

    FP32 = "fp32"
    FP64 = "fp64"
    FP16 = "fp16"
    INTEGER = "integer"
    GLOBAL_LOAD = "global_load"
    GLOBAL_STORE = "global_store"
    SHARED_LOAD = "shared_load"
    SHARED_STORE = "shared_store"
    LOCAL_LOAD = "local_load"
    LOCAL_STORE = "local_store"
    TENSOR = "tensor"
    SFU = "sfu"
    ATOMIC = "atomic"
    CONTROL_FLOW = "control_flow"
    CONVERSION = "conversion"
    COMPARISON = "comparison"
    OTHER = "other"


_ARITHMETIC = frozenset(
    name
    for line in (
        "abs add addc and bfe bfi bfind bmsk brev clz cnot copysign div dp2a dp4a fma fns lop3 mad mad24 madc max min",
        "mul mul24 neg not or popc prmt rem sad shf shl shr sub subc szext xor vabsdiff vabsdiff2 vabsdiff4 vadd vadd2",
        "vadd4 vavrg2 vavrg4 vmad vmax vmax2 vmax4 vmin vmin2 vmin4 vset vset2 vset4 vshl vshr vsub vsub2 vsub4",
    )
    for name in line.split()
)
_FLOATS = {"f64": Kind.FP64, "f32": Kind.FP32, "f32x2": Kind.FP32}
_FLOATS |= dict.fromkeys(("f16", "f16x2", "bf16", "bf16x2"), Kind.FP16)
_STATES = {"global": 0, "shared": 1, "local": 2, "const": 3, "param": 3}
"""Places in `_LOADS` and `_STORES`; constants and parameters are neither."""
_KINDS = {
    **dict.fromkeys(("tex", "tld4", "suld"), Kind.GLOBAL_LOAD),
    "sust": Kind.GLOBAL_STORE,
    "sured": Kind.ATOMIC,
    **dict.fromkeys(("atom", "red", "multimem"), Kind.ATOMIC),
    **dict.fromkeys(("sin", "cos", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "tanh"), Kind.SFU),
    **dict.fromkeys(("bra", "brx", "call", "ret", "exit", "trap"), Kind.CONTROL_FLOW),
    **dict.fromkeys(("cvt", "cvta"), Kind.CONVERSION),
    **dict.fromkeys(("setp", "set", "testp"), Kind.COMPARISON),
}
"""Kinds by opcode; the first ones access global memory through textures and surfaces."""
_CAPABILITIES = {Kind.TENSOR: "tensor_cores", Kind.FP64: "fp64", Kind.ATOMIC: "atomics", Kind.SFU: "sfu"}
_LOADS = (Kind.GLOBAL_LOAD, Kind.SHARED_LOAD, Kind.LOCAL_LOAD)
_STORES = (Kind.GLOBAL_STORE, Kind.SHARED_STORE, Kind.LOCAL_STORE)


@dataclass(frozen=True, slots=True)
class Opcode:
    """An opcode. `words` are its parts, `ld`, `global`, `v4` and `f32` in `ld.global.v4.f32`; `capabilities` are the
    features that it uses."""

    words: tuple[str, ...]
    kind: Kind
    capabilities: frozenset[str]


@functools.lru_cache(maxsize=4096)
def parse_opcode(text: str) -> Opcode:
    """Classify the opcode `text`; there may be whitespace before its modifiers."""
    words = tuple("".join(text.split()).split("."))
    kind = _classify_opcode(words)
    return Opcode(words, kind, frozenset(_list_capabilities(words, kind)))


def _classify_opcode(words: tuple[str, ...]) -> Kind:
    match words[0]:
        case "ld" | "ldu":
            return _classify_memory(words, _LOADS)
        case "st":
            return _classify_memory(words, _STORES)
        case "wmma" | "mma" | "wgmma" | "tcgen05" | "ldmatrix" | "stmatrix":
            return _classify_matrix(words)
        case "cp":
            return _classify_copy(words)
        case opcode if opcode in _ARITHMETIC:
            # The first type is the result's: `add.f32.f16` adds in single precision.
            return next((_FLOATS[word] for word in words if word in _FLOATS), Kind.INTEGER)
    kind = _KINDS.get(words[0], Kind.OTHER)
    # Exact roots and reciprocals in double precision are sequences of FP64 instructions.
    return Kind.FP64 if kind is Kind.SFU and "f64" in words else kind


def _list_spaces(words: tuple[str, ...]) -> list[str]:
    """The state spaces that are named: `shared` of `shared::cta`."""
    return [space for word in words if (space := word.partition("::")[0]) in _STATES]


def _classify_memory(words: tuple[str, ...], kinds: tuple[Kind, Kind, Kind]) -> Kind:
    spaces = _list_spaces(words)
    # Without a state space an address is generic: mostly one of global memory that the compiler could not prove to be.
    index = _STATES[spaces[0]] if spaces else 0
    return kinds[index] if index < len(kinds) else Kind.OTHER


def _classify_matrix(words: tuple[str, ...]) -> Kind:
    opcode, what = words[0], words[1] if len(words) > 1 else ""
    if opcode == "ldmatrix":
        return Kind.SHARED_LOAD
    if opcode == "stmatrix":
        return Kind.SHARED_STORE
    if opcode == "wmma" and what in ("load", "store"):
        return _classify_memory(words, _LOADS if what == "load" else _STORES)
    return Kind.TENSOR if opcode == "mma" or what in ("mma", "mma_async") else Kind.OTHER


def _classify_copy(words: tuple[str, ...]) -> Kind:
    if "async" not in words or "prefetch" in words:
        return Kind.OTHER
    if "reduce" in words:
        return Kind.ATOMIC
    match _list_spaces(words):
        case ["shared", "global"]:
            return Kind.GLOBAL_LOAD
        case ["global", "shared"]:
            return Kind.GLOBAL_STORE
        case ["shared", "shared"]:
            return Kind.SHARED_STORE
    return Kind.OTHER


def _list_capabilities(words: tuple[str, ...], kind: Kind) -> Iterator[str]:
    if kind in _CAPABILITIES:
        yield _CAPABILITIES[kind]
    if words[0] in ("wgmma", "tcgen05", "mbarrier"):
        yield words[0]
    if words[0] in ("bar", "barrier"):
        yield "barriers"
    if words[0] == "cp" and "async" in words:
        yield "tma" if "bulk" in words else "cp_async"
