"""A graph is changed as a whole or stays as it is."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

from torch import fx


@contextlib.contextmanager
def as_it_was_on_failure(module: fx.GraphModule) -> Iterator[fx.Graph]:
    """A graph like the one that `module` has on entering, which it gets where an exception leaves the block. Values of
    nodes are not copied: to change one in place changes it for good."""
    before = copy.deepcopy(module.graph)
    try:
        yield before
    except Exception:
        module.graph = before
        raise
