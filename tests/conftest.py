"""What holds for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from torch._inductor.utils import fresh_cache

from frx_graph import backend

# No deadline, since a busy machine must not fail a test; the same examples on every run where CI is set.
settings.register_profile("frx", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("frx")


@pytest.fixture(autouse=True)
def _no_ledger_of_the_user(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody has promoted on this machine is not applied in tests."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.getbasetemp() / "no-data"))
    monkeypatch.delenv("FRX_LEDGER", raising=False)


@pytest.fixture
def nothing_compiled() -> Iterator[None]:
    """No graph of another test, nor of another run: what comes out of Inductor's cache was rewritten before."""
    torch._dynamo.reset()
    backend.clear()
    with fresh_cache():
        yield
