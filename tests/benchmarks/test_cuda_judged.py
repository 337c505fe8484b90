"""What was judged of other people's CUDA can be read, and is compared with what is said of a file."""

from __future__ import annotations

from pathlib import Path

from cuda_judged import _share, findings, judgments

from frx_graph.rules.cuda_card import load_cuda_cards


def test_every_judgment_names_a_rule_and_a_place() -> None:
    rows = list(judgments())
    assert {one.how for one in rows} == {"blind", "found", "planted"}
    assert {one.rule for one in rows} <= load_cuda_cards().keys()
    assert all(len(one.commit) == 40 and one.line > 0 and one.kernel and one.reason for one in rows)
    places = [
        (one.how, one.rule, one.repository, one.path, one.kernel, one.line if one.how == "planted" else 0)
        for one in rows
    ]
    assert len(set(places)) == len(places)


def test_a_finding_counts_for_its_kernel(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text("__global__ void k(int* a) { if (threadIdx.x == 0) { __syncthreads(); a[0] = 1; } }")
    assert ("k", "conditional_syncthreads") in findings(path)
    path = tmp_path / "none.cu"
    path.write_text("int main() {}")
    assert findings(path) == frozenset()


def test_a_share_has_an_interval() -> None:
    assert _share(18, 21) == ("18 of 21", "0.86", "0.65 to 0.95")
    assert _share(0, 0) == ("0 of 0", "", "")
