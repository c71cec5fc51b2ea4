"""Works shared by the benchmark and the GPU tests: graph, buffers, PyTorch's form, float64 reference.

The graphs are built through whichever library is passed: fuseplan, or NVIDIA's frontend, whose API it speaks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import fuseplan as cudnn

device = "cuda"  # where the buffers of works lie; see `on`
KINDS = {torch.bfloat16: "BFLOAT16", torch.float16: "HALF", torch.float32: "FLOAT"}


@dataclass
class Work:
    """One work.

    Args:
        build: (handle, library) -> (built graph, pack, tensor of the first result)
        eager: the same in PyTorch, returns the first result
        reference: the first result in float64
        bare: the product alone, without what follows it
        compiled: (mode of torch.compile) -> the same compiled; None where compiling `eager` gives it
        has_matmul: whether a compiler of matmuls is worth tuning for it
    """

    name: str
    shape: str
    build: Callable[..., tuple[Any, dict[Any, Any], torch.Tensor]]
    eager: Callable[[], torch.Tensor]
    reference: Callable[[], torch.Tensor]
    has_matmul: bool = False
    bare: Callable[[], torch.Tensor] | None = None
    compiled: Callable[[str], Callable[[], torch.Tensor]] | None = None

    def compile(self, mode: str) -> Callable[[], torch.Tensor]:
        """PyTorch's form under torch.compile."""
        return self.compiled(mode) if self.compiled else torch.compile(self.eager, mode=mode, dynamic=False)


def on(kind: str) -> None:
    """Make the works of a device from now on."""
    global device
    device = kind


def new_graph(lib: Any, handle: Any, dtype: torch.dtype, name: str) -> Any:
    return lib.pygraph(
        handle=handle,
        name=name,
        io_data_type=getattr(lib.data_type, KINDS[dtype]),
        intermediate_data_type=lib.data_type.FLOAT,
        compute_data_type=lib.data_type.FLOAT,
    )


