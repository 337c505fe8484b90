"""Names of device kernels and of generated loops, without parts that differ between two compilations of the same
program."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SERIAL = re.compile(r"(?:_\d+)+$")
_COPIES_AND_VIEWS = re.compile(
    r"(?:triton_poi|cpp)_fused_(?:(?:clone|contiguous|copy|view|_unsafe_view|permute|transpose|t|reshape|expand|slice|select"
    r"|unsqueeze|squeeze)_)+\d+"
)
_COPIES = re.compile(r"_(?:clone|contiguous|copy)_")
_IDENTIFIER = re.compile(r"^(?!true$|false$)[A-Za-z_][\w:]*(?: const)?[*&]?$")
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::|^unnamed>::|(?<![\w:])at::native::")
_CAST = re.compile(r"\([^()]*\)\d+")
"""An enumerator as the demangler writes it: `(cudnnKernelDataType_t)2`."""


def strip_serial_number(name: str) -> str:
    """Return the operators that a loop by Inductor fuses: `cpp_fused_convolution_relu_3` →
    `cpp_fused_convolution_relu`."""
    return _SERIAL.sub("", name)


def is_pure_copy(name: str) -> bool:
    """Return True for a loop by Inductor that fuses nothing but copies and views."""
    return _COPIES_AND_VIEWS.fullmatch(name) is not None and _COPIES.search(name) is not None


def normalize_kernel_name(name: str) -> str:
    """Return a demangled kernel name without return type, parameters, and numbers among the template arguments.

    Template arguments keep their names, without arguments of these, since they identify the kernel's work: `void
    at::native::elementwise_kernel<128, 4, at::native::Add<float> >(int)` becomes
    `at::native::elementwise_kernel<at::native::Add>`. Tile sizes that are part of a library's name for a kernel stay. A
    generated loop named by Triton loses its serial number. Copies and fills are not demangled (`Memcpy HtoD (Pageable
    -> Device)`) and stay.
    """
    if name.startswith(("Memcpy", "Memset")):
        return name
    if name.startswith("triton_"):
        return strip_serial_number(name)
    text = name.removeprefix("void ").replace("(anonymous namespace)", "").replace("::::", "::")
    text = _CAST.sub("0", text)
    start = text.find("<")
    bracket = text.find("(")
    if start < 0 or 0 <= bracket < start:
        return text if bracket <= 0 else text[:bracket]
    kept = list(dict.fromkeys(_list_argument_names(text[start:])))
    return f"{text[:start]}<{', '.join(kept)}>" if kept else text[:start]


def shorten_signature(name: str) -> str:
    """Return a demangled kernel name for a person, without `void`, parameters, unnamed namespaces and ATen's own.
    Template arguments stay: `void <unnamed>::gemm<64>(const float *, int)` becomes `gemm<64>`."""
    text = _UNNAMED.sub("", name).removeprefix("void ")
    depth = 0
    for at in range(len(text) - 1, 0, -1):
        depth += (text[at] == ")") - (text[at] == "(")
        if depth == 0:
            return text[:at] if text[at] == "(" and text[at - 1] != " " else text
    return text


def _list_argument_names(text: str) -> Iterator[str]:
    """Return the names among the outermost template arguments of `<…>…`."""
    depth, current = 0, ""
    for character in text:
        if character in "<({[":
            depth += 1
            continue
        if character in ">)}]":
            depth -= 1
            if depth > 0:
                continue
        if depth == 0 or (depth == 1 and character == ","):
            if _IDENTIFIER.match(current.strip()):
                yield current.strip()
            current = ""
            if depth == 0:
                return
        elif depth == 1:
            current += character
