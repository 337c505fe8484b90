"""What a trial's document says, in a line. Every part of it may be missing."""

from __future__ import annotations

from typing import Any

from frx_graph.ledger.canonical_json import parsed
from frx_graph.reports.render.plain_text import one_line


def trial_summary(text: str) -> str:
    """Verdict, ratio of the arms' times, how much was measured, and the gates that failed."""
    document = parsed(text)
    stats = document.get("stats")
    parts = [
        one_line(document["verdict"], 40) if isinstance(document.get("verdict"), str) else "",
        *(_measured(stats) if isinstance(stats, dict) else ()),
        *(f"failed at {name}" for name in _failed_gates(document.get("gates"))),
    ]
    return ", ".join(filter(None, parts)) or "no verdict"


def _measured(stats: dict[str, Any]) -> tuple[str, ...]:
    ratio, low, high = (_number(stats.get(name)) for name in ("ratio_median", "ci_low", "ci_high"))
    interval = f" ({low:.3f} to {high:.3f})" if low is not None and high is not None else ""
    counts = [f"{count:g} {name}" for name in ("quads", "processes") if (count := _number(stats.get(name))) is not None]
    return ("" if ratio is None else f"ratio {ratio:.3f}{interval}", " in ".join(counts))


def _failed_gates(gates: Any) -> list[str]:
    listed = gates if isinstance(gates, list) else []
    failed = [gate for gate in listed if isinstance(gate, dict) and gate.get("passed") is False]
    return [one_line(str(gate.get("name")), 40) for gate in failed]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
