"""JSON messages to and from the process that times generated loops."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from frx_graph.facts.operator_signature import GeneratedCall, OperatorSignature, ReadResult, SpecArgument, TensorSpec

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _TensorMessage(_Message):
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str


class CallMessage(_Message):
    """One `GeneratedCall`."""

    target: str
    args: tuple[JsonValue, ...]
    kwargs: dict[str, JsonValue]
    results: tuple[tuple[int, tuple[int, ...]], ...]
    times: Annotated[int, Field(ge=1)]

    @classmethod
    def from_call(cls, call: GeneratedCall) -> CallMessage:
        """Raises `TypeError` for a call with an argument that is neither a tensor nor JSON."""
        return cls(
            target=call.signature.target,
            args=tuple(_encode(argument) for argument in call.signature.args),
            kwargs={name: _encode(argument) for name, argument in call.signature.kwargs},
            results=tuple((result.position, result.strides) for result in call.results),
            times=call.times,
        )

    def to_call(self) -> GeneratedCall:
        """Return the call that the message encodes. Raises `ValueError` for invalid tensors."""
        return GeneratedCall(
            OperatorSignature(
                self.target,
                tuple(_decode(argument) for argument in self.args),
                tuple((name, _decode(argument)) for name, argument in self.kwargs.items()),
            ),
            tuple(ReadResult(position, strides) for position, strides in self.results),
            self.times,
        )


class Request(_Message):
    """Groups of calls that are compared within a group. `threads` are torch's."""

    threads: Annotated[int, Field(ge=1)]
    groups: tuple[tuple[CallMessage, ...], ...]


class Answer(_Message):
    """The seconds of each group's calls; None for a group with a call that could not be timed. `failures` says why.
    `disturbed` is true if other programs used the processors meanwhile."""

    seconds: tuple[tuple[Seconds, ...] | None, ...]
    failures: tuple[str, ...]
    disturbed: bool


def _encode(argument: SpecArgument) -> JsonValue:
    if isinstance(argument, TensorSpec):
        dtype = str(argument.dtype).removeprefix("torch.")
        tensor = _TensorMessage(shape=argument.shape, strides=argument.strides, dtype=dtype, device=argument.device)
        return tensor.model_dump(mode="json")
    if isinstance(argument, tuple):
        return [_encode(item) for item in argument]
    if argument is None or isinstance(argument, (bool, int, float, str)):
        return argument
    raise TypeError(f"{argument!r} cannot be sent")


def _decode(value: JsonValue) -> Any:
    if isinstance(value, dict):
        tensor = _TensorMessage.model_validate(value)
        dtype = getattr(torch, tensor.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{tensor.dtype} is not a dtype of this version of torch")
        return TensorSpec(tensor.shape, tensor.strides, dtype, tensor.device)
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    return value
