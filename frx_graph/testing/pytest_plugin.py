"""The pytest plugin. `pytest --frx` adds a test for each target of `[tool.frx] targets`, which fails for findings. The
fixture `frx_advise` advises on a model within a test.

pytest imports this module in every run, so it imports nothing slow.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from frx_graph.reports.advice.render import AdviceReport


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--frx`."""
    parser.getgroup("frx").addoption(
        "--frx", action="store_true", help="Advise on each target of [tool.frx], and fail for findings."
    )


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add a test for each target."""
    if not config.getoption("frx"):
        return
    from frx_graph.advisor.target_search import find_targets
    from frx_graph.config import read_advise_config
    from frx_graph.errors import FrxError

    try:
        named = read_advise_config(config.rootpath).targets
        targets = find_targets(named) if named else []
    except FrxError as error:
        raise pytest.UsageError(f"frx: {error}") from error
    if not targets:
        raise pytest.UsageError('frx: --frx needs targets: [tool.frx] targets = ["model.py:build"] in pyproject.toml')
    items.extend(TargetItem.from_parent(session, name=f"frx::{target}", target=target) for target in targets)


@pytest.fixture
def frx_advise() -> Callable[..., AdviceReport]:
    """Return `frx_graph.advise`: ranked layout fixes for one call of a model."""
    from frx_graph.advisor.advisor import advise

    return advise


class LayoutFindingsError(Exception):
    """The findings of a target, as the text of a report."""


class TargetItem(pytest.Item):
    """The test of one target, with the options of `[tool.frx]`."""

    def __init__(self, *, target: str, **other: Any) -> None:
        super().__init__(**other)
        self._target = target

    def runtest(self) -> None:
        """Advise, and raise the report if there are findings that are neither suppressed nor known."""
        from frx_graph.testing.target_check import check_target

        report = check_target(self._target, self.config.rootpath)
        if report is not None:
            raise LayoutFindingsError(report)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the report, or the error in one line."""
        from frx_graph.errors import FrxError

        if isinstance(excinfo.value, (LayoutFindingsError, FrxError)):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the file of the target, and the name of the test."""
        return self.config.rootpath / self._target.rpartition(":")[0], None, self.name
