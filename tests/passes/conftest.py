"""The fixtures of detector tests."""

from __future__ import annotations

from small_analysis import analyse, copy_at

__all__ = ["analyse", "copy_at"]
