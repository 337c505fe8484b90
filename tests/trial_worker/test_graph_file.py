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
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from frx_graph import backend
from frx_graph.capture.graph_signature import hash_graph
from frx_graph.errors import SerializationError
from frx_graph.serialization.arguments import decode_value, encode_value
from frx_graph.serialization.torch_settings import apply_torch_settings, read_torch_settings
from frx_graph.trial_worker.graph_file import LoadedGraph, read_graph, write_graph

Backend = Callable[[fx.GraphModule, Sequence[Any]], Any]
Built = tuple[Callable[..., Any], tuple[Any, ...]]

LIMIT_SECONDS = 300


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
        seen.append(hash_graph(module.graph))
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


def all_inputs(travelled: LoadedGraph) -> list[Tensor]:
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


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Attention(0.5), Attention()

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.first, x, use_reentrant=False)
        return checkpoint(self.second, x, use_reentrant=False) * 2


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


def writes_one(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return x.sum() * y.sum()


def images(*shape: int) -> Tensor:
    return torch.randn(*shape).contiguous(memory_format=torch.channels_last)


def aliases() -> tuple[Tensor, ...]:
    base = torch.randn(24)
    return base[:12].view(3, 4), base[6:18].view(4, 3).t(), base


def hidden(base: Tensor) -> tuple[Tensor, Tensor]:
    return base[1], base[2:, ::2]


def with_base(base: Tensor) -> tuple[Tensor, Tensor]:
    return base[1], base


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
    "views of what is no input": lambda: (writes_one, hidden(torch.randn(6, 4).t())),
    "views of a history": lambda: (writes_one, hidden(torch.randn(4, 6, requires_grad=True) * 2)),
    "a view and its base": lambda: (writes_one, with_base(torch.randn(4, 6))),
    "checkpoint": lambda: trained(Recomputed(), torch.randn(2, 6, 16, requires_grad=True)),
    "no elements": lambda: trained(nn.Linear(4, 3), torch.randn(0, 4)),
    "a number": lambda: (lambda x, y: x * y, (torch.randn(3), torch.tensor(2.0, dtype=torch.float64))),
    "complex": lambda: (lambda x: torch.view_as_real(x * (1 + 2j)), (torch.randn(3, dtype=torch.complex64),)),
    "a parameter as argument": lambda: (torch.mul, (nn.Parameter(torch.randn(3)), torch.randn(3))),
    "a frozen parameter": lambda: trained(nn.Linear(4, 3).requires_grad_(False), torch.randn(2, 4, requires_grad=True)),
}

INDUCTOR_TOO = ("residual, training", "dropout", "views of a history", "checkpoint")
"""It takes longer, and what it makes of a graph depends on nothing that AOTAutograd does not see."""

MODES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.mark.integration
def test_it_is_the_same_graph_in_a_fresh_process(tmp_path: Path) -> None:
    """Signatures of forward and backward, outputs, gradients, and what was written into the inputs, bit for bit."""
    here: dict[tuple[str, str], Observed] = {}
    for number, (name, build) in enumerate(PROGRAMS.items()):
        for compiler in ("aot", "inductor") if name in INDUCTOR_TOO else ("aot",):
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


@pytest.mark.integration
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_candidates_find_their_graphs(tmp_path: Path, inner: str, nothing_compiled: None) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), torch.randn(2, 3, 9, 9)
    written((model, (x,)), tmp_path / "graph")
    here = rewritten_signatures(model, (x,), inner)
    assert len(here) == 2
    assert in_fresh_process([(tmp_path / "graph", f"frx {inner}")]) == [{"signatures": here}]


