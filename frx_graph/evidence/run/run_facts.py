"""Read the facts in `metadata.json` that an analysis uses: the program's command, its end, and the processors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from annotated_types import Ge, MaxLen
from pydantic import BaseModel, ConfigDict, ValidationError

_LONGEST: Final = 1 << 20
"""Bytes of a file that is read. A command line is far shorter."""
_Count = Annotated[int, Ge(1)]


class _Machine(BaseModel):
    processors: _Count | None = None


class RunFacts(BaseModel):
    """Facts about a run. None, or an empty command: not recorded."""

    model_config = ConfigDict(frozen=True)

    command: Annotated[tuple[str, ...], MaxLen(1000)] = ()
    exit_code: int | None = None
    signal: int | None = None
    host: _Machine = _Machine()

    @property
    def failure(self) -> str | None:
        """Return how the program failed, or None."""
        if self.signal is not None:
            return f"signal {self.signal}"
        return f"exit code {self.exit_code}" if self.exit_code else None


def read_run_facts(path: Path | None) -> RunFacts:
    """Read the file at `path`. Facts are unknown if there is no file, or another program wrote it."""
    if path is None or not path.is_file() or path.stat().st_size > _LONGEST:
        return RunFacts()
    try:
        return RunFacts.model_validate_json(path.read_bytes())
    except ValidationError:
        return RunFacts()
