"""What a graph that fails has switched is switched back."""

from collections.abc import Callable

import pytest
import torch

from frx_graph.capture.tracing_context import restore_modes


def modes() -> tuple[object, ...]:
    nesting = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    autocast = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    levels = torch._C._functorch.get_dynamic_layer_stack_depth()
    return torch.is_grad_enabled(), *autocast, torch.is_autocast_cache_enabled(), nesting, levels


SWITCHES: dict[str, Callable[[], object]] = {
    "gradients": lambda: torch._C._set_grad_enabled(False),
    "autocast": lambda: torch.amp.autocast_mode._enter_autocast("cpu", torch.float16, True, False),
    "a transform": lambda: torch._C._functorch._vmap_increment_nesting(2, "error"),
}


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("autocast", [False, True])
def test_changed_modes_are_restored(switch: str, autocast: bool) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        before = modes()
        with pytest.raises(ZeroDivisionError), restore_modes():
            SWITCHES[switch]()
            assert modes() != before
            raise ZeroDivisionError
        assert modes() == before
