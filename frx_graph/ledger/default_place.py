"""Where decisions are kept unless somebody says otherwise; asked before anything that needs a database is imported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import platformdirs

LEDGER_VARIABLE = "FRX_LEDGER"


def default_file() -> Path:
    """The ledger in the user's data folder."""
    return Path(platformdirs.user_data_dir("frx-graph")) / "ledger.sqlite3"


def may_be_there(configured: str | None, environ: Mapping[str, str] = os.environ) -> bool:
    """False where nobody has named a ledger, and there is none at the default place."""
    return bool(environ.get(LEDGER_VARIABLE) or configured) or default_file().exists()
