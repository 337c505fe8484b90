"""Another C++ compiler is another environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch._inductor import config

from frx_graph.trials.cpp_compiler import cpp_compiler
from frx_graph.trials.environment import trial_setup


def compiler(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.write_text(text)
    path.chmod(0o755)
    os.utime(path, (1e9, 1e9))
    return path


def test_a_compiler_is_told_by_its_file_behind_all_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with config.patch({"cpp.cxx": (None, "g++")}):
        assert cpp_compiler() is None
        real = compiler(tmp_path / "g++-12")
        (tmp_path / "g++").symlink_to(real)
        assert cpp_compiler() == "g++-12, 10 bytes, 1000000000"
        here = trial_setup(torch.device("cpu")).fingerprint
        compiler(real, "#!/bin/sh\n# another version\n")
        assert cpp_compiler() == "g++-12, 28 bytes, 1000000000"
        assert trial_setup(torch.device("cpu")).fingerprint != here
    compiler(tmp_path / "clang++")
    with config.patch({"cpp.cxx": "clang++"}):
        assert cpp_compiler() == "clang++, 10 bytes, 1000000000"
