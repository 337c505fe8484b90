"""Write the launches of a binary report, each as a line of JSON, in a separate program.

NVIDIA's reader is native code that aborts on damaged files. Of 3,227 deliberately damaged copies of a report, 11 made
it abort, out of memory at 4 GB. A separate process with a memory limit protects the caller:

`python -m frx_graph.evidence.ncu.report_process report.ncu-rep 1000000000`
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from typing import Any

from frx_graph.evidence.ncu.metrics import resolve_metric
from frx_graph.evidence.number_format import is_measurable
from frx_graph.support.supervisor.supervised import limit_resources

DEVICE_NAME = "device__attribute_display_name"
_KINDS = {1: "INF", 2: "OPT", 3: "WRN", 4: "ERR"}
"""`MsgType` of NVIDIA's reader, as its exports write it."""
_SPEEDUPS = {1: "local", 2: "global"}
"""`SpeedupType`."""
_MOST_RANGES = 256


def iterate_launches(path: str) -> Iterator[dict[str, Any]]:
    """Yield the launches in the file's order, with the used metrics and their original units."""
    import ncu_report

    context = ncu_report.load_report(path)
    for number in range(context.num_ranges()):
        workloads = context.range_by_idx(number)
        for index in range(workloads.num_actions()):
            yield _describe_launch(workloads.action_by_idx(index))


def _describe_launch(action: Any) -> dict[str, Any]:
    names = sorted(action.metric_names())

    def get_value(name: str) -> Any:
        metric = action.metric_by_name(name) if name in names else None
        return metric.value() if metric is not None and metric.has_value() else None

    return {
        "kernel": _clean_text(action.name(action.NameBase_DEMANGLED) or action.name() or ""),
        "device": _clean_text(get_value("launch__device_id") if get_value("launch__device_id") is not None else ""),
        "device_name": _clean_text(get_value(DEVICE_NAME) or ""),
        "capability": [get_value(f"device__attribute_compute_capability_{part}") for part in ("major", "minor")],
        "grid": [get_value(f"launch__grid_dim_{axis}") for axis in "xyz"],
        "block": [get_value(f"launch__block_dim_{axis}") for axis in "xyz"],
        "metric_count": len(names),
        "metrics": list(_iterate_metrics(action, names)),
        "ranges": _list_ranges(action),
        "rules": [
            _describe_rule(result)
            for result in action.rule_results_as_dicts()
            if result.get("rule_message", {}).get("message")
        ],
    }


def _list_ranges(action: Any) -> list[str]:
    """Return the names of the NVTX ranges around a launch in an export's order: pushed ones, outermost first, lead."""
    state = action.nvtx_state()
    domains = [] if state is None else [state.domain_by_id(number) for number in state.domains()]
    known = [domain for domain in domains if domain is not None]
    pushed = [name for domain in known for name in domain.push_pop_ranges()]
    started = [name for domain in known for name in domain.start_end_ranges()]
    return [text for name in (*pushed, *started)[:_MOST_RANGES] if (text := _clean_text(name).strip())]


def _iterate_metrics(action: Any, names: list[str]) -> Iterator[tuple[str, str, float]]:
    for name in names:
        metric = action.metric_by_name(name)
        if not _is_used(name, metric.unit()) or not metric.has_value():
            continue
        value = metric.value()
        if isinstance(value, int | float) and is_measurable(value):
            yield name, _clean_text(metric.unit()), float(value)


def _is_used(name: str, unit: str) -> bool:
    try:
        return resolve_metric(name, unit) is not None
    except ValueError:
        return True


def _describe_rule(result: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = result["rule_message"]
    estimate: dict[str, Any] = result.get("speedup_estimation") or {}
    return {
        "name": _clean_text(result.get("rule_identifier", "")),
        "section": _clean_text(result.get("section_identifier", "")),
        "kind": _KINDS.get(message.get("type", 0), ""),
        "text": _clean_text(message.get("message", "")),
        "speedup_pct": estimate.get("speedup"),
        "speedup_kind": _SPEEDUPS.get(estimate.get("type", 0), ""),
    }


def _clean_text(value: object) -> str:
    """Return text without invalid characters, as from bytes that are not UTF-8."""
    return str(value).encode("utf-8", "replace").decode("utf-8")


def main(path: str, most_bytes: int) -> None:
    """Write the launches to standard output, within this many bytes of memory and of output."""
    limit_resources({resource.RLIMIT_AS: most_bytes, resource.RLIMIT_FSIZE: most_bytes})
    for launch in iterate_launches(path):
        print(json.dumps(launch, allow_nan=False))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
