"""Limits and peaks of GPUs: multiprocessor limits by architecture, peaks by product, each with its source.

One YAML file an architecture, `gpus/<architecture>.yaml`, with its products. A GPU is identified by its whole name: a
GH200, an H100 NVL, an L40S or a MIG slice of an A100 has other peaks than the device whose name it contains. Unlisted
GPUs are unknown; a number that the maker does not document is None.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt, StringConstraints, model_validator

from frx_graph.errors import ContractError, OptionError
from frx_graph.rules.card_file import Prose, StrictModel, load_cards

_MAKERS = frozenset({"nvidia", "tesla", "geforce", "amd", "instinct"})
"""Words that drivers, data sheets and people add or leave out."""
FLOAT32 = "float32"
_PEAKS = {FLOAT32: "float32_tflops", "fp16": "float16_tflops", "bf16": "bfloat16_tflops", "tf32": "tf32_tflops"}
_WORD = re.compile(r"[^\s_-]+")
_TARGET = re.compile(r"(sm_\d+)([af]?)")


class SmLimits(StrictModel):
    """Capacity of a multiprocessor. Registers have 32 bits and are allocated to a warp in units of `register_unit`;
    `shared_unit` and all shared memory are bytes, of which a block's includes what CUDA reserves."""

    threads: PositiveInt
    blocks: PositiveInt
    registers: PositiveInt
    thread_registers: PositiveInt
    register_unit: PositiveInt
    shared_bytes: PositiveInt
    block_shared_bytes: PositiveInt
    reserved_shared_bytes: Annotated[int, Field(ge=0)]
    shared_unit: PositiveInt


class ProductCard(StrictModel):
    """One product. `names` are other names than `name`, the driver's first; makers' words, spaces and hyphens do not
    matter. Throughputs are dense ones, tensor cores' with fp32 accumulation; `float32_tflops` is without TF32."""

    name: Prose
    names: tuple[Prose, ...] = ()
    sms: PositiveInt | None = None
    l2_kib: PositiveInt | None = None
    bandwidth_gb_per_s: PositiveFloat | None = None
    float32_tflops: PositiveFloat | None = None
    tf32_tflops: PositiveFloat | None = None
    float16_tflops: PositiveFloat | None = None
    bfloat16_tflops: PositiveFloat | None = None
    source: Prose | None = None

    @model_validator(mode="after")
    def _numbers_have_a_source(self) -> ProductCard:
        numbers = self.model_dump(exclude={"name", "names", "source"}, exclude_none=True)
        if bool(numbers) is (self.source is None):
            raise ValueError(f"{self.name}: numbers and their source go together")
        return self


class ArchitectureCard(StrictModel):
    """One file. `architecture_specific_features` exist only for PTX of a target that ends in `a` or `f`."""

    architecture: Annotated[str, StringConstraints(pattern=r"^(sm_\d+|gfx[0-9a-f]+)$")]
    name: Prose
    limits: SmLimits | None = None
    limits_source: Prose | None = None
    features: tuple[Prose, ...] = ()
    architecture_specific_features: tuple[Prose, ...] = ()
    products: tuple[ProductCard, ...] = ()
    products_source: Prose

    @model_validator(mode="after")
    def _limits_have_a_source(self) -> ArchitectureCard:
        if (self.limits is None) is not (self.limits_source is None):
            raise ValueError("limits and their source go together")
        return self


