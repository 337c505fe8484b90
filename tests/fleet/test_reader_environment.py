"""What a process that reads gets of the environment."""

from __future__ import annotations

from frx_graph.fleet.reader_environment import reader_environment

NEEDED = {"PATH": "/bin", "HOME": "/root", "LC_ALL": "C", "PYTHONPATH": "/a", "LD_LIBRARY_PATH": "/b", "TMPDIR": "/c"}


def test_what_is_needed_and_no_more() -> None:
    secret = {
        "AWS_SECRET_ACCESS_KEY": "dummy",
        "AZURE_STORAGE_CONNECTION_STRING": "dummy",
        "FRX_LEDGER": "postgresql://ada:dummy@host/decisions",
        "HTTPS_PROXY": "http://ada:dummy@proxy",
        "PGPASSWORD": "dummy",
        "path": "dummy",
    }
    assert reader_environment({**NEEDED, **secret}) == NEEDED
