"""Element types are torch's own, which the readers of files do without."""

from __future__ import annotations

import pytest
import torch

from frx_graph.evidence.dtype import DType


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if hasattr(torch, dtype.value)])
def test_sizes_and_kinds_are_torchs(dtype: DType) -> None:
    real = getattr(torch, dtype.value)
    assert (dtype.itemsize, dtype.is_floating_point) == (real.itemsize, real.is_floating_point)
    assert DType.from_name(real) is dtype


def test_every_ordinary_type_of_torch_is_known() -> None:
    ordinary = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
    unusual = ("quint", "qint", "bits", "uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7", "int1", "int2")
    unknown = {str(dtype).removeprefix("torch.") for dtype in ordinary if DType.from_name(dtype) is None}
    assert {name for name in unknown if not name.startswith((*unusual, "int3", "int4", "int5", "int6", "int7"))} <= {
        "bcomplex32"
    }


@pytest.mark.parametrize("name", ["strange", "", "torch.", "quint8", "FLOAT32"])
def test_unknown_name_is_not_a_dtype(name: str) -> None:
    assert DType.from_name(name) is None
