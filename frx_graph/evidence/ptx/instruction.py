"""One PTX instruction: which of 17 kinds it is, and where a branch goes.

Kinds go by what an instruction keeps busy. A copy from global to shared memory (`cp.async`, `cp.async.bulk`) is a
global load, since it reads global memory; a fence or a commit of such copies is none. Opcodes as of PTX 9.0:
https://docs.nvidia.com/cuda/parallel-thread-execution/#instruction-set
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """What an instruction is for."""

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


_INSTRUCTION = re.compile(r"(?:@(!?)([\w%$]+)\s+)?([a-z][\w.:]*)\s*(.*?)\s*;", re.DOTALL)
_LAST_NAME = re.compile(r"([A-Za-z_$%][\w$%]*)\s*$")
_ARITHMETIC = frozenset(
    [
        "add",
        "sub",
        "mul",
        "fma",
        "mad",
        "mad24",
        "mul24",
        "sad",
        "div",
        "rem",
        "abs",
        "neg",
        "min",
        "max",
        "copysign",
        "addc",
        "subc",
        "madc",
        "dp4a",
        "dp2a",
        "and",
        "or",
        "xor",
        "not",
        "cnot",
        "shl",
        "shr",
        "shf",
        "lop3",
        "bfe",
        "bfi",
        "bfind",
        "brev",
        "clz",
        "popc",
        "prmt",
        "fns",
        "szext",
        "bmsk",
        "vadd",
        "vsub",
        "vmad",
        "vmin",
        "vmax",
        "vabsdiff",
        "vshl",
        "vshr",
        "vset",
        "vadd2",
        "vsub2",
        "vadd4",
        "vsub4",
    ]
)
_SFU = frozenset(["sin", "cos", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "tanh"])
_CONTROL = frozenset(["bra", "brx", "call", "ret", "exit", "trap"])
_FP64, _FP32, _FP16 = frozenset({"f64"}), frozenset({"f32", "f32x2"}), frozenset({"f16", "f16x2", "bf16", "bf16x2"})
_STATES = {"global": 0, "const": 4, "param": 4, "shared": 1, "local": 2, "shared::cta": 1, "shared::cluster": 1}
_LOADS = (Kind.GLOBAL_LOAD, Kind.SHARED_LOAD, Kind.LOCAL_LOAD)
_STORES = (Kind.GLOBAL_STORE, Kind.SHARED_STORE, Kind.LOCAL_STORE)


@dataclass(frozen=True, slots=True)
class Instruction:
    """`words` are the parts of its opcode, `target` the label that a branch goes to, `predicated` says that it may be
    passed over."""

    words: tuple[str, ...]
    kind: Kind
    predicated: bool
    target: str | None

    @property
    def opcode(self) -> str:
        """The first word: `ld` of `ld.global.v4.f32`."""
        return self.words[0]


def parse_instruction(text: str) -> Instruction:
    """The instruction in `text`, with its semicolon. Raises `ValueError` for what is none."""
    found = _INSTRUCTION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    words = tuple(found[3].split("."))
    target = _LAST_NAME.search(found[4]) if words[0] == "bra" else None
    return Instruction(words, _kind(words), found[2] is not None, None if target is None else target[1])


def _kind(words: tuple[str, ...]) -> Kind:
    opcode = words[0]
    if opcode in ("ld", "ldu"):
        return _of_state(words, _LOADS)
    if opcode == "st":
        return _of_state(words, _STORES)
    if opcode in ("atom", "red", "multimem"):
        return Kind.ATOMIC
    if opcode in ("wmma", "mma", "wgmma", "tcgen05", "ldmatrix", "stmatrix"):
        return _matrix(words)
    if opcode == "cp":
        return _copy(words)
    if opcode in _SFU:
        # Exact roots and reciprocals in double precision are sequences of FP64 instructions.
        return Kind.FP64 if "f64" in words else Kind.SFU
    if opcode in _CONTROL:
        return Kind.CONTROL_FLOW
    if opcode in ("cvt", "cvta"):
        return Kind.CONVERSION
    if opcode in ("setp", "set", "testp"):
        return Kind.COMPARISON
    return _arithmetic(words) if opcode in _ARITHMETIC else Kind.OTHER


def _arithmetic(words: tuple[str, ...]) -> Kind:
    types = set(words)
    if types & _FP64:
        return Kind.FP64
    if types & _FP16:
        return Kind.FP16
    return Kind.FP32 if types & _FP32 else Kind.INTEGER


def _of_state(words: tuple[str, ...], kinds: tuple[Kind, Kind, Kind]) -> Kind:
    states = [_STATES[word] for word in words if word in _STATES]
    # Without a state space an address is generic: mostly one of global memory that the compiler could not prove to be.
    index = states[0] if states else 0
    return kinds[index] if index < len(kinds) else Kind.OTHER


def _matrix(words: tuple[str, ...]) -> Kind:
    if words[0] == "ldmatrix":
        return Kind.SHARED_LOAD
    if words[0] == "stmatrix":
        return Kind.SHARED_STORE
    if words[0] == "wmma" and words[1] in ("load", "store"):
        return _of_state(words, _LOADS if words[1] == "load" else _STORES)
    multiplies = words[0] == "mma" or (len(words) > 1 and words[1] in ("mma", "mma_async"))
    return Kind.TENSOR if multiplies else Kind.OTHER


def _copy(words: tuple[str, ...]) -> Kind:
    if words[1:2] != ("async",):
        return Kind.OTHER
    states = [word.partition("::")[0] for word in words if word.partition("::")[0] in ("global", "shared")]
    if "reduce" in words:
        return Kind.ATOMIC
    if states[:1] == ["shared"] and "global" in states:
        return Kind.GLOBAL_LOAD
    return Kind.GLOBAL_STORE if states[:1] == ["global"] else Kind.OTHER