def finish(lib: Any, graph: Any) -> Any:
    """The five steps, in the form that every release of the API takes."""
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([lib.heur_mode.A, lib.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    return graph


def declare(graph: Any, lib: Any, t: torch.Tensor, name: str) -> Any:
    return graph.tensor(
        name=name, dim=list(t.shape), stride=list(t.stride()), data_type=getattr(lib.data_type, KINDS[t.dtype])
    )


def scalar(graph: Any, lib: Any, rank: int, name: str) -> Any:
    ones = [1] * rank
    return graph.tensor(name=name, dim=ones, stride=ones, data_type=lib.data_type.FLOAT, is_pass_by_value=True)


def output(t: Any, lib: Any, dtype: torch.dtype) -> Any:
    return t.set_output(True).set_data_type(getattr(lib.data_type, KINDS[dtype]))


def random(*dim: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*dim, device=device, dtype=torch.float32).mul_(scale).to(dtype)


def poisoned(*dim: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full(dim, float("nan"), device=device, dtype=dtype)


def pointwise_chain(dtype: torch.dtype, rows: int = 8192, cols: int = 4096) -> Work:
    x, z = random(1, rows, cols, dtype=dtype), random(1, rows, cols, dtype=dtype)
    bias = random(1, 1, cols, dtype=dtype)

    def build(handle: Any, lib: Any = cudnn) -> Any:
        g = new_graph(lib, handle, dtype, "pointwise_chain")
        X, Z, B = declare(g, lib, x, "x"), declare(g, lib, z, "z"), declare(g, lib, bias, "bias")
        y = output(g.mul(a=g.gelu_approx_tanh(input=g.bias(input=X, bias=B)), b=Z), lib, dtype)
        finish(lib, g)
        out = poisoned(1, rows, cols, dtype=dtype)
        return g, {X: x, Z: z, B: bias, y: out}, out

    def formula(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return F.gelu(a + b, approximate="tanh") * c

    return Work("pointwise chain", f"{rows}x{cols}", build, lambda: formula(x, bias, z),
                lambda: formula(x.double(), bias.double(), z.double()))  # fmt: skip


def row_softmax(dtype: torch.dtype, rows: int = 8192, cols: int = 4096) -> Work:
    x = random(1, rows, cols, dtype=dtype, scale=3.0)

    def build(handle: Any, lib: Any = cudnn) -> Any:
        g = new_graph(lib, handle, dtype, "row_softmax")
        X = declare(g, lib, x, "x")
        top = g.reduction(input=X, mode=lib.reduction_mode.MAX).set_dim([1, rows, 1]).set_stride([rows, 1, 1])
        e = g.exp(input=g.sub(a=X, b=top))
        total = g.reduction(input=e, mode=lib.reduction_mode.ADD).set_dim([1, rows, 1]).set_stride([rows, 1, 1])
        y = output(g.div(a=e, b=total), lib, dtype)
        finish(lib, g)
        out = poisoned(1, rows, cols, dtype=dtype)
        return g, {X: x, y: out}, out

    return Work("row softmax", f"{rows}x{cols}", build, lambda: torch.softmax(x, -1),
                lambda: torch.softmax(x.double(), -1))  # fmt: skip


def rms_norm(dtype: torch.dtype, rows: int = 8192, cols: int = 5120) -> Work:
    x, w = random(1, rows, cols, dtype=dtype), random(1, 1, cols, dtype=dtype)
    eps = torch.full((1, 1, 1), 1e-5)

    def build(handle: Any, lib: Any = cudnn) -> Any:
        g = new_graph(lib, handle, dtype, "rms_norm")
        X, W = declare(g, lib, x, "x"), declare(g, lib, w, "w")
        E = scalar(g, lib, 3, "eps")
        y, inv = g.rmsnorm(norm_forward_phase=lib.norm_forward_phase.TRAINING, input=X, scale=W, bias=None, epsilon=E)
        output(y, lib, dtype)
        output(inv, lib, torch.float32)
        finish(lib, g)
        out, stats = poisoned(1, rows, cols, dtype=dtype), poisoned(1, rows, 1, dtype=torch.float32)
        return g, {X: x, W: w, E: eps, y: out, inv: stats}, out

    return Work("rms norm", f"{rows}x{cols}", build, lambda: F.rms_norm(x, (cols,), w[0, 0], 1e-5),
                lambda: F.rms_norm(x.double(), (cols,), w[0, 0].double(), 1e-5))  # fmt: skip


def matmul_bias_gelu(dtype: torch.dtype, m: int = 4096, n: int = 4096, k: int = 4096) -> Work:
    a, b = random(1, m, k, dtype=dtype), random(1, k, n, dtype=dtype, scale=k**-0.5)
    bias = random(1, 1, n, dtype=dtype)

    def build(handle: Any, lib: Any = cudnn) -> Any:
        g = new_graph(lib, handle, dtype, "matmul_bias_gelu")
        A, B, V = declare(g, lib, a, "a"), declare(g, lib, b, "b"), declare(g, lib, bias, "bias")
        pre = output(g.bias(input=g.matmul(A=A, B=B), bias=V), lib, dtype)
        y = output(g.gelu(input=pre), lib, dtype)
        finish(lib, g)
        out, kept = poisoned(1, m, n, dtype=dtype), poisoned(1, m, n, dtype=dtype)
        return g, {A: a, B: b, V: bias, y: out, pre: kept}, out

    def eager() -> torch.Tensor:
        return F.gelu(torch.addmm(bias[0, 0], a[0], b[0])).unsqueeze(0)

    def reference() -> torch.Tensor:
        pre = (a.double() @ b.double() + bias.double()).to(dtype).double()
        return F.gelu(pre)

    return Work("matmul bias gelu, 2 outputs", f"{m}x{n}x{k}", build, eager, reference, True)


def matmul_amax(dtype: torch.dtype, batch: int = 16, m: int = 512, k: int = 1024, n: int = 512) -> Work:
    a, b = random(batch, m, k, dtype=dtype), random(batch, k, n, dtype=dtype)
    bias, alpha = random(1, 1, n, dtype=dtype), torch.full((1, 1, 1), 0.125)

    def build(handle: Any, lib: Any = cudnn) -> Any:
        g = new_graph(lib, handle, dtype, "matmul_amax")
        A, B, V = declare(g, lib, a, "a"), declare(g, lib, b, "b"), declare(g, lib, bias, "bias")
        S = scalar(g, lib, 3, "alpha")
        act = g.gelu(input=g.bias(input=g.mul(a=g.matmul(A=A, B=B), b=S), bias=V))
        y = output(act, lib, dtype)
        top = output(g.reduction(input=act, mode=lib.reduction_mode.AMAX), lib, torch.float32)
        top.set_dim([1, 1, 1]).set_stride([1, 1, 1])
        finish(lib, g)
        out, amax = poisoned(batch, m, n, dtype=dtype), poisoned(1, 1, 1, dtype=torch.float32)
        return g, {A: a, B: b, V: bias, S: alpha, y: out, top: amax}, out

    def eager() -> torch.Tensor:
        r = F.gelu(torch.baddbmm(bias.expand(batch, m, n), a, b, beta=1.0, alpha=0.125))
        r.abs().amax()
        return r

    def reference() -> torch.Tensor:
        return F.gelu(a.double() @ b.double() * 0.125 + bias.double())

    return Work("matmul scale bias gelu amax", f"{batch}x{m}x{k}x{n}", build, eager, reference, True,
                lambda: torch.bmm(a, b))  # fmt: skip


def matmul(dtype: torch.dtype, m: int, k: int, n: int, *, turned: bool = False) -> Work:
    """A bare product; `turned`: B lies as [N, K] in memory."""
    a = random(1, m, k, dtype=dtype)
    b = random(1, n, k, dtype=dtype).mT if turned else random(1, k, n, dtype=dtype)

    def build(handle: Any, lib: Any = cudnn) -> Any:
        g = new_graph(lib, handle, dtype, "matmul")
        A, B = declare(g, lib, a, "a"), declare(g, lib, b, "b")
        y = output(g.matmul(A=A, B=B), lib, dtype)
        finish(lib, g)
        out = poisoned(1, m, n, dtype=dtype)
        return g, {A: a, B: b, y: out}, out

    layout = "[N, K]" if turned else "[K, N]"
    return Work(f"matmul, B {layout}", f"{m}x{k}x{n}", build, lambda: torch.mm(a[0], b[0]).unsqueeze(0),
                lambda: a.double() @ b.double(), True)  # fmt: skip


def long_chain(dtype: torch.dtype, rows: int, cols: int = 1024) -> Work:
    """Twelve pointwise operations: add mul sub relu mul add tanh mul add max mul cast."""
    x, z = random(1, rows, cols, dtype=dtype), random(1, rows, cols, dtype=dtype)
    bias = random(1, 1, cols, dtype=dtype)

    def build(handle: Any, lib: Any = cudnn) -> Any:
        g = new_graph(lib, handle, dtype, "long_chain")
        X, Z, B = declare(g, lib, x, "x"), declare(g, lib, z, "z"), declare(g, lib, bias, "bias")
        y = g.relu(input=g.sub(a=g.mul(a=g.add(a=X, b=B), b=Z), b=X))
        y = g.mul(a=g.tanh(input=g.add(a=g.mul(a=y, b=Z), b=B)), b=X)
        y = g.identity(input=g.mul(a=g.max(input0=g.add(a=y, b=Z), input1=B), b=Z))
        output(y, lib, dtype)
        finish(lib, g)
        out = poisoned(1, rows, cols, dtype=dtype)
        return g, {X: x, Z: z, B: bias, y: out}, out

    def formula(x: torch.Tensor, z: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(torch.relu((x + b) * z - x) * z + b) * x
        return torch.maximum(y + z, b) * z

    return Work("chain of 12", f"{rows}x{cols}", build, lambda: formula(x, z, bias),
                lambda: formula(x.double(), z.double(), bias.double()))  # fmt: skip


def layer_norm(dtype: torch.dtype, rows: int = 8192, cols: int = 5120) -> Work:
    x, w, b = random(1, rows, cols, dtype=dtype), random(1, 1, cols, dtype=dtype), random(1, 1, cols, dtype=dtype)
    eps = torch.full((1, 1, 1), 1e-5)

    def build(handle: Any, lib: Any = cudnn) -> Any:
        g = new_graph(lib, handle, dtype, "layer_norm")
        X, W, B = declare(g, lib, x, "x"), declare(g, lib, w, "w"), declare(g, lib, b, "b")
        E = scalar(g, lib, 3, "eps")
        y, mean, inv = g.layernorm(
            norm_forward_phase=lib.norm_forward_phase.TRAINING, input=X, scale=W, bias=B, epsilon=E
        )
        output(y, lib, dtype)
        pack = {X: x, W: w, B: b, E: eps, y: poisoned(1, rows, cols, dtype=dtype)}
        for t in (mean, inv):
            pack[output(t, lib, torch.float32)] = poisoned(1, rows, 1, dtype=torch.float32)
        finish(lib, g)
        return g, pack, pack[y]

    return Work("layer norm", f"{rows}x{cols}", build, lambda: F.layer_norm(x, (cols,), w[0, 0], b[0, 0], 1e-5),
                lambda: F.layer_norm(x.double(), (cols,), w[0, 0].double(), b[0, 0].double(), 1e-5))  # fmt: skip


def norm_backward(dtype: torch.dtype, kind: str, rows: int = 8192, cols: int = 5120) -> Work:
    """DX, DScale (and DBias) of a layer or RMS norm, from float32 statistics; PyTorch's by autograd."""
    x, grad = random(1, rows, cols, dtype=dtype), random(1, rows, cols, dtype=dtype)
    w = random(1, 1, cols, dtype=dtype)
    is_layer = kind == "layer"
    mean = x.float().mean(-1, keepdim=True) if is_layer else torch.zeros(1, rows, 1, device=device)
    inv = ((x.float() - mean).square().mean(-1, keepdim=True) + 1e-5).rsqrt()

    def build(handle: Any, lib: Any = cudnn) -> Any:
        g = new_graph(lib, handle, dtype, f"{kind}_norm_backward")
        X, G, W = declare(g, lib, x, "x"), declare(g, lib, grad, "grad"), declare(g, lib, w, "w")
        I = declare(g, lib, inv, "inv")  # noqa: E741
        pack = {X: x, G: grad, W: w, I: inv}
        if is_layer:
            M = declare(g, lib, mean, "mean")
            pack[M] = mean
            found = g.layernorm_backward(grad=G, input=X, scale=W, mean=M, inv_variance=I)
        else:
            found = g.rmsnorm_backward(grad=G, input=X, scale=W, inv_variance=I, has_dbias=False)
        outputs = [output(t, lib, dtype) for t in found if t is not None]
        finish(lib, g)
        pack |= {t: poisoned(1, 1 if k else rows, cols, dtype=dtype) for k, t in enumerate(outputs)}
        return g, pack, pack[outputs[0]]

    def forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (cols,), w, b, 1e-5) if is_layer else F.rms_norm(x, (cols,), w, 1e-5)

    def gradients(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor, norm: Any = forward) -> Callable[[], torch.Tensor]:
        x, w = x.detach().requires_grad_(), w[0, 0].detach().requires_grad_()
        b = torch.zeros_like(w).requires_grad_()
        with _side_stream():  # a gradient runs on the stream of its forward; the default one cannot be captured
            y = norm(x, w, b)
        leaves = (x, w, b) if is_layer else (x, w)
        return lambda: torch.autograd.grad(y, leaves, g, retain_graph=True)[0]

    return Work(f"{kind} norm backward", f"{rows}x{cols}", build, gradients(x, w, grad),
                lambda: gradients(x.double(), w.double(), grad.double())(),
                compiled=lambda mode: gradients(x, w, grad, torch.compile(forward, mode=mode, dynamic=False)),
                )  # fmt: skip


def _side_stream() -> Any:
    if device != "cuda":
        return contextlib.nullcontext()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    return torch.cuda.stream(side)


def sums(dtype: torch.dtype, dim: tuple[int, int, int], axes: tuple[int, ...], name: str) -> Work:
    """Sums over some axes of a packed tensor, in float32."""
    x = random(*dim, dtype=dtype)
    kept = [1 if a in axes else d for a, d in enumerate(dim)]

    def build(handle: Any, lib: Any = cudnn) -> Any:
        g = new_graph(lib, handle, dtype, "sums")
        X = declare(g, lib, x, "x")
        y = output(g.reduction(input=X, mode=lib.reduction_mode.ADD), lib, torch.float32)
        y.set_dim(kept).set_stride([kept[1] * kept[2], kept[2], 1])
        finish(lib, g)
        out = poisoned(*kept, dtype=torch.float32)
        return g, {X: x, y: out}, out

    return Work(f"sum over {name}", "x".join(map(str, dim)), build,
                lambda: x.sum(axes, keepdim=True, dtype=torch.float32),
                lambda: x.double().sum(axes, keepdim=True))  # fmt: skip


def all_works(dtype: torch.dtype) -> list[Work]:
    """All works at the sizes of the table."""
    return [make(dtype) for make in (pointwise_chain, row_softmax, rms_norm, matmul_bias_gelu, matmul_amax)]
