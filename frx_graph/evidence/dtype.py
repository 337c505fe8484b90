"""Element types as files of a run name them, so that a reader needs no torch to know their sizes."""

from __future__ import annotations

import enum
import re


class DType(enum.StrEnum):
    """An element type, by the name that torch prints without its `torch.` prefix."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E4M3FNUZ = "float8_e4m3fnuz"
    FLOAT8_E5M2 = "float8_e5m2"
    FLOAT8_E5M2FNUZ = "float8_e5m2fnuz"
    FLOAT8_E8M0FNU = "float8_e8m0fnu"
    FLOAT4_E2M1FN_X2 = "float4_e2m1fn_x2"
    COMPLEX128 = "complex128"
    COMPLEX64 = "complex64"
    COMPLEX32 = "complex32"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT64 = "uint64"
    UINT32 = "uint32"
    UINT16 = "uint16"
    UINT8 = "uint8"
    BOOL = "bool"

    @property
    def itemsize(self) -> int:
        """Bytes of one element; `bool`, and packed types of less than a byte, take one."""
        return _ITEMSIZE[self]

    @property
    def is_floating_point(self) -> bool:
        """Return True for real floating-point numbers; False for complex ones, as in torch."""
        return self.value.startswith(("float", "bfloat"))

    @classmethod
    def from_name(cls, dtype: object) -> DType | None:
        """Return the type for a name or a `torch.dtype`; None if it is unknown here."""
        try:
            return cls(str(dtype).removeprefix("torch."))
        except ValueError:
            return None


# A size is looked up for each operand of each event, so that it must not be parsed each time.
_BITS = {dtype: re.search(r"\d+", dtype.value) for dtype in DType}
_ITEMSIZE = {dtype: 1 if bits is None else max(1, int(bits[0]) // 8) for dtype, bits in _BITS.items()}