def test_processes_share_the_file_and_none_can_change_it(tmp_path: Path) -> None:
    model = nn.BatchNorm2d(3)
    written(trained(model, torch.randn(2, 3, 4, 4)), tmp_path)
    file = tmp_path / "storages.bin"
    before = file.read_bytes()
    first, second = read_graph(tmp_path), read_graph(tmp_path)
    mapped = [line.split() for line in Path("/proc/self/smaps").read_text().splitlines() if str(file) in line]
    assert mapped and all(line[1] == "rw-p" for line in mapped)
    with torch.no_grad():
        for tensor in all_inputs(first):
            tensor.fill_(7)
    assert all((tensor == 7).all() for tensor in all_inputs(first))
    assert not any((tensor == 7).any() for tensor in all_inputs(second))
    assert file.read_bytes() == before


def test_each_storage_is_written_once_and_starts_a_page(tmp_path: Path) -> None:
    base = torch.arange(4096, dtype=torch.float32)
    written((lambda x, y, z: x[:3] + y[:3] + z, (base[10:20], base[12:], torch.ones(3))), tmp_path)
    index = json.loads((tmp_path / "graph.json").read_text())
    assert [(s["offset"] % 4096, s["nbytes"]) for s in index["storages"]] == [(0, 4096 * 4), (0, 12)]
    assert (tmp_path / "storages.bin").stat().st_size == index["storages_bytes"] < 4096 * 6
    x, y, z = read_graph(tmp_path).args
    x[2] = -1
    assert (y[0], x._base is y._base) == (-1, True)
    assert z.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_many_storages_need_few_file_descriptors(tmp_path: Path) -> None:
    many = [torch.full((2,), float(number)) for number in range(300)]
    written((lambda *values: torch.stack(values), tuple(many)), tmp_path)
    before = open_files()
    args = read_graph(tmp_path).args
    assert open_files() <= before + 2
    assert [value[1].item() for value in args] == list(range(300))


def test_tied_weights_are_one_parameter(tmp_path: Path) -> None:
    written(PROGRAMS["tied weights and integers"](), tmp_path)
    travelled = read_graph(tmp_path)
    assert [(*p.shape,) for p in travelled.model.parameters()] == [(11, 6)]
    assert [t.dtype for t in travelled.args] == [torch.int64]


def test_parameters_buffers_and_arguments_keep_their_places(tmp_path: Path) -> None:
    model = Residual()
    written(trained(model, images(2, 3, 16, 16)), tmp_path)
    travelled = read_graph(tmp_path)
    assert sorted(digest(p) for p in travelled.model.parameters()) == sorted(digest(p) for p in model.parameters())
    assert len(list(travelled.model.buffers())) == len(list(model.buffers())) == 6
    assert [t.stride() for t in travelled.args] == [(768, 1, 48, 3)]


