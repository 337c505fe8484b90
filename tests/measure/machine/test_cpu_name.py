import platform
from pathlib import Path

import pytest

from frx_graph.measure.machine.cpu_name import cpu_name

X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
stepping\t: 1
cache size\t: 1024 KB
"""
ARM = """processor\t: 0
BogoMIPS\t: 243.75
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1
"""


def named(folder: Path, text: str) -> str:
    file = folder / "cpuinfo"
    file.write_text(text)
    return cpu_name(file)


def test_generations_of_one_marketing_name_are_told_apart(tmp_path: Path) -> None:
    assert named(tmp_path, X86) == "AMD EPYC 25.17.1"
    assert named(tmp_path, X86.replace("model\t\t: 17", "model\t\t: 2")) == "AMD EPYC 25.2.1"


def test_the_first_processor_counts(tmp_path: Path) -> None:
    assert named(tmp_path, f"{X86}\n{X86.replace('EPYC', 'Ryzen')}") == "AMD EPYC 25.17.1"


def test_arm_tells_numbers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert named(tmp_path, ARM) == "aarch64 0x41.0x3.0xd0c.1"


@pytest.mark.parametrize("text", ["", "nonsense", "model name\t:\n"])
def test_what_tells_nothing_is_the_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert named(tmp_path, text) == "riscv64"
    assert cpu_name(tmp_path / "missing") == "riscv64"
