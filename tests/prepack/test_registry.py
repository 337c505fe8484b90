"""What is noted of weights that were stored anew."""

import threading

import torch
from torch import nn

from frx_graph.prepack.registry import note_stored, stored_anew, strides_before


def test_one_thread_asks_while_others_note() -> None:
    plain = torch.empty(4, 3, 3, 3).stride()
    weights = [nn.Parameter(torch.empty(4, 3, 3, 3).to(memory_format=torch.channels_last)) for _ in range(2000)]
    failures: list[Exception] = []

    def ask() -> None:
        try:
            while noting.is_alive():
                assert all(strides.before == plain for strides in stored_anew().values())
        except Exception as error:  # noqa: BLE001 - a thread's failure is the test's
            failures.append(error)

    noting = threading.Thread(target=lambda: [note_stored([(weight, plain)]) for weight in weights])
    asking = [threading.Thread(target=ask) for _ in range(2)]
    noting.start()
    for thread in asking:
        thread.start()
    for thread in (noting, *asking):
        thread.join()
    assert failures == []
    assert {id(weight) for weight in weights} <= stored_anew().keys()
    assert all(strides_before(weight) == plain for weight in weights)


def test_a_weight_that_lies_as_before_is_none() -> None:
    plain, last = torch.empty(4, 3, 3, 3), torch.empty(4, 3, 3, 3).to(memory_format=torch.channels_last)
    weight = nn.Parameter(last.clone())
    note_stored([(weight, plain.stride())])
    assert stored_anew()[id(weight)].before == plain.stride()
    weight.data = plain
    assert id(weight) not in stored_anew()
    assert strides_before(weight) == plain.stride()