def test_a_plain_attribute_of_a_module_is_static_and_an_argument_is_not(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.randn(3)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    written((Scaled(), (torch.randn(3),)), tmp_path)
    travelled = read_graph(tmp_path)
    assert len(travelled.args) == len(list(travelled.model.buffers())) == 1


def test_settings_are_serialized_and_restored(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with (
            torch._dynamo.config.patch(recompile_limit=3),
            torch.autocast("cpu", dtype=torch.float16),
            torch.no_grad(),
            torch.backends.mkldnn.flags(enabled=False),
        ):
            written((lambda x: x @ x, (torch.randn(3, 3),)), tmp_path)
    finally:
        torch.set_default_dtype(torch.float32)
    surroundings = read_graph(tmp_path).surroundings

    def state() -> tuple[Any, ...]:
        return (
            torch.get_default_dtype(),
            torch.backends.mkldnn.enabled,
            torch._dynamo.config.recompile_limit,
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
        )

    here = state()
    with surroundings.process(), surroundings.step():
        assert state() == (torch.float64, False, 3, False, True)
        assert torch.get_autocast_dtype("cpu") is torch.float16
    assert state() == here == (torch.float32, True, torch._dynamo.config.recompile_limit, True, False)


def test_a_precision_under_its_older_name_is_put_back_with_the_newer_ones_that_it_sets(tmp_path: Path) -> None:
    before = read_torch_settings()
    torch.set_float32_matmul_precision("high")
    changed = read_torch_settings()
    torch.compile(lambda x: x + 1, backend=lambda *given: write_graph(tmp_path, *given) or given[0])(torch.ones(2))
    apply_torch_settings(before)
    assert read_torch_settings() == before
    with read_graph(tmp_path).surroundings.process():
        assert read_torch_settings() == changed != before
    assert read_torch_settings() == before


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


class Tagged(Tensor):
    pass


@torch.library.custom_op("frx_tests::travelling", mutates_args=())
def travelling(x: Tensor) -> Tensor:
    return x.clone()


@travelling.register_fake
def _travelling_fake(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch._dynamo.allow_in_graph
def of_the_users(x: Tensor) -> Tensor:
    return x + 1


def selective() -> Any:
    return create_selective_checkpoint_contexts([torch.ops.aten.mm.default])


def hooked() -> Tensor:
    x = torch.randn(3, requires_grad=True)
    x.register_hook(lambda gradient: gradient * 2)
    return x


def overlapping() -> tuple[Tensor, Tensor]:
    x = torch.randn(8)
    return x, torch.from_numpy(x.numpy()[2:6])


REFUSED: dict[str, tuple[Callable[[], Built], str]] = {
    "operator": (lambda: (travelling, (torch.randn(3),)), "frx_tests::travelling is registered by code outside torch"),
    "function": (lambda: (lambda x: of_the_users(x), (torch.randn(3),)), "of_the_users is not part of torch"),
    "selective checkpoint": (
        lambda: (
            lambda x: checkpoint(torch.sin, x, use_reentrant=False, context_fn=selective),
            (torch.randn(3, requires_grad=True),),
        ),
        "selects what is kept",
    ),
    "autograd function": (
        lambda: (Doubled.apply, (torch.randn(3, requires_grad=True),)),
        "body of a higher-order operator",
    ),
    "hooks": (lambda: (torch.sin, (hooked(),)), "l_x_|l_args.*: it has hooks"),
    "conjugate": (lambda: (torch.sin, (torch.randn(3, dtype=torch.complex64).conj(),)), "conjugated"),
    "memory of NumPy's": (lambda: (lambda x, y: x.sum() + y, overlapping()), "share memory in a way"),
    "view of another type": (
        lambda: (lambda x: x + 1, (torch.view_as_real(torch.randn(3, dtype=torch.complex64)),)),
        "view of a tensor of another type",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unserializable_graph_is_refused_and_leaves_no_index(tmp_path: Path, name: str) -> None:
    build, reason = REFUSED[name]
    function, args = build()
    torch._dynamo.reset()
    raised: list[SerializationError] = []

    def write(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        try:
            write_graph(tmp_path, dynamo, inputs)
        except SerializationError as error:
            raised.append(error)
        return dynamo

    torch.compile(function, backend=write)(*args)
    with pytest.raises(SerializationError, match=reason):
        raise raised[0]
    assert not (tmp_path / "graph.json").exists()
    with pytest.raises(SerializationError, match="cannot be read"):
        read_graph(tmp_path)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (3, "it is a int, not a tensor"),
        (torch.empty(3, device="meta"), "no values"),
        (torch.eye(3).to_sparse(), "sparse"),
        (torch.randn(3).as_subclass(Tagged), "Tagged"),
        (torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8), "quantized"),
    ],
)
def test_inputs_other_than_plain_tensors_are_refused(tmp_path: Path, value: Any, reason: str) -> None:
    graph = fx.Graph()
    graph.output((graph.placeholder("x"),))
    with pytest.raises(SerializationError, match=f"the input x: .*{reason}"):
        write_graph(tmp_path, fx.GraphModule(nn.Module(), graph), [value])
    write_graph(tmp_path, fx.GraphModule(nn.Module(), graph), [torch.ones(3)])


def test_dynamic_shapes_are_refused(tmp_path: Path) -> None:
    def write(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        with pytest.raises(SerializationError, match="dynamic shapes cannot be serialized"):
            write_graph(tmp_path, dynamo, inputs)
        return dynamo

    torch._dynamo.reset()
    torch.compile(lambda x: x.view(-1) * x.shape[0], backend=write, dynamic=True)(torch.randn(3, 4))


def test_a_configuration_with_code_in_it_is_refused(tmp_path: Path) -> None:
    graph = fx.Graph()
    graph.output((graph.placeholder("x"),))
    with (
        torch._inductor.config.patch(post_grad_custom_pre_pass=test_dynamic_shapes_are_refused),
        pytest.raises(
            SerializationError, match=r"torch\._inductor\.config\.post_grad_custom_pre_pass: .* is not part of torch"
        ),
    ):
        write_graph(tmp_path, fx.GraphModule(nn.Module(), graph), [torch.ones(3)])


def test_a_disk_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    graph = fx.Graph()
    graph.output((graph.placeholder("x"),))
    with pytest.raises(SerializationError, match=r"cannot be written to .*file"):
        write_graph(tmp_path / "file", fx.GraphModule(nn.Module(), graph), [torch.ones(3)])


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"torch": "1.0"}, "with torch 1.0"),
        ({"format": "frx_graph_file_v0"}, "written as frx_graph_file_v0"),
        (
            {"nodes": [{"op": "call_function", "name": "x", "target": "os.getcwd", "args": [], "kwargs": {}}]},
            "os.getcwd",
        ),
        (
            {"nodes": [{"op": "call_function", "name": "x", "target": "torch.nothing", "args": [], "kwargs": {}}]},
            "no tor",
        ),
        ({"nodes": [{"op": "get_attr", "name": "x", "target": "x", "args": [], "kwargs": {}}]}, "gets nothing"),
        ({"storages": [{"offset": 0, "nbytes": 9999, "device": "cpu"}]}, "shorter"),
        ({"storages": [{"offset": 0, "nbytes": 8, "device": "cpu"}]}, "larger than its storage"),
        ({"surprise": 1}, "not a graph file"),
    ],
)
def test_a_file_that_is_not_ours_is_refused(tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
    graph = fx.Graph()
    graph.output((graph.placeholder("x"),))
    write_graph(tmp_path, fx.GraphModule(nn.Module(), graph), [torch.ones(3)])
    assert read_graph(tmp_path).args[0].tolist() == [1, 1, 1]
    index = tmp_path / "graph.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | changed))
    with pytest.raises(SerializationError, match=reason):
        read_graph(tmp_path)


def test_arguments_of_all_kinds_come_back(tmp_path: Path) -> None:
    graph = fx.Graph()
    node = graph.placeholder("x")
    values = [
        *(None, True, 2, "text", 0.1, -0.0, math.inf, 1 - 2j, ..., [1, (2, node)], slice(1, None, 2), range(3)),
        *(torch.float16, torch.channels_last, torch.strided, torch.device("cuda", 1), torch.Size([2]), {"a": node}),
        *(torch.sin, torch.ops.aten.add.Tensor, torch.ops.aten.add, torch.Tensor.add_, len, functional.relu),
    ]
    for value in values:
        back = decode_value(json.loads(json.dumps(encode_value(value))), {"x": node})
        assert (back, type(back), repr(back)) == (value, type(value), repr(value))
    for value in (object(), Doubled, torch.Generator(), torch.ones(1)):
        with pytest.raises(SerializationError):
            encode_value(value)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_inputs_on_a_gpu_come_back_there(tmp_path: Path) -> None:
    model = Residual().cuda()
    here = written(trained(model, images(2, 3, 16, 16).cuda()), tmp_path)
    travelled = read_graph(tmp_path)
    assert {tensor.device.type for tensor in all_inputs(travelled)} == {"cuda"}
    assert in_fresh_process([(tmp_path, "aot")])[0]["signatures"] == here.signatures


if __name__ == "__main__":
    main()
