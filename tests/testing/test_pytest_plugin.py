"""`pytest --frx` and the fixture `frx_advise`, as a project uses them."""

from __future__ import annotations

import pytest
import torch

pytest_plugins = ["pytester"]
MODEL = """
import torch
from torch import nn

class Churn(nn.Module):
    def forward(self, x):
        y = x.transpose(1, 2).contiguous()
        return y.transpose(1, 2).contiguous() + 1

def build():
    return Churn(), (torch.randn(4, 64, 64),)

def clean():
    return nn.ReLU(), (torch.randn(2, 4),)
"""
CONFIG = '[tool.frx]\nmeasure = false\ntargets = ["model.py:build", "model.py:clean", "model.py:missing"]\n'


def test_targets_are_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(model=MODEL)
    pytester.makepyprojecttoml(CONFIG)
    ran = pytester.runpytest_inprocess("--frx", "-p", "no:cacheprovider")
    ran.assert_outcomes(passed=1, failed=2)
    ran.stdout.fnmatch_lines(["*frx::model.py:build*", "*FRX002*", "*has no 'missing'*"])
    # Without the option nothing is added.
    assert pytester.runpytest_inprocess("-p", "no:cacheprovider").ret is pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="this torch is built for processors only")
def test_targets_for_a_gpu_that_is_not_here(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(model=MODEL)
    pytester.makepyprojecttoml('[tool.frx]\nfor = "h100"\ntargets = ["model.py:build"]\n')
    ran = pytester.runpytest_inprocess("--frx", "-p", "no:cacheprovider")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["*H100*", "*FRX002*"])


def test_no_targets_is_an_error(pytester: pytest.Pytester) -> None:
    ran = pytester.runpytest_inprocess("--frx", "-p", "no:cacheprovider")
    assert ran.ret is pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines(["*--frx needs targets*"])


def test_the_fixture_advises(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        advised_model=MODEL,
        test_model="""
        from advised_model import build

        def test_model(frx_advise):
            report = frx_advise(*build(), measure=False)
            assert "FRX002" in {one.rule for one in report.findings}
        """,
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
