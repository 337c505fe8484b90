"""Counts the loops that Inductor generated for the CPU as they are called: the profiler does not see them.

(`cpp.enable_kernel_profile` shows them, but is part of the generated code, which would have to be compiled again.)
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from frx_graph.evidence.kernel_name import generated_name

_PREFIX = "cpp_"


@contextlib.contextmanager
def counted_loops() -> Iterator[Counter[str]]:
    """Inside, calls of every loop that has been compiled so far are counted by what it fuses: `cpp_fused_relu` → 2.

    Generated programs are Python modules that call their loops by global name (`PyCodeCache.modules`, seen on 2.13
    and 2.15); those globals are replaced for the time being. With `cpp_wrapper` the calls are C++, and are not seen.
    Loops of graphs that are compiled inside are not counted.
    """
    counts: Counter[str] = Counter()
    replaced: list[tuple[Any, str, Any]] = []
    # Where nothing has imported Inductor, nothing has been generated.
    cache = sys.modules.get("torch._inductor.codecache")
    modules = () if cache is None else tuple(cache.PyCodeCache.modules)
    try:
        for module in modules:
            for name, loop in list(vars(module).items()):
                if name.startswith(_PREFIX) and callable(loop):
                    setattr(module, name, _counting(loop, generated_name(name), counts))
                    replaced.append((module, name, loop))
        yield counts
    finally:
        for module, name, loop in replaced:
            setattr(module, name, loop)


def _counting(loop: Callable[..., Any], name: str, counts: Counter[str]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        counts[name] += 1
        return loop(*args, **kwargs)

    return call
