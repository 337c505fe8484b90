"""Register an operator that computes a part of a graph by oneDNN's primitives, made once for its constants."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from frx_graph.ops.onednn.library import OneDnnError, find_library
from frx_graph.ops.onednn.program import Program
from frx_graph.ops.onednn.steps import Region, TensorLayout, read_region
from frx_graph.ops.onednn.torch_steps import compute_region
from frx_graph.ops.onednn_linear import EXACT_STRIDES, LIBRARY
from frx_graph.support.user_warning import warn_user

_MOST_PROGRAMS = 256
"""Programs that are kept, with their packed weights: those used last."""

LIBRARY.define("onednn_region(Tensor[] inputs, Tensor[] constants, str region) -> Tensor[]", tags=EXACT_STRIDES)

_Key = tuple[str, int, tuple[int, ...]]
_programs: OrderedDict[_Key, Program | None] = OrderedDict()
"""By text, number of threads, and addresses of the constants. None where torch computes the region."""
# A garbage collection in the block may forget programs.
_lock = threading.RLock()


def _compute_region(inputs: Sequence[Tensor], constants: Sequence[Tensor], text: str) -> list[Tensor]:
    """Return the results of the region. A program is made in the first call with these constants and threads."""
    region = read_region(text)
    key = (text, torch.get_num_threads(), tuple(map(Tensor.data_ptr, constants)))
    with _lock:
        known = key in _programs
        if known:
            _programs.move_to_end(key)
        program = _programs[key] if known else _make_program(key, region, constants)
    if program is not None:
        try:
            return program.run([_lay_out(*pair) for pair in zip(inputs, region.inputs, strict=True)])
        except OneDnnError as error:
            _give_up(key, str(error))
    return compute_region(region, inputs, constants)


def _lay_out(tensor: Tensor, described: TensorLayout) -> Tensor:
    """Return the tensor in the strides that the region was described with."""
    if tensor.stride() == described.strides:
        return tensor
    return described.allocate().copy_(tensor)


def _make_program(key: _Key, region: Region, constants: Sequence[Tensor]) -> Program | None:
    """Return a new program; None, with a warning, if oneDNN cannot run the region."""
    library = find_library()
    try:
        if isinstance(library, str):
            raise OneDnnError(library)
        program = _programs[key] = Program(library, region, constants)
    except OneDnnError as error:
        _give_up(key, str(error))
        return None
    while len(_programs) > _MOST_PROGRAMS:
        _programs.popitem(last=False)
    return program


def _give_up(key: _Key, reason: str) -> None:
    """Let torch compute a region from now on."""
    with _lock:
        _programs[key] = None
    warn_user(f"frx: torch computes a part of the graph that oneDNN was to compute: {reason}")


def forget_programs() -> None:
    """Release all programs, with their packed weights: they do not notice that constants get other values."""
    global _programs
    with _lock:
        # They are destroyed outside the block.
        forgotten, _programs = _programs, OrderedDict()
    forgotten.clear()


def _infer_region(inputs: Sequence[Tensor], _constants: Sequence[Tensor], text: str) -> list[Tensor]:
    return [inputs[0].new_empty_strided(each.shape, each.strides) for each in read_region(text).results]


LIBRARY.impl("onednn_region", _compute_region, "CPU")
torch.library.register_fake("frx_graph::onednn_region", _infer_region, lib=LIBRARY)
OPERATOR = torch.ops.frx_graph.onednn_region.default
