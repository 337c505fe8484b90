"""Define the operator layout contract: the operands that operators copy inside, by class of strides and torch version.

A contract is measured (`frx probe`). It also covers calls that were not measured. So it has an answer only if all
measurements of an operator agree: a class of strides in which some calls copied and others did not is unknown. For GPUs
that are not here there is a documented one, read from torch's source and the makers' documentation. It names the source
of each call, and tells forms of an operator apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from frx_graph.errors import ContractError
from frx_graph.facts.layout import StridePattern
from frx_graph.measure.operators.operator_measurement import Mechanism
from frx_graph.support.cache_directory import get_own_contracts
from frx_graph.support.versioned_file import find_documented_file, find_nearest_version, parse_minor

SCHEMA = "frx_operator_contract_v1"
RESULT = "result"
_SAME_RATIO = 0.05


@dataclass(frozen=True, slots=True)
class ContractEntry:
    """The effect of an operator on an operand in one class of strides.

    `bytes_ratio` is the bytes of all copies over those of the operand, or of all results together (1.0: everything
    once). `count` is the number of copies of the measured call; for `bmm` and the like it grows with the batch.
    `mechanism` is that of most of the bytes, None if nothing is copied.
    """

    copied: bool
    bytes_ratio: float = 0.0
    count: int = 0
    mechanism: Mechanism | None = None

    def agrees(self, other: ContractEntry) -> bool:
        """Return True if both have the same effect on an operand, regardless of the number of copies."""
        return (self.copied, self.mechanism) == (other.copied, other.mechanism) and (
            abs(self.bytes_ratio - other.bytes_ratio) <= _SAME_RATIO * max(self.bytes_ratio, other.bytes_ratio)
        )


@dataclass(frozen=True, slots=True)
class ContractRow:
    """One measured fact. `operand` counts tensor arguments; None is for the results together, and `pattern` is then the
    first operand's. `entry` is None if calls of this class disagree."""

    target: str
    case: str
    operand: int | None
    rank: int
    pattern: StridePattern
    dtype: torch.dtype
    entry: ContractEntry | None


@dataclass(frozen=True)
class OperatorContract:
    """The contract of one device kind and torch version. `exact` is false if it stands in for another version's."""

    name: str
    device: str
    torch_version: str
    measured_on: Mapping[str, str]
    rows: tuple[ContractRow, ...]
    exact: bool = True
    documented: bool = False
    """It rests on documents, not on measurements."""
    path: Path | None = field(default=None, compare=False)

    def get_entry(
        self,
        target: str,
        operand: int | None,
        pattern: StridePattern,
        dtype: torch.dtype,
        *,
        rank: int | None = None,
        case: str | None = None,
    ) -> ContractEntry | None:
        """Return the effect of `target` on its tensor argument number `operand` (None: on its results, by the first
        operand's pattern) with these strides, all others being contiguous; None if unknown.

        An operator measured in several forms (convolution in 1, 2 and 3 dimensions, grouped or not) has an entry if its
        forms agree; `rank`, the operand's number of dimensions, leaves out those of another rank. `case` is the form,
        for a documented contract, which knows what holds for each.
        """
        rows = self._index.get((target, operand, pattern, dtype), ())
        if self.documented and case is not None:
            rows = [row for row in rows if row.case == case]
        return merge_entries([row.entry for row in rows if rank is None or row.rank == rank])

    def lists(self, target: str, operand: int | None, pattern: StridePattern, dtype: torch.dtype, *, rank: int) -> bool:
        """Return True if there is a row for such an operand in some form of `target`, if only to say that it varies."""
        return any(row.rank == rank for row in self._index.get((target, operand, pattern, dtype), ()))

    @cached_property
    def _index(self) -> Mapping[tuple[str, int | None, StridePattern, torch.dtype], Sequence[ContractRow]]:
        index = defaultdict(list)
        for row in self.rows:
            index[row.target, row.operand, row.pattern, row.dtype].append(row)
        return index


def merge_entries(entries: Sequence[ContractEntry | None]) -> ContractEntry | None:
    """Return the first entry if all agree with it; None if they do not, or one is unknown, or there are none."""
    first = entries[0] if entries else None
    if first is None or any(entry is None or not first.agrees(entry) for entry in entries):
        return None
    return first


def load_contract(device: str, torch_version: str, *, own: Path | None = None) -> OperatorContract | None:
    """Return the contract for a device kind (`cpu`, `cuda`) and torch version; None if there is none for the device.

    A contract measured on this machine (`own`, else the cache directory) goes before a shipped one, and the same minor
    version before the nearest one, for which `exact` is then false. Raises `ContractError` for a malformed file.
    """
    path = find_nearest_version(device, torch_version, own or get_own_contracts())
    return None if path is None else read_contract(path, wanted=torch_version)


def load_documented_contract(device: str, *, tf32: bool) -> OperatorContract:
    """Return the documented contract for a device kind. With `tf32`, convolutions round float32 operands to TF32.
    Raises `ContractError`."""
    return read_contract(find_documented_file(device), tf32=tf32)


def make_contract_name(device: str, torch_version: str) -> str:
    """Return the name of a contract, such as `cpu-2.15`."""
    major, minor = parse_minor(torch_version)
    return f"{device}-{major}.{minor}"


