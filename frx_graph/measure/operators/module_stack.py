"""Which module of a running model is executing."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from torch import nn


class ModuleStack:
    """Inside `with`, `path` is the dotted path of the innermost module whose `forward` is running, `model.layer3.2`;
    `kind` is the name of its class.

    `root` is the name of the outermost module; outside of any module the path is empty.
    """

    def __init__(self, module: nn.Module | None, root: str = "model") -> None:
        self._module = module
        self._root = root
        self._entered: list[tuple[str, str]] = []
        self._handles: list[Any] = []

    @property
    def path(self) -> str:
        """The innermost module's path, or nothing."""
        return self._entered[-1][0] if self._entered else ""

    @property
    def kind(self) -> str:
        """The innermost module's class, or nothing."""
        return self._entered[-1][1] if self._entered else ""

    def __enter__(self) -> Self:
        for name, child in () if self._module is None else self._module.named_modules():
            path = f"{self._root}.{name}" if name else self._root
            self._handles.append(
                child.register_forward_pre_hook(self._entering(path, type(child).__name__), prepend=True)
            )
            self._handles.append(child.register_forward_hook(self._left, always_call=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._entered.clear()

    def _entering(self, path: str, kind: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            self._entered.append((path, kind))

        return hook

    def _left(self, *_: object) -> None:
        self._entered.pop()
