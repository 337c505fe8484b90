"""Find the measured file for a torch version, among this machine's own and the shipped ones."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

_SHIPPED = Path(str(resources.files("frx_graph.rules"))) / "contracts"


def find_nearest_version(kind: str, version: str, own: Path) -> Path | None:
    """Return the YAML file `{kind}-{major}.{minor}` for `version`; None if there is none of this kind.

    One of the same or the nearest version in `own` goes before a shipped one of that version.
    """
    wanted = parse_minor(version)
    found = [
        (abs(have[0] - wanted[0]), abs(have[1] - wanted[1]), place, path)
        for place, folder in enumerate((own, _SHIPPED))
        for path in folder.glob(f"{kind}-*.yaml")
        if (have := parse_minor(path.stem.removeprefix(f"{kind}-"))) != (0, 0)
    ]
    return min(found)[-1] if found else None


def find_documented_file(kind: str) -> Path:
    """Return the shipped file of what is documented for this kind."""
    return _SHIPPED / f"{kind}-documented.yaml"


def parse_minor(version: str) -> tuple[int, int]:
    """Return major and minor version; zeros for what is not a version."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (0, 0) if found is None else (int(found[1]), int(found[2]))
