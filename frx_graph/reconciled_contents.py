"""Layers of evidence whose contents are at hand instead of files, as an HTTP request has them, reconciled."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frx_graph.errors import EvidenceError, FrxError
from frx_graph.layer_files import read_layers
from frx_graph.passes.reconcile.reconciliation import reconcile
from frx_graph.passes.reconcile.signal import Layer
from frx_graph.reports.reconcile_document import as_json, reconcile_document
from frx_graph.rules.gpu_profile import GpuProfile

_NAMES: Mapping[Layer, str] = {
    Layer.SOURCE: "kernel.cu",
    Layer.PTX: "kernel.ptx",
    Layer.NCU: "report.csv",
    Layer.PROFILER: "trace.json",
}
"""What the files are called in the document."""


def reconcile_contents(contents: Mapping[Layer, bytes], gpu: GpuProfile | None = None) -> dict[str, Any]:
    """The document `frx_reconcile_v1` of these contents, of a layer each. Raises `EvidenceError` for one that cannot be
    read, or is not of its layer."""
    with tempfile.TemporaryDirectory(prefix="frx-reconcile-") as folder:
        place = f"{folder}/"
        for layer, content in contents.items():
            Path(folder, _NAMES[layer]).write_bytes(content)
        try:
            layers = read_layers([Path(folder, _NAMES[layer]) for layer in contents], gpu)
            found = reconcile(layers)
            document = as_json(reconcile_document(layers, found))
        except FrxError as error:
            raise type(error)(error.message.replace(place, ""), error.hint.replace(place, "")) from None
    if wrong := sorted(set(contents) ^ set(found.layers_available)):
        raise EvidenceError(f"{_NAMES[wrong[0]]}: what was given is not of the layer {wrong[0].value}")
    here: dict[str, Any] = json.loads(json.dumps(document).replace(place, ""))
    return here