def read_contract(path: Path, *, wanted: str | None = None, tf32: bool = False) -> OperatorContract:
    """Read one file; `wanted` is the torch version that it is to answer for. Raises `ContractError`."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
        return _ContractDocument.model_validate(document).build_contract(path, wanted, tf32=tf32)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ContractError(f"the operator layout contract {path} cannot be read: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the document"
        raise ContractError(
            f"the operator layout contract {path} is malformed: {place}: {first['msg']}",
            "measure it again with frx probe",
        ) from error


def dump_contract(contract: OperatorContract) -> str:
    """Return the contract as YAML, in the order of the rows."""
    calls: dict[tuple[str, str], dict[tuple[int | str, int], dict[str, dict[str, Any]]]] = {}
    for row in contract.rows:
        place = (RESULT if row.operand is None else row.operand, row.rank)
        dtypes = calls.setdefault((row.target, row.case), {}).setdefault(place, {})
        dtype = str(row.dtype).removeprefix("torch.")
        outcome = dtypes.setdefault(dtype, {"not_copied": [], "copied": {}, "varies": []})
        if row.entry is None:
            outcome["varies"].append(str(row.pattern))
        elif row.entry.copied:
            outcome["copied"][str(row.pattern)] = {
                "bytes_ratio": round(row.entry.bytes_ratio, 4),
                "count": row.entry.count,
                "mechanism": str(row.entry.mechanism),
            }
        else:
            outcome["not_copied"].append(str(row.pattern))

    def list_known(dtypes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        return {dtype: {key: value for key, value in found.items() if value} for dtype, found in dtypes.items()}

    document = {
        "schema": SCHEMA,
        "device": contract.device,
        "torch": contract.torch_version,
        "measured_on": dict(contract.measured_on),
        "calls": [
            {
                "target": target,
                "case": case,
                "operands": [
                    {"operand": operand, "rank": rank, **list_known(dtypes)}
                    for (operand, rank), dtypes in operands.items()
                ],
            }
            for (target, case), operands in calls.items()
        ],
    }
    return yaml.safe_dump(document, sort_keys=False, width=120, default_flow_style=None)


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _ContractModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _CopiedModel(_ContractModel):
    bytes_ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    count: Annotated[int, Field(ge=1)]
    mechanism: Mechanism


class _OutcomeModel(_ContractModel):
    not_copied: tuple[StridePattern, ...] = ()
    copied: dict[StridePattern, _CopiedModel] = {}
    varies: tuple[StridePattern, ...] = ()

    @model_validator(mode="after")
    def _check_patterns_unique(self) -> _OutcomeModel:
        patterns = [*self.not_copied, *self.copied, *self.varies]
        if len(set(patterns)) != len(patterns):
            raise ValueError("a pattern has two outcomes")
        return self

    def list_entries(self) -> Iterable[tuple[StridePattern, ContractEntry | None]]:
        yield from ((pattern, ContractEntry(copied=False)) for pattern in self.not_copied)
        yield from (
            (pattern, ContractEntry(True, found.bytes_ratio, found.count, found.mechanism))
            for pattern, found in self.copied.items()
        )
        yield from ((pattern, None) for pattern in self.varies)


class _OperandModel(_ContractModel):
    operand: Annotated[int, Field(ge=0)] | Literal["result"]
    rank: Annotated[int, Field(ge=0)]
    float32: _OutcomeModel | None = None
    tf32: _OutcomeModel | None = None
    """Float32 where the device may round operands to TF32; None: as without."""
    bfloat16: _OutcomeModel | None = None
    float16: _OutcomeModel | None = None

    def get_outcome(self, dtype: torch.dtype, *, tf32: bool) -> _OutcomeModel | None:
        """Return what is known of operands in a dtype."""
        if dtype is torch.float32 and tf32 and self.tf32 is not None:
            return self.tf32
        known: _OutcomeModel | None = getattr(self, str(dtype).removeprefix("torch."))
        return known


class _CallModel(_ContractModel):
    target: Annotated[str, Field(pattern=r"^\w+(\.\w+)+$")]
    case: str
    source: Annotated[str, Field(min_length=1)] | None = None
    operands: tuple[_OperandModel, ...]


class _ContractDocument(_ContractModel):
    schema_: Annotated[Literal["frx_operator_contract_v1"], Field(alias="schema")]
    device: str
    torch: Annotated[str, Field(pattern=r"^\d+\.\d+")]
    measured_on: dict[str, str] = {}
    documented: bool = False
    calls: tuple[_CallModel, ...]

    @model_validator(mode="after")
    def _check_sources(self) -> _ContractDocument:
        if self.documented and not all(call.source for call in self.calls):
            raise ValueError("a documented contract names the source of each call")
        return self

    def build_contract(self, path: Path, wanted: str | None, *, tf32: bool) -> OperatorContract:
        rows = tuple(
            ContractRow(
                target=call.target,
                case=call.case,
                operand=None if operand.operand == RESULT else int(operand.operand),
                rank=operand.rank,
                pattern=pattern,
                dtype=dtype,
                entry=entry,
            )
            for call in self.calls
            for operand in call.operands
            for dtype in (torch.float32, torch.bfloat16, torch.float16)
            if (outcome := operand.get_outcome(dtype, tf32=tf32)) is not None
            for pattern, entry in outcome.list_entries()
        )
        name = make_contract_name(self.device, self.torch)
        return OperatorContract(
            name=f"{name}: documented, not measured" if self.documented else name,
            device=self.device,
            torch_version=self.torch,
            measured_on=self.measured_on,
            rows=rows,
            exact=wanted is None or parse_minor(wanted) == parse_minor(self.torch),
            documented=self.documented,
            path=path,
        )
