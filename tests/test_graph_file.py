"""A graph that is captured here is read by a process that has nothing but the folder, and is the same graph there.

As a script this file is that process: it reads tasks as JSON and prints what it observed.
"""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor.compile_fx import compile_fx
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from frx_graph import backend
from frx_graph.capture.graph_signature import graph_signature
from frx_graph.errors import TravelError
from frx_graph.graph_file import TravelledGraph, read_graph, write_graph

Backend = Callable[[fx.GraphModule, Sequence[Any]], Any]
Built = tuple[Callable[..., Any], tuple[Any, ...]]

LIMIT_SECONDS = 300
COMPILERS = ("aot", "inductor")


@dataclass
class Observed:
    """What one step did: signatures of AOTAutograd's graphs in order, and digests of everything that has values."""

    signatures: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    gradients: list[str] = field(default_factory=list)
    inputs_after: list[str] = field(default_factory=list)


def recorder(compiler: str, seen: list[str]) -> Backend:
    """AOTAutograd, alone or with Inductor's decompositions and partitioner, whose graphs are noted and run as they
    are."""

    def note(module: fx.GraphModule, _: Any, **__: Any) -> Any:
        seen.append(graph_signature(module.graph))
        return make_boxed_func(module.forward)

    if compiler == "aot":
        return aot_autograd(fw_compiler=note)
    return lambda dynamo, inputs: compile_fx(dynamo, inputs, inner_compile=note)


def step(function: Callable[..., Any], args: Sequence[Any], inputs: Callable[[], Sequence[Any]]) -> Observed:
    """One call and, where something needs a gradient, its backward; `inputs` are all of the graph's."""
    torch.manual_seed(0)
    outputs = [value for value in pytree.tree_leaves(function(*args)) if isinstance(value, Tensor)]
    roots = [value for value in outputs if value.requires_grad]
    wanted = [value for value in inputs() if value.requires_grad]
    gradients: Sequence[Tensor | None] = ()
    if roots and wanted:
        gradients = torch.autograd.grad(roots, wanted, [torch.ones_like(root) for root in roots], allow_unused=True)
    return Observed(
        outputs=[digest(value) for value in outputs],
        gradients=[digest(value) for value in gradients],
        inputs_after=[digest(value) for value in inputs()],
    )


def digest(value: Tensor | None) -> str:
    if value is None:
        return "None"
    plain = value.detach().cpu()
    content = plain.contiguous().flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    facts = f"{plain.dtype} {tuple(plain.shape)} {plain.stride()} {value.device.type} {value.requires_grad}"
    return f"{facts} {hashlib.sha256(content).hexdigest()[:16]}"


def written(program: Built, folder: Path, compiler: str = "aot") -> Observed:
    """Compile and run the program here, and write its graph, which must be one, on the way."""
    function, args = program
    torch._dynamo.reset()
    seen: list[str] = []
    given: list[Any] = []

    def write_and_compile(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        # Dynamo calls a backend again where AOTAutograd tells it to trace a scalar in another way.
        given[:] = inputs
        write_graph(folder, dynamo, inputs)
        return recorder(compiler, seen)(dynamo, inputs)

    observed = step(torch.compile(function, backend=write_and_compile, fullgraph=True), args, lambda: given)
    observed.signatures = seen
    return observed


def all_inputs(travelled: TravelledGraph) -> list[Tensor]:
    rest = iter(travelled.args)
    return [next(rest) if name is None else getattr(travelled.model, name) for name in travelled.model.names]


def observed_here(folder: Path, compiler: str) -> Observed:
    torch._dynamo.reset()
    travelled = read_graph(folder)
    seen: list[str] = []
    with travelled.surroundings.process(), travelled.surroundings.step():
        compiled = torch.compile(travelled.model, backend=recorder(compiler, seen))
        observed = step(compiled, travelled.args, lambda: all_inputs(travelled))
    observed.signatures = seen
    return observed


def rewritten_signatures(model: Callable[..., Any], args: Sequence[Any], inner: str) -> list[str]:
    """What the backend itself binds candidates to, under a real inner compiler."""
    torch._dynamo.reset()
    backend.clear()
    torch.compile(model, backend="frx", options={"plan": "all", "inner": inner})(*args).sum().backward()
    return [graph.signature for graph in backend.rewritten()]


def in_fresh_process(tasks: Sequence[tuple[Path, str]]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__],
        input=json.dumps([(str(folder), compiler) for folder, compiler in tasks]),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    answers = []
    for folder, compiler in json.loads(sys.stdin.read()):
        if compiler.startswith("frx "):
            travelled = read_graph(Path(folder))
            with travelled.surroundings.process(), travelled.surroundings.step():
                found = rewritten_signatures(
                    lambda *args, model=travelled.model: model(*args)[0], travelled.args, compiler.split()[1]
                )
            answers.append({"signatures": found})
        else:
            answers.append(vars(observed_here(Path(folder), compiler)))
    sys.stdout.write(f"\n{json.dumps(answers)}\n")


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.norm(self.stem(x))), 2)
        x = functional.relu(x + self.body(x))
        return self.head(x.mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.dropout = dropout
        self.register_buffer("bias", torch.full((1, 1, 6, 6), -math.inf).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).view(2, 6, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)
        y = functional.dropout(y, self.dropout, self.training)
        return x + self.out(y.transpose(1, 2).reshape(2, 6, 16))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6, padding_idx=0)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        mask = (tokens == 0)[..., None]
        return self.head(x.masked_fill(mask, -math.inf).softmax(-1).nan_to_num())


