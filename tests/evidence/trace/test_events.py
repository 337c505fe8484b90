"""Copies by their names."""

from __future__ import annotations

import pytest

from frx_graph.evidence.trace.events import Transfer, parse_transfer


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Memcpy HtoD (Pageable -> Device)", Transfer("HtoD", "pageable")),
        ("Memcpy HtoD (Pinned -> Device)", Transfer("HtoD", "pinned")),
        ("Memcpy DtoH (Device -> Pinned)", Transfer("DtoH", "pinned")),
        ("Memcpy HtoD (Host -> Device)", Transfer("HtoD", None)),
        ("Memcpy DtoD (Device -> Device)", Transfer("DtoD", None)),
        ("Memcpy PtoP (Device -> Device)", Transfer("PtoP", None)),
        ("CopyHostToDevice", Transfer("HtoD", None)),
        ("CopyDeviceToHost", Transfer("DtoH", None)),
        ("something", Transfer(None, None)),
    ],
)
def test_direction_and_host_memory(name: str, expected: Transfer) -> None:
    assert parse_transfer(name) == expected