@dataclass(frozen=True, slots=True)
class GpuPeaks:
    """Bytes and floating-point operations per second that a GPU reaches at most; `tensor_flops` for fp16 and bf16,
    `tf32_flops` of float32 operands that are rounded for tensor cores, None if unknown."""

    name: str
    bandwidth_bytes_per_s: float
    float32_flops: float
    tensor_flops: float
    tf32_flops: float | None
    source: str


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """A product, or an architecture alone, with `product` None."""

    architecture: ArchitectureCard
    product: ProductCard | None = None

    @property
    def name(self) -> str:
        """Name of the product, or of the architecture: `sm_90 (Hopper)`."""
        card = self.architecture
        return f"{card.architecture} ({card.name})" if self.product is None else self.product.name

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """Bandwidth of DRAM."""
        return _scale_value(None if self.product is None else self.product.bandwidth_gb_per_s, 1e9)

    @property
    def l2_bytes(self) -> int | None:
        """Bytes that the L2 cache holds."""
        return None if self.product is None or self.product.l2_kib is None else self.product.l2_kib << 10

    @property
    def runs_tf32(self) -> bool:
        """True if tensor cores take float32, rounded to TF32. Source: CUDA C++ Programming Guide, compute capability
        8.x."""
        compute = re.fullmatch(r"sm_(\d+)", self.architecture.architecture)
        return compute is not None and int(compute[1]) >= 80

    @property
    def runs_bfloat16(self) -> bool:
        """True if tensor cores take bfloat16, as they do from the same architecture on as TF32. Before it, torch does
        not run convolutions in bfloat16 by cuDNN (`ConvParams::use_cudnn` in ATen/native/Convolution.cpp)."""
        return self.runs_tf32

    def get_peak_flops(self, of: str) -> float | None:
        """Return operations per second, counting a fused multiply-add as two: `float32`, or `fp16`, `bf16`, `tf32` of
        tensor cores that accumulate in float32."""
        return _scale_value(getattr(self.product, _PEAKS[of], None), 1e12)

    @property
    def peaks(self) -> GpuPeaks | None:
        """Peaks for a roofline; None if one of them is unknown."""
        product, bandwidth = self.product, self.bandwidth_bytes_per_s
        float32, tensor = self.get_peak_flops(FLOAT32), self.get_peak_flops("fp16")
        if product is None or product.source is None or bandwidth is None or float32 is None or tensor is None:
            return None
        return GpuPeaks(product.name, bandwidth, float32, tensor, self.get_peak_flops("tf32"), product.source)


def _scale_value(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


@functools.cache
def load_architectures() -> Mapping[str, ArchitectureCard]:
    """Return every architecture, by its name."""
    return {card.architecture: card for card in load_cards("gpus", ArchitectureCard, "architecture")}


def find_gpu(name: str) -> GpuProfile | None:
    """Return the GPU of this name, whether product or architecture (`sm_90`); None if unknown."""
    return _index_gpus().get(_normalize_name(name))


def require_gpu(name: str) -> GpuProfile:
    """Return the GPU of this name. Raises `OptionError`, with the nearest names, if unknown."""
    found = find_gpu(name)
    if found is None:
        by_key = {key: profile.name for key, profile in _index_gpus().items()}
        close = difflib.get_close_matches(_normalize_name(name), by_key, n=5, cutoff=0.5)
        near = dict.fromkeys(by_key[key] for key in close)
        hint = f"nearest: {', '.join(near)}" if near else "give a product, such as H100, or an architecture, sm_90"
        raise OptionError(f"no GPU is known by the name {name!r}", hint)
    return found


def require_cuda_gpu(name: str | None) -> GpuProfile | None:
    """Return the GPU of that name. Raises `OptionError` if it is unknown, or does not run CUDA kernels."""
    if name is None:
        return None
    found = require_gpu(name)
    if found.architecture.limits is None:
        raise OptionError(f"{found.name} is not a GPU that runs CUDA kernels", "name one of NVIDIA's")
    return found


def list_cuda_gpus() -> tuple[str, ...]:
    """Return the products that `require_cuda_gpu` knows, as their makers call them."""
    return tuple(
        product.name for card in load_architectures().values() if card.limits is not None for product in card.products
    )


def find_architecture(target: str) -> GpuProfile | None:
    """Return the architecture of a PTX `.target`, such as `sm_90a`; None if not listed."""
    found = _TARGET.search(target)
    return None if found is None else find_gpu(found[1])


def find_architecture_by_capability(capability: str) -> GpuProfile | None:
    """Return the architecture of a compute capability, `9.0`; None if not listed."""
    major, point, minor = capability.partition(".")
    return find_gpu(f"sm_{major}{minor}") if point and major.isdecimal() and minor.isdecimal() else None


def list_features(card: ArchitectureCard, target: str) -> tuple[str, ...]:
    """Return the features of the architecture that PTX of that `.target` can use."""
    found = _TARGET.search(target)
    specific = found is not None and found[2] != ""
    return card.features + (card.architecture_specific_features if specific else ())


def _normalize_name(name: str) -> str:
    return "".join(word for word in _WORD.findall(name.casefold()) if word not in _MAKERS)


@functools.cache
def _index_gpus() -> Mapping[str, GpuProfile]:
    found: dict[str, GpuProfile] = {}
    for card in load_architectures().values():
        named = [(card.architecture, GpuProfile(card))]
        named += [(name, GpuProfile(card, one)) for one in card.products for name in (one.name, *one.names)]
        for name, profile in named:
            other = found.setdefault(_normalize_name(name), profile)
            if other.name != profile.name:
                raise ContractError(f"{name} is the name of {profile.name} and of {other.name}")
    return found
