"""Read and write the list of operators whose kernels make other strides than their fakes.

`frx probe` measures it for a device and a torch version. It belongs to the operator layout contract: that lists what
operators copy, this lists how they lay out their results.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import torch
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from frx_graph.errors import ContractError
from frx_graph.support.cache_directory import get_own_contracts
from frx_graph.support.torch_internals import make_channels_last_strides_for, make_contiguous_strides_for
from frx_graph.support.versioned_file import find_nearest_version, parse_minor

SCHEMA = "frx_kernel_strides_v1"
_DEVICES = ("cpu", "cuda")
Sizes: TypeAlias = tuple[int, ...]


class CallClass(enum.StrEnum):
    """The layouts of a call's tensor operands together."""

    PLAIN = "plain"
    CHANNELS_LAST = "channels_last"
    """Images and volumes are channels-last, all other tensors are contiguous."""
    OTHER = "other"


@dataclass(frozen=True)
class StrideTable:
    """`differ` maps each overload that differs from its fake to the classes of calls in which it never did.

    `same` names the overloads that were compared and never differed.
    """

    differ: Mapping[str, frozenset[CallClass]]
    same: frozenset[str] = frozenset()

    def agrees(self, target: str, operands: Sequence[tuple[Sizes, Sizes]]) -> bool:
        """Return True if this kernel and its fake agree for operands of such shapes and strides.

        Unknown for other calls than plain and channels-last ones, which have too little in common.
        """
        kind = classify_call(operands)
        return kind is not CallClass.OTHER and kind in self.differ[target]


def classify_call(operands: Sequence[tuple[Sizes, Sizes]]) -> CallClass:
    """Return the class of a call from the shapes and strides, in elements, of the tensors."""
    if all(_follows(shape, strides, make_contiguous_strides_for(shape)) for shape, strides in operands):
        return CallClass.PLAIN
    wanted = (
        make_channels_last_strides_for(shape) if len(shape) in (4, 5) else make_contiguous_strides_for(shape)
        for shape, _ in operands
    )
    alike = all(_follows(*operand, strides) for operand, strides in zip(operands, wanted, strict=True))
    return CallClass.CHANNELS_LAST if alike else CallClass.OTHER


def _follows(shape: Sizes, strides: Sizes, wanted: Sequence[int]) -> bool:
    return 0 in shape or all(size == 1 or own == want for size, own, want in zip(shape, strides, wanted, strict=True))


@functools.cache
def load_stride_table() -> StrideTable:
    """Return the table for the installed torch: the lists of all device kinds together.

    For each kind, the list that was measured on this machine goes before the shipped one, and the nearest version
    stands in for a missing one. An overload that was compared for one kind only is asked about on all. Raises
    `ContractError` for a malformed file.
    """
    differ: dict[str, frozenset[CallClass]] = {}
    same: set[str] = set()
    for device in _DEVICES:
        path = find_nearest_version(f"strides-{device}", torch.__version__, get_own_contracts())
        if path is None:
            continue
        table = read_stride_table(path)
        same |= table.same
        for target, agreed in table.differ.items():
            differ[target] = differ.get(target, agreed) & agreed
    return StrideTable(differ, frozenset(same - differ.keys()))


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _DifferenceModel(_StrictModel):
    agree: tuple[CallClass, ...] = ()
    differ: tuple[CallClass, ...]


class _TableDocument(_StrictModel):
    schema_: Annotated[Literal["frx_kernel_strides_v1"], Field(alias="schema")]
    device: str
    torch: Annotated[str, Field(pattern=r"^\d+\.\d+")]
    kernels: dict[str, _DifferenceModel]
    same_as_fake: tuple[str, ...]


def read_stride_table(path: Path) -> StrideTable:
    """Read one file. Raises `ContractError`."""
    try:
        document = _TableDocument.model_validate(yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ContractError(f"the list of kernel strides {path} cannot be read: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the document"
        raise ContractError(
            f"the list of kernel strides {path} is malformed: {place}: {first['msg']}",
            "measure it again with frx probe",
        ) from error
    return StrideTable(
        {target: frozenset(found.agree) for target, found in document.kernels.items()}, frozenset(document.same_as_fake)
    )


def dump_stride_table(device: str, torch_version: str, seen: Mapping[str, Mapping[CallClass, bool]]) -> str:
    """Return the table as YAML. `seen` tells, by overload and class, if all kernels made the strides of their fakes."""
    kernels = {
        target: {
            "agree": [str(kind) for kind in CallClass if classes.get(kind)],
            "differ": [str(kind) for kind in CallClass if classes.get(kind) is False],
        }
        for target, classes in sorted(seen.items())
        if not all(classes.values())
    }
    document = {
        "schema": SCHEMA,
        "device": device,
        "torch": str(torch_version),
        "kernels": kernels,
        "same_as_fake": sorted(seen.keys() - kernels.keys()),
    }
    return yaml.safe_dump(document, sort_keys=False, width=120, default_flow_style=None)


def make_table_name(device: str, torch_version: str) -> str:
    """Return the name of a table, such as `strides-cpu-2.15`."""
    major, minor = parse_minor(torch_version)
    return f"strides-{device}-{major}.{minor}"