class Volume(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv3d(2, 4, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose3d(4, 2, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return functional.interpolate(self.up(functional.silu(self.down(x))), scale_factor=2.0)


class Mixed(nn.Module):
    """Autocast and no_grad switched on and off inside, and constants of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.linear(x)
        with torch.no_grad():
            z = self.linear(x) * 2.5
        w = torch.zeros(6, 6, dtype=torch.float64, device="cpu").add_(torch.tensor([1, 2, 3, 4, 5, 6]))
        u = torch.einsum("ij,kj->ik", x, self.linear.weight)[..., 1:5:2, None].clamp(max=math.inf)
        return y.float() + z, w.sum(), u, x.to(memory_format=torch.contiguous_format).split([2, 4], 1)[1]


def looks_first(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    # Dynamo sees z first, which is used last.
    return (y * x + z) if z.dim() == 2 and y.requires_grad else x


def writes_aliases(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    x.mul_(2)
    y.add_(1)
    return x.sum() + y.sum() + z.sum()


def writes_history(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.exp()


def images(*shape: int) -> Tensor:
    return torch.randn(*shape).contiguous(memory_format=torch.channels_last)


def aliases() -> tuple[Tensor, ...]:
    base = torch.randn(24)
    return base[:12].view(3, 4), base[6:18].view(4, 3).t(), base


def history() -> Tensor:
    return torch.randn(3, 4, requires_grad=True) * 3


def looked_at() -> tuple[Tensor, ...]:
    x, y = torch.randn(3, 4, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    return x, (y * 2).t(), torch.randn(1, 4).expand(3, 4)


def trained(model: nn.Module, *args: Any) -> Built:
    return model.train(), args


PROGRAMS: dict[str, Callable[[], Built]] = {
    "residual, training": lambda: trained(Residual(), images(2, 3, 16, 16)),
    "residual, evaluating with gradients": lambda: (Residual().eval(), (torch.randn(2, 3, 16, 16),)),
    "attention": lambda: trained(Attention(), torch.randn(2, 6, 16)),
    "dropout": lambda: trained(Attention(0.5), torch.randn(2, 6, 16, requires_grad=True)),
    "tied weights and integers": lambda: trained(Tied(), torch.tensor([[1, 2, 0], [4, 10, 1]])),
    "conv3d": lambda: trained(Volume(), torch.randn(1, 2, 4, 6, 4).to(memory_format=torch.channels_last_3d)),
    "autocast inside": lambda: trained(Mixed(), torch.randn(6, 6, requires_grad=True)),
    "inputs looked at before use": lambda: (looks_first, looked_at()),
    "aliases written to": lambda: (writes_aliases, aliases()),
    "history written to": lambda: (writes_history, (history(),)),
    "a view of it written to": lambda: (writes_history, (history().t(),)),
    "no elements": lambda: trained(nn.Linear(4, 3), torch.randn(0, 4)),
    "a number": lambda: (lambda x, y: x * y, (torch.randn(3), torch.tensor(2.0, dtype=torch.float64))),
    "complex": lambda: (lambda x: torch.view_as_real(x * (1 + 2j)), (torch.randn(3, dtype=torch.complex64),)),
    "a parameter as argument": lambda: (torch.mul, (nn.Parameter(torch.randn(3)), torch.randn(3))),
    "a frozen parameter": lambda: trained(nn.Linear(4, 3).requires_grad_(False), torch.randn(2, 4, requires_grad=True)),
}

MODES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.mark.slow
def test_it_is_the_same_graph_in_a_fresh_process(tmp_path: Path) -> None:
    """Signatures of forward and backward, outputs, gradients, and what was written into the inputs, bit for bit."""
    here: dict[tuple[str, str], Observed] = {}
    for number, (name, build) in enumerate(PROGRAMS.items()):
        for compiler in COMPILERS:
            torch.manual_seed(1)
            here[name, compiler] = written(build(), tmp_path / f"{number} {compiler}", compiler)
    for name, mode in MODES.items():
        torch.manual_seed(1)
        program = trained(Residual(), images(2, 3, 16, 16))
        with mode():
            here[name, "aot"] = written(program, tmp_path / f"{name} aot", "aot")
    numbers = {name: str(number) for number, name in enumerate(PROGRAMS)}
    tasks = [(tmp_path / f"{numbers.get(name, name)} {compiler}", compiler) for name, compiler in here]
    there = in_fresh_process(tasks)
    for key, observed in zip(here, there, strict=True):
        assert observed == vars(here[key]), key
    signatures = [signature for observed in here.values() for signature in observed.signatures]
    assert len(here["residual, training", "aot"].signatures) == 2, "no backward was compared"
    assert len(set(signatures)) > len(here), "the signatures do not tell the programs apart"


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_candidates_find_their_graphs(tmp_path: Path, inner: str, nothing_compiled: None) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), torch.randn(2, 3, 9, 9)
    written((model, (x,)), tmp_path / "graph")
    here = rewritten_signatures(model, (x,), inner)
    assert len(here) == 2
    assert in_fresh_process([(tmp_path / "graph", f"frx {inner}")]) == [{"signatures": here}]


if __name__ == "__main__":
    main()
