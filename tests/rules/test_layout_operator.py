"""The rows of the operator table."""

from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from frx_graph.errors import ContractError
from frx_graph.rules.layout_operator import (
    POINTWISE,
    UNKNOWN,
    DimensionMap,
    Keeps,
    LayoutOperator,
    LayoutRole,
    load_layout_operators,
    parse_rows,
)


def test_the_table_covers_every_family() -> None:
    rows = load_layout_operators()
    roles = {role: [row for row in rows.values() if row.role is role] for role in LayoutRole}
    assert all(len(of_role) >= 15 for of_role in roles.values())
    assert {row.dimensions for row in rows.values()} == set(DimensionMap)
    assert all(operator == row.operator for operator, row in rows.items())


ROW = {"operator": "aten.cat", "role": "agnostic", "keeps": "channels_last"}


@pytest.mark.parametrize(
    "change",
    [
        {"role": "anchorage"},
        {"keeps": "some"},
        {"dimensions": "sideways"},
        {"operands": []},
        {"operands": [-1]},
        {"makes": [0, 1, 2, 3]},
        {"keeps": "none", "makes": [0, 2]},
        {"dimensions": "permute"},
        {"unexpected": 1},
        {"operator": "cat"},
    ],
    ids=str,
)
def test_a_malformed_row_is_refused_by_file_and_place(change: dict[str, Any]) -> None:
    text = yaml.safe_dump({"family": "joining", "operators": [ROW | change]})
    assert parse_rows(yaml.safe_dump({"family": "joining", "operators": [ROW]}), "joining.yaml")
    with pytest.raises(ContractError, match=r"joining\.yaml: operators\.0"):
        parse_rows(text, "joining.yaml")


@pytest.mark.parametrize("text", ["", "[1, 2", "- a list", "family: joining"])
def test_non_table_file_is_refused(text: str) -> None:
    with pytest.raises(ContractError, match=r"joining\.yaml"):
        parse_rows(text, "joining.yaml")


def test_rows_are_frozen() -> None:
    with pytest.raises(ValidationError):
        POINTWISE.role = LayoutRole.BARRIER  # type: ignore[misc]


def test_inductor_keeps_what_the_kernel_keeps_that_it_calls() -> None:
    convolution = load_layout_operators()["aten.convolution"]
    assert convolution.get_kept_orders("cuda", "inductor") is Keeps.CHANNELS_LAST
    resized = load_layout_operators()["aten._upsample_bilinear2d_aa"]
    assert resized.get_kept_orders("cpu", "inductor") is Keeps.CHANNELS_LAST
    assert not resized.is_region_member("cuda", "inductor")


@pytest.mark.parametrize(
    "operator",
    [
        "aten.permute",  # other dimensions
        "aten.mm",
        "aten.stack",
        "aten.mean",
        "aten.native_layer_norm",  # plain, whatever it is given
        "aten._softmax",
        "aten.avg_pool3d",
        "aten._scaled_dot_product_flash_attention_for_cpu",  # heads are no channels
        "aten.masked_fill",
    ],
)
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_operators_outside_image_regions(operator: str, inner: str) -> None:
    assert not load_layout_operators()[operator].is_region_member("cpu", inner)


@pytest.mark.parametrize("operator", ["aten.convolution", "aten.max_pool2d_with_indices", "aten.cat", "aten.slice"])
def test_operators_inside_image_regions(operator: str) -> None:
    assert load_layout_operators()[operator].is_region_member("cuda", "eager")
    assert POINTWISE.is_region_member("cuda", "eager")
    assert not UNKNOWN.is_region_member("cuda", "inductor")


def test_row_can_be_constructed_directly() -> None:
    row = LayoutOperator(operator="mine.op", role=LayoutRole.AGNOSTIC, keeps=Keeps.ANY)
    assert row.is_region_member("cpu", "eager")
