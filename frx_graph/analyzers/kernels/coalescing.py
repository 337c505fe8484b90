"""Judge if warps fetch and write whole sectors of global memory.

A warp's 32 neighbouring words fill as many sectors of 32 bytes as a word has bytes, and at least four for narrower
words, since threads then read several. The size of a word comes from the types in the kernel's name. A name need not
show how a pointer is read: eight and sixteen sectors may be whole ones of words of 8 and 16 bytes. How many bytes of a
sector are used may be measured, too; of two measures the milder one counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from frx_graph.evidence.kernel_signature import parse_kernel_signature

Use = Literal["load", "store"]
USES: tuple[Use, ...] = ("load", "store")
SECTOR_BYTES = 32.0
COALESCED_SECTORS = 4.0
"""Sectors of a warp's 32 neighbouring words of 4 bytes."""
_VECTOR_SECTORS = (8.0, 16.0)
"""The same for 8 and 16 bytes a thread."""
SECTORS_WITHIN = 0.02
"""Ratio up to which counts of sectors are equal."""
LEAST_EXCESS = 1.25
"""One sector more than four, as of a row that does not begin at a sector. Nsight Compute's rule gives no line;
neighbouring rows of a stencil take about 1.1."""
_MOST_EXCESS = 8.0
"""32 sectors instead of four."""
_NARROW = frozenset(
    {"float", "int", "unsignedint", "unsigned", "half", "__half", "__nv_bfloat16", "bool", "char", "signedchar"}
    | {"unsignedchar", "short", "unsignedshort", "c10::Half", "c10::BFloat16"}
    | {"uint8_t", "int8_t", "uint16_t", "int16_t", "uint32_t", "int32_t"}
)
_WIDE = {
    **dict.fromkeys(("double", "long", "longlong", "unsignedlong", "unsignedlonglong", "float2", "int2", "uint2"), 8),
    **dict.fromkeys(("int64_t", "uint64_t"), 8),
    **dict.fromkeys(("double2", "longlong2", "ulonglong2", "float4", "int4", "uint4"), 16),
}
"""Bytes of types whose words need more than four sectors a warp."""


@dataclass(frozen=True, slots=True)
class SectorUse:
    """The loads or stores of a kernel. `excess` is how many times as many sectors move as are needed: 1 if they are
    whole."""

    use: Use
    excess: float
    evidence: str

    @property
    def is_scattered(self) -> bool:
        """Return True if clearly more sectors move than are needed."""
        return self.excess >= LEAST_EXCESS * (1 - SECTORS_WITHIN)

    @property
    def score(self) -> float:
        """Return the excess on a scale of 0 to 1, which is 32 sectors instead of four."""
        return min(1.0, (self.excess - 1) / (_MOST_EXCESS - 1))


def judge_sector_use(kernel: str, values: Mapping[str, float], use: Use) -> SectorUse | None:
    """Judge a kernel's loads or stores; None if neither sectors nor used bytes were measured, or they prove nothing."""
    sectors, used = count_sectors(values, use), _get_used_bytes(values, use)
    found = list(_measure_excess(kernel, sectors, used))
    if not found:
        return None
    said = []
    if sectors is not None:
        said.append(f"{sectors:.1f} sectors for each global {use} of a warp")
    if used is not None:
        said.append(f"global {use}s use {used:.1f} of the {SECTOR_BYTES:.0f} bytes of a sector")
    return SectorUse(use, max(1.0, min(found)), "; ".join(said))


def _measure_excess(kernel: str, sectors: float | None, used: float | None) -> Iterator[float]:
    if sectors is not None:
        if sectors <= COALESCED_SECTORS * (1 + SECTORS_WITHIN):
            # Few sectors are fetched; if few bytes of them are used, all threads read the same ones.
            yield 1.0
            return
        if (needed := find_needed_sectors(kernel, sectors)) is not None:
            yield sectors / needed
    if used:
        yield SECTOR_BYTES / used


def find_needed_sectors(kernel: str, sectors: float) -> float | None:
    """Return the sectors that a warp's words need, given those that it took; None if unknown."""
    word = parse_wide_word(kernel)
    if word is not None:
        return float(word)
    if is_whole_vector(sectors):
        return sectors
    if _reads_narrow_words(kernel):
        return COALESCED_SECTORS
    # No word is wider than 16 bytes.
    widest = _VECTOR_SECTORS[-1]
    return widest if sectors > widest else None


def count_sectors(values: Mapping[str, float], use: Use) -> float | None:
    """Return 32-byte sectors for each load or store of a warp, measured or from both counts; None if unknown."""
    sectors, requests = values.get(f"{use}_sectors"), values.get(f"{use}_requests")
    return values.get(f"sectors_per_{use}", sectors / requests if sectors is not None and requests else None)


def _get_used_bytes(values: Mapping[str, float], use: Use) -> float | None:
    """Return the bytes of a sector that are used; None if they were not measured."""
    pct = values.get(f"{use}_sector_use")
    return values.get(f"{use}_bytes_per_sector", None if pct is None else SECTOR_BYTES * pct / 100.0)


def is_whole_vector(sectors: float) -> bool:
    """Return True for the sectors that a warp's words of 8 or 16 bytes fill."""
    return any(abs(sectors - vector) <= SECTORS_WITHIN * vector for vector in _VECTOR_SECTORS)


def parse_wide_word(kernel: str) -> int | None:
    """Return the bytes of the widest type of more than 4 bytes among template arguments and pointers of a kernel's
    name; None without one."""
    return max((_WIDE[text] for text in _list_types(kernel) if text in _WIDE), default=None)


def _reads_narrow_words(kernel: str) -> bool:
    """Return True if the name has pointers, all to types of at most 4 bytes."""
    signature = parse_kernel_signature(kernel)
    pointers = [text.rstrip("*") for text in signature.parameters or () if text is not None and text.endswith("*")]
    return bool(pointers) and all(text in _NARROW for text in pointers)


def _list_types(kernel: str) -> list[str]:
    signature = parse_kernel_signature(kernel)
    types = [text or "" for text in signature.arguments or ()]
    return types + [text.rstrip("*") for text in signature.parameters or () if text is not None and text.endswith("*")]
