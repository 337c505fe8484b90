"""GPUs by name: each product by all of its names, its relatives never, and limits as NVIDIA's own headers have them."""

from __future__ import annotations

import itertools
import re
import subprocess
from importlib import resources, util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.errors import ContractError, OptionError
from frx_graph.evidence.ptx.ptxas import find_ptxas
from frx_graph.rules.card_file import parse_card
from frx_graph.rules.gpu_profile import (
    ArchitectureCard,
    GpuProfile,
    find_architecture,
    find_architecture_by_capability,
    find_gpu,
    list_features,
    load_architectures,
    require_gpu,
)

CARDS = load_architectures()
PRODUCTS = [(card, product) for card in CARDS.values() for product in card.products]
NAMES = [(name, product.name) for _, product in PRODUCTS for name in (product.name, *product.names)]
NVIDIAS = sorted(name for name, card in CARDS.items() if card.limits is not None)
CARD = """
architecture: sm_99
name: Later
products_source: a page
products: [{name: X1, sms: 4, source: a data sheet}]
"""


@pytest.mark.parametrize(
    ("device_name", "listed"),
    [
        ("Tesla V100-SXM2-16GB", "V100 SXM2"),
        ("Tesla V100-DGXS-32GB", "V100 SXM2"),
        ("Tesla V100-PCIE-32GB", "V100 PCIe"),
        ("A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA A100-PG509-200", "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA GH200 120GB", "GH200 96GB"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA T400", "T400"),
        ("NVIDIA A40", "A40"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("RTX5060", "RTX 5060"),
        ("NVIDIA RTX 5060", "RTX 5060"),
        ("NVIDIA GeForce RTX 5070 Ti", "RTX 5070 Ti"),
        ("NVIDIA GeForce RTX 5090 D v2", "RTX 5090 D"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell Server Edition"),
        ("NVIDIA GB10", "GB10"),
        ("Orin", "Jetson Orin"),
        ("NVIDIA Thor", "Thor"),
        ("A100", "A100 80GB SXM"),
        ("h100", "H100 SXM"),
        ("sm_90", "sm_90 (Hopper)"),
        ("sm_88", "sm_88 (Ampere)"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300A", "MI300A"),
        ("AMD Instinct MI210", "MI250 (one die)"),
        ("AMD Instinct MI250X", "MI250X (one die)"),
    ],
)
def test_listed_device(device_name: str, listed: str) -> None:
    found = find_gpu(device_name)
    assert found is not None
    assert found.name == listed


@pytest.mark.parametrize(
    "device_name",
    [
        "NVIDIA A100X",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "Tesla V100S-PCIE-32GB",
        "Tesla V100-SXM3-32GB",
        "NVIDIA L40G",
        "NVIDIA T4G",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 5090 Laptop GPU",
        "NVIDIA RTX 6000",
        "NVIDIA RTX 6000D",
        "NVIDIA RTX 4000 Ada Generation Laptop GPU",
        "NVIDIA RTX PRO 6000",
        "NVIDIA A10M",
        "NVIDIA H20",
        "AMD Instinct MI300C",
        "AMD Radeon Graphics",
        "NVIDIA",
        "CPU",
        "unknown",
        "",
    ],
)
def test_relative_of_a_listed_device_is_not_listed(device_name: str) -> None:
    assert find_gpu(device_name) is None


@pytest.mark.parametrize(("name", "product"), NAMES)
def test_each_name_is_that_of_its_product_alone(name: str, product: str) -> None:
    for said in (name, f"NVIDIA {name}", name.lower(), name.replace(" ", ""), name.replace("-", " ")):
        found = find_gpu(said)
        assert found is not None
        assert found.name == product


@given(st.sampled_from(NAMES), st.text("0123456789ABGHLSTXi ", min_size=1, max_size=4), st.booleans())
def test_longer_gpu_name_is_not_mistaken_for_a_shorter_one(known: tuple[str, str], more: str, before: bool) -> None:
    name, product = known
    found = find_gpu(more + name if before else name + more)
    bare = {"".join(re.findall(r"[^\s_-]+", other.casefold())): owner for other, owner in NAMES}
    said = "".join(re.findall(r"[^\s_-]+", (more + name if before else name + more).casefold()))
    expected = bare.get(said, product if not more.strip() else None)
    assert (None if found is None else found.name) == expected


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"'RTX4091'.*nearest: RTX 4090"):
        require_gpu("RTX4091")
    with pytest.raises(OptionError, match="no GPU is known by the name '💥'"):
        require_gpu("💥")


def test_units_and_what_a_roofline_needs() -> None:
    found = find_gpu("NVIDIA H100 80GB HBM3")
    assert found is not None
    assert found.peaks is not None
    assert found.peaks.bandwidth_bytes_per_s == pytest.approx(3.35e12)
    assert found.peaks.float32_flops == pytest.approx(67e12)
    assert found.peaks.tensor_flops == pytest.approx(989.4e12)
    assert "H100 data sheet" in found.peaks.source


def test_unknown_peaks_of_a_product_are_none() -> None:
    for name in ("RTX 5060", "sm_90", "GB10", "RTX PRO 6000 Blackwell Server Edition"):
        found = find_gpu(name)
        assert found is not None
        assert found.peaks is None


@pytest.mark.parametrize(("card", "product"), PRODUCTS, ids=[product.name for _, product in PRODUCTS])
def test_numbers_of_a_product_agree_with_each_other(card, product) -> None:
    numbers = product.model_dump(exclude={"name", "names", "source"}, exclude_none=True)
    assert bool(numbers) is (product.source is not None)
    if product.float32_tflops and product.sms and card.architecture.startswith("sm_"):
        cores = 64 if card.architecture in ("sm_70", "sm_75", "sm_80") else 128
        assert 0.5 < 1e6 * product.float32_tflops / (2 * cores * product.sms) / 1e3 < 3.0, "GHz that this would need"
    if product.float16_tflops and product.float32_tflops and card.architecture not in ("sm_90", "sm_100", "sm_103"):
        # What a multiprocessor's tensor cores do in a clock over what its lanes do: sparsity would double it.
        rates = {"sm_70": (8,), "sm_75": (4, 8), "sm_80": (16,), "gfx90a": (8,), "gfx942": (8,), "gfx950": (16,)}
        ratio = product.float16_tflops / product.float32_tflops
        assert any(ratio == pytest.approx(rate, rel=0.02) for rate in rates.get(card.architecture, (2, 4))), ratio
    if product.tf32_tflops and product.float16_tflops:
        assert product.float16_tflops / product.tf32_tflops == pytest.approx(2, rel=0.02)
    if product.float16_tflops and product.bfloat16_tflops:
        assert product.float16_tflops == product.bfloat16_tflops


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("RTX 3090", 71),  # 142 with fp16 accumulation, and with sparsity
        ("RTX 4090", 165.2),
        ("RTX 5090", 209.5),
        ("RTX PRO 6000 Blackwell", 503.8),
        ("RTX A6000", 154.8),
        ("A10", 125),
        ("A10G", 70),
        ("A40", 149.7),
        ("L4", 121),  # 242 with sparsity
        ("L40", 181.05),
        ("L40S", 362.05),  # 733 with sparsity
        ("A100", 312),
        ("H100 PCIe", 756),
        ("H100 NVL", 835.5),  # 1,671 with sparsity, 3,342 of a pair
        ("B200", 2250),
        ("GB200", 2500),  # 10,000 with sparsity of a superchip
        ("B300", 2250),
        ("MI250", 181),  # 362.1 of both dies
        ("MI300X", 1307.4),
    ],
)
def test_tensor_throughput_is_that_of_one_device_dense_and_with_fp32_accumulation(name: str, tflops: float) -> None:
    peaks = require_gpu(name).peaks
    assert peaks is not None
    assert peaks.tensor_flops == pytest.approx(tflops * 1e12)


def test_targets_and_compute_capabilities() -> None:
    for target in ("sm_90", "sm_90a", "sm_90a, texmode_independent"):
        assert find_architecture(target) == GpuProfile(CARDS["sm_90"])
    assert find_architecture("sm_20") is None
    assert find_architecture_by_capability("12.0") == GpuProfile(CARDS["sm_120"])
    for capability in ("6.1", "", "90", "12.x", "-1.0"):
        assert find_architecture_by_capability(capability) is None


def test_numbers_without_a_source_are_refused() -> None:
    with pytest.raises(ContractError, match="source go together"):
        parse_card(CARD.replace(", source: a data sheet", ""), "sm_99.yaml", ArchitectureCard, "architecture")
    with pytest.raises(ContractError, match="bandwidth"):
        parse_card(CARD.replace("sms: 4", "bandwidth: 4"), "sm_99.yaml", ArchitectureCard, "architecture")
    assert parse_card(CARD, "sm_99.yaml", ArchitectureCard, "architecture").limits is None


FEATURES = {
    "cp_async": "cp.async.ca.shared.global [%r1], [%rd1], 16;",
    "mbarrier": "mbarrier.init.shared.b64 [%r1], 1;",
    "tma": "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 16, [%r2];",
    "wgmma": "wgmma.fence.sync.aligned;",
    "tcgen05": "tcgen05.fence::before_thread_sync;",
}
PTX = """.version 9.0
.target {target}
.address_size 64
.visible .entry kernel() {{
    .reg .b32 %r<9>;
    .reg .b64 %rd<9>;
    {instruction}
    ret;
}}
"""


@pytest.mark.skipif(find_ptxas() is None, reason="needs ptxas")
@pytest.mark.parametrize("name", [name for name in NVIDIAS if name != "sm_70"])  # which ptxas 13 has no more
def test_features_match_the_assembler(name: str, tmp_path: Path) -> None:
    ptxas = find_ptxas()
    assert ptxas is not None
    suffixes = ("", "a") if int(name[3:]) >= 90 else ("",)
    for suffix, (feature, instruction) in itertools.product(suffixes, FEATURES.items()):
        target = name + suffix
        source = tmp_path / f"{target}-{feature}.ptx"
        source.write_text(PTX.format(target=target, instruction=instruction))
        command = [ptxas, "--gpu-name", target, "--output-file", str(tmp_path / "out.cubin"), str(source)]
        taken = subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
        assert (feature in list_features(CARDS[name], target)) is taken, f"{feature} on {target}"


def _traits() -> str | None:
    """The header that comes with torch for CUDA."""
    if util.find_spec("nvidia") is None:
        return None
    found = resources.files("nvidia") / "cu13" / "include" / "cccl" / "cuda" / "__device" / "arch_traits.h"
    return found.read_text() if found.is_file() else None


@pytest.mark.skipif(_traits() is None, reason="needs NVIDIA's headers")
@pytest.mark.parametrize("name", NVIDIAS)
def test_limits_are_those_of_the_header(name: str) -> None:
    text = _traits()
    assert text is not None
    limits = CARDS[name].limits
    assert limits is not None
    reads = {
        "max_threads_per_multiprocessor": limits.threads,
        "max_blocks_per_multiprocessor": limits.blocks,
        "max_shared_memory_per_multiprocessor": limits.shared_bytes,
    }
    body = _traits_of(text, name)
    for field, value in reads.items():
        found = re.search(rf"__traits\.{field}\s*=\s*([\d* ]+);", body)
        assert found is not None
        product = 1
        for factor in found[1].split("*"):
            product *= int(factor)
        assert product == value, field
    assert "max_registers_per_multiprocessor = 64 * 1024" in text
    assert limits.registers == 65536
    assert limits.reserved_shared_bytes == (1024 if int(name[3:]) >= 80 else 0)
    assert limits.block_shared_bytes == limits.shared_bytes - limits.reserved_shared_bytes


def _traits_of(text: str, name: str) -> str:
    """The assignments for an architecture, behind those of the one that it starts from."""
    body = text.split(f"arch_traits<arch_id::{name}>() noexcept", 1)[1].split("return __traits", 1)[0]
    base = re.search(r"arch_traits<arch_id::(sm_\d+)>\(\)", body)
    return body + (_traits_of(text, base[1]) if base else "")
