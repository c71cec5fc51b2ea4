"""Bad graphs and tensors as a table: every kind of contradiction that a declaration can hold."""

# table
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import fuseplan as cudnn
from fuseplan.errors import ArgumentError, GraphStateError, InvalidGraphError, NotYetAvailableError
from tests.malformed.bench import DT, Row

UNSUPPORTED = cudnn.cudnnGraphNotSupportedError
SCALAR, MODE = cudnn.scalar_type, cudnn.reduction_mode
Graph = cudnn.pygraph


def graph(**options: Any) -> Graph:
    return Graph(name="shop", io_data_type=DT.FLOAT, device="cpu", **options)


def v(id: str, make: Callable[[Graph], object], name: str, advice: str) -> Row:
    """A contradiction; the classes of both tables of errors are caught."""
    return Row(id, make, ValueError, InvalidGraphError, name, advice)


def t(id: str, make: Callable[[Graph], object], name: str, advice: str) -> Row:
    return Row(id, make, TypeError, ArgumentError, name, advice)


def ns(id: str, make: Callable[[Graph], object], name: str, advice: str) -> Row:
    return Row(id, make, UNSUPPORTED, UNSUPPORTED, name, advice)


def s(id: str, make: Callable[[Graph], object], name: str, advice: str) -> Row:
    return Row(id, make, RuntimeError, GraphStateError, name, advice)


def x(g: Graph, *dim: int, name: str = "x", **options: Any) -> Any:
    return g.tensor(list(dim), name=name, **options)


def relu_of(g: Graph, tensor: Any) -> Any:
    return g.relu(tensor, name="act").set_output(True)


def scalar_typed(g: Graph, value: Any, dtype: Any) -> None:
    relu_of(g, g.add(x(g, 2), g.tensor_scalar(value, SCALAR.RUNTIME_PARAM, name="s").set_data_type(dtype)))


def matmul(g: Graph, a: list[int], b: list[int], c: list[int] | None = None) -> Any:
    made = g.matmul(x(g, *a, name="a"), x(g, *b, name="b"), name="mm").set_output(True).set_name("c")
    return made if c is None else made.set_dim(c)


def conv(g: Graph, image: Any = (1, 4, 6, 6), weight: Any = (8, 4, 3, 3), **changes: Any) -> Any:
    given: dict[str, Any] = {"padding": [1, 1], "stride": [1, 1], "dilation": [1, 1], **changes}
    given = {k: a for k, a in given.items() if a is not None}
    return g.conv_fprop(x(g, *image), x(g, *weight, name="w"), name="conv", **given).set_output(True)


def sdpa(g: Graph, q: Any = (1, 2, 4, 8), k: Any = (1, 2, 4, 8), val: Any = (1, 2, 4, 8), **given: Any) -> Any:
    if not {"is_inference", "generate_stats"} & given.keys():
        given["is_inference"] = True
    made = g.sdpa(x(g, *q, name="q"), x(g, *k, name="k"), x(g, *val, name="v"), name="attn", **given)
    made[0].set_output(True)
    return made


def norm(g: Graph, scale: Any = (1, 8), eps: Any = (1, 1), phase: Any = "INFERENCE", **given: Any) -> Any:
    phase = cudnn.norm_forward_phase[phase] if isinstance(phase, str) else phase
    tensors = {"scale": x(g, *scale, name="gain"), "epsilon": x(g, *eps, name="eps"), **given}
    y = g.layernorm(input=x(g, 4, 8), norm_forward_phase=phase, name="ln", **tensors)[0]
    return y.set_output(True)


def reduced(g: Graph, dim: list[int] | None, mode: Any = MODE.ADD) -> Any:
    made = g.reduction(x(g, 4, 8), mode, name="sum").set_output(True)
    return made if dim is None else made.set_dim(dim)


def score_tensor(g: Graph, use: str) -> None:
    m = x(g, 1, 2, 4, 1, name="m")
    if use == "read before":
        relu_of(g, m)
    sdpa(g, score_max=m, **({"score_sum_exp": m} if use == "made twice" else {}))


def cycle(g: Graph) -> None:
    first = g.relu(x(g, 2, 2), name="one")
    second = g.relu(first, name="two").set_output(True)
    g.nodes[0].inputs["input"] = second


# table: make(graph) declares something wrong; the error comes from the declaration or from build()
GRAPHS = [
    v("no-nodes", lambda g: x(g, 2), "'shop' has no nodes", "add operations"),
    v("dim-zero", lambda g: relu_of(g, x(g, 0, 3)), r"'x' has dims \[0, 3\]", "at least 1"),
    v("dim-negative", lambda g: relu_of(g, x(g, 2, -3)), r"'x' has dims \[2, -3\]", "at least 1"),
    v("dim-unset", lambda g: relu_of(g, x(g)), "'x' .input of 'act'. has no dims", "set_dim"),
    v("dim-huge", lambda g: relu_of(g, x(g, 1 << 40, 1 << 40)), "'x' .*larger than any memory", "correct its dims"),
    v("stride-huge", lambda g: relu_of(g, x(g, 2, 2, stride=[1 << 70, 1])), "'x' .*larger than any memory", "correct"),
    v("stride-negative", lambda g: relu_of(g, x(g, 2, 3, stride=[3, -1])), "'x' has strides", "not be negative"),
    v("stride-count", lambda g: relu_of(g, x(g, 2, 3, stride=[1])), "'x' has 2 dims but 1 strides",
        "one stride per dim"),
    v("unused-tensor-wrong", lambda g: (relu_of(g, x(g, 2)), x(g, 2, 0, name="idle")), "'idle' has dims", "at least 1"),
    t("dim-float", lambda g: x(g, 2.5), "dim of tensor 'x'", "list"),
    t("dim-none", lambda g: g.tensor(None, name="x"), "dim of tensor 'x'", "list"),
    t("dim-str", lambda g: g.tensor("23", name="x"), "dim of tensor 'x'", "list"),
    t("stride-float", lambda g: x(g, 2, stride=[1.0]), "stride of tensor 'x'", "list"),
    t("set-dim-int", lambda g: x(g, 2).set_dim(5), "dim of tensor 'x'", "list"),
    t("name-int", lambda g: g.tensor([2], name=5), "name of a tensor must be a str, not 5", "name='"),
    t("rename-int", lambda g: x(g, 2).set_name(5), "name of tensor 'x'", "str"),
    t("uid-str", lambda g: x(g, 2, uid="u"), "uid of tensor 'x'", "int"),
    v("uid-twice", lambda g: relu_of(g, g.add(x(g, 2, name="p", uid=5), x(g, 2, name="q", uid=5))),
      "'p' and 'q' have the same uid 5", "own uid"),
    v("uid-twice-by-setter", lambda g: relu_of(g, x(g, 2, uid=5)).set_uid(5), "'x' and 'act::OUT_0' have", "own uid"),
    t("type-str", lambda g: x(g, 2, data_type="float"), "data_type of tensor 'x'", "data_type.FLOAT"),
    t("type-numpy", lambda g: x(g, 2, data_type=np.float32), "data_type of tensor 'x'", "data_type.FLOAT"),
    ns("type-complex", lambda g: x(g, 2, data_type=torch.complex64), "tensor 'x': torch.complex64", "float32"),
    v("type-missing", lambda g: relu_of(g, setattr(g._draft, "io_dtype", None) or x(g, 2)), "'x' has no data type",
        "io_data_type"),
    ns("type-int4", lambda g: relu_of(g, x(g, 2, data_type=DT.INT4)), "'shop'.*", "FALLBACK"),
    ns("type-vectorised", lambda g: relu_of(g, x(g, 2, data_type=DT.INT8x4)), "'x' has type INT8x4", "FALLBACK"),
    ns("compute-vectorised", lambda g: g.relu(x(g, 2), compute_data_type=DT.INT8x4, name="act").set_output(True),
       "'act' computes in INT8x4", "FALLBACK"),
    v("compute-integer-exp", lambda g: g.exp(x(g, 2), compute_data_type=DT.INT32, name="e").set_output(True),
      "'e' .exp.: exp has no meaning in INT32", "FLOAT"),
    t("compute-str", lambda g: g.relu(x(g, 2), compute_data_type="FLOAT"), "compute_data_type of node", "data_type"),
    v("virtual-input", lambda g: relu_of(g, x(g, 2, is_virtual=True)), "'x' is virtual, but no node makes it", "False"),
    v("virtual-input-set", lambda g: relu_of(g, x(g, 2).set_is_virtual(True)), "'x' is virtual", "set_is_virtual"),
    v("virtual-by-value", lambda g: relu_of(g, x(g, 1, is_virtual=True, is_pass_by_value=True)),
      "'x' is virtual and pass-by-value", "choose one"),
    v("virtual-by-value-result", lambda g: relu_of(g, g.relu(x(g, 1), name="r").set_is_pass_by_value(True)),
      "'r::OUT_0' is virtual and pass-by-value", "choose one"),
    v("by-value-output", lambda g: relu_of(g, x(g, 1)).set_is_pass_by_value(True), "'act::OUT_0' is pass-by-value",
        "device"),
    v("by-value-many", lambda g: relu_of(g, x(g, 2, 2, is_pass_by_value=True)), "'x' is pass-by-value, but",
        "one element"),
    v("scalar-too-big", lambda g: relu_of(g, g.add(x(g, 2), g.tensor_scalar(1 << 70, SCALAR.RUNTIME_PARAM, name="s"))),
      "scalar 's' has the value 1180591620717411303424", "set_data_type"),
    v("scalar-fraction", lambda g: scalar_typed(g, 1.5, DT.INT32), "scalar 's' has the value 1.5", "set_data_type"),
    v("scalar-out-of-range", lambda g: scalar_typed(g, 300, DT.UINT8), "scalar 's' has the value 300", "set_data_type"),
    v("scalar-nan-integer", lambda g: scalar_typed(g, float("nan"), DT.INT32), "scalar 's' has the value nan", "hold"),
    t("scalar-list", lambda g: g.tensor_scalar([1.0], SCALAR.RUNTIME_PARAM, name="s"), "scalar 's'", "int, a float"),
    t("scalar-text", lambda g: g.tensor_scalar("one", SCALAR.RUNTIME_PARAM, name="s"), "scalar 's'", "int, a float"),
    t("scalar-kind", lambda g: g.tensor_scalar(1.0, 5, name="s"), "scalar_type of 's'", "RUNTIME_PARAM"),
    v("output-overlap", lambda g: relu_of(g, x(g, 2, 3)).set_stride([1, 1]), "'act::OUT_0' of node 'act' has overl",
        "own address"),
    v("output-stride-zero", lambda g: relu_of(g, x(g, 2, 3)).set_stride([0, 1]), "'act::OUT_0' of node 'act'",
        "own address"),
    v("output-dims-too-small", lambda g: relu_of(g, x(g, 2, 3)).set_dim([2, 2]), "'act' .*do not broadcast to",
        "larger"),
    v("output-strides-unknown", lambda g: relu_of(g, x(g, 1, 3)).set_dim([2, 3]), "strides of output 'act::OUT_0'",
        "set_stride"),
    v("output-made-twice", lambda g: score_tensor(g, "made twice"), "'m'. is made by an earlier output", "its own"),
    v("output-read-before", lambda g: score_tensor(g, "read before"), "'m'. is read by this node or an earlier",
        "its own"),
    v("cycle", cycle, "'two::OUT_0' .input of 'one'.", "set_dim"),
    v("alignment-value", lambda g: x(g, 2, alignment_value=0), "alignment value of 'x' is 0", "at least 1"),
    v("ragged-multiplier", lambda g: relu_of(g, x(g, 2).set_ragged_offset_multiplier(2)), "'x' has a ragged",
        "set_ragged"),
    t("ragged-int", lambda g: x(g, 2, ragged_offset=5), "ragged offset of 'x'", "tensor"),
    t("reordering-int", lambda g: x(g, 2, reordering_type=5), "reordering type of 'x'", "F8_128x4"),
    ns("reordering", lambda g: relu_of(g, x(g, 2, reordering_type=cudnn.tensor_reordering.F8_128x4)), "'x' has reord",
        "lay"),
    v("foreign-tensor", lambda g: relu_of(g, Graph(name="other").tensor([2], name="theirs")),
        "'theirs' of graph 'other'", "tensor_like"),
    t("op-on-list", lambda g: relu_of(g, [1.0]), "'act' .relu.: input must be a graph tensor", "tensor"),
    t("op-on-bool", lambda g: g.add(x(g, 2), True, name="plus"), r"add\(\): the positional .*'b'|'plus'.*b must be",
        "."),
    v("op-without-input", lambda g: g.add(x(g, 2), name="plus").set_output(True),
        "'plus' .add.: input 'b' is missing", "b="),
    t("unknown-keyword", lambda g: g.relu(x(g, 2), slope=1.0), r"relu\(\) has no argument 'slope'", "negative_slope"),
    t("misspelt-keyword", lambda g: g.relu(x(g, 2), lower_clp=1.0), "no argument 'lower_clp'",
        "did you mean 'lower_clip'"),
    t("too-many-positional", lambda g: g.relu(x(g, 2), 1.0, 1.0, 1.0, None, "n", 1, 2, 3), r"relu\(\) takes at most",
        "order"),
    t("given-twice", lambda g: g.relu(x(g, 2), input=x(g, 2)), "'input' is given twice", "once"),
    t("node-name-int", lambda g: g.relu(x(g, 2), name=5), r"relu\(\): name must be a str", "name='"),
    t("attribute-str", lambda g: g.relu(x(g, 2), negative_slope="a"), r"relu\(\): negative_slope", "number"),
    v("axis", lambda g: g.gen_index(x(g, 2, 2), axis=7, name="i").set_output(True), "'i' .gen_index.: axis 7",
        "from 0 to 1"),
    v("broadcast", lambda g: g.add(x(g, 2, 3), x(g, 2, 4, name="z"), name="plus").set_output(True),
        "'plus' .*do not broadcast", "1"),
    t("like-list", lambda g: g.tensor_like([1.0, 2.0]), "tensor_like needs .*not \\[1.0", "pass an array"),
    ns("like-complex", lambda g: g.tensor_like(np.ones(3, np.complex64), name="z"), "'z': element type complex64",
        "convert"),
    v("like-reversed", lambda g: relu_of(g, g.tensor_like(np.ones(3, np.float32)[::-1], name="z")), "'z' has strides",
        "neg"),
    v("like-empty", lambda g: relu_of(g, g.tensor_like(np.ones((0, 3), np.float32), name="z")), "'z' has dims",
        "at least 1"),
    v("like-odd-strides", lambda g: g.tensor_like(np.zeros(3, "f4,u1")["f0"], name="z"), "'z': strides of .5. bytes",
        "copy"),
    v("matmul-k", lambda g: matmul(g, [4, 8], [7, 5]), "'mm' .matmul.: A has K = 8 columns, B has 7 rows", "K, N"),
    v("matmul-rank", lambda g: matmul(g, [1, 4, 8], [8, 5]), "'mm' .*same rank", "leading axes"),
    v("matmul-rank-1", lambda g: matmul(g, [8], [8]), "'mm' .*at least 2", "leading axes"),
    v("matmul-batch", lambda g: matmul(g, [2, 4, 8], [3, 8, 5]), "'mm' .*batch axes do not broadcast", "equal or 1"),
    v("matmul-output", lambda g: matmul(g, [4, 8], [8, 5], [5, 4]), "'mm' .*'c'. has dims .5, 4.", "unset or correct"),
    v("matmul-output-rank", lambda g: matmul(g, [4, 8], [8, 5], [1, 4, 5]), "'mm' .*'c'. has dims", "unset or correct"),
    v("conv-padding-missing", lambda g: conv(g, padding=None), "'conv' .conv_fprop.: padding .*is missing",
        "list of 2"),
    v("conv-stride-missing", lambda g: conv(g, stride=None), "'conv' .*stride is missing", "list of 2"),
    v("conv-dilation-missing", lambda g: conv(g, dilation=None), "'conv' .*dilation is missing", "list of 2"),
    v("conv-stride-empty", lambda g: conv(g, stride=[]), "'conv' .*stride is missing", "list of 2"),
    v("conv-stride-zero", lambda g: conv(g, stride=[0, 1]), r"'conv' .*stride is \[0, 1\]", "at least 1"),
    v("conv-padding-negative", lambda g: conv(g, padding=[-1, 1]), r"'conv' .*is \[-1, 1\]", "at least 0"),
    v("conv-padding-count", lambda g: conv(g, padding=[1]), r"'conv' .*is \[1\]", "2 numbers"),
    v("conv-padding-twice", lambda g: conv(g, pre_padding=[1, 1], post_padding=[1, 1]), "'conv' .*together",
        "one of the two"),
    v("conv-pre-without-post", lambda g: conv(g, padding=None, pre_padding=[1, 1]), "'conv' .*missing", "list of 2"),
    t("conv-padding-int", lambda g: conv(g, padding=1), r"conv_fprop\(\): (pre_)?padding must be a list", "list"),
    v("conv-channels", lambda g: conv(g, weight=(8, 3, 3, 3)), "'conv' .*channels do not divide", "groups"),
    v("conv-groups", lambda g: conv(g, weight=(7, 2, 3, 3)), "'conv' .*channels do not divide", "groups"),
    v("conv-rank", lambda g: conv(g, weight=(8, 4, 3)), "'conv' .*same rank", "spatial"),
    v("conv-filter-too-large", lambda g: conv(g, weight=(8, 4, 9, 9), padding=[0, 0]), "'conv' .*not positive",
        "padding"),
    v("conv-output", lambda g: conv(g).set_dim([1, 8, 5, 5]), "'conv' .*has dims .1, 8, 5, 5.", "unset or correct"),
    Row("conv-dgrad", lambda g: g.conv_dgrad(x(g, 2)), UNSUPPORTED, NotYetAvailableError, "conv_dgrad",
        "operations that are there"),
    v("reduction-dims-unset", lambda g: reduced(g, None), "'sum' .*'sum::OUT_0' are not set", "set_dim"),
    v("reduction-extent", lambda g: reduced(g, [4, 2]), "'sum' .*has dims .4, 2.", "reduced"),
    v("reduction-rank", lambda g: reduced(g, [4]), "'sum' .*has dims .4.", "reduced"),
    v("reduction-mode-unset", lambda g: reduced(g, [4, 1], MODE.NOT_SET), "'sum' .*mode", "ADD"),
    v("reduction-mode-missing", lambda g: reduced(g, [4, 1], None), "'sum' .*mode", "mode="),
    t("reduction-mode-int", lambda g: g.reduction(x(g, 2), mode=3), r"reduction\(\): mode", "ADD"),
    t("out-dims-int", lambda g: g.reduction(x(g, 2), MODE.ADD, name="sum", out_dims=5), "'sum::OUT_0'", "list"),
    t("out-dims-port", lambda g: g.reduction(x(g, 2), MODE.ADD, name="sum", out_dims={"Z": [1]}), "'sum' .*'Z'",
        "OUT_0"),
    v("norm-phase-unset", lambda g: norm(g, phase="NOT_SET"), "'ln' .*norm_forward_phase", "TRAINING"),
    v("norm-phase-missing", lambda g: norm(g, phase=None), "'ln' .*norm_forward_phase", "norm_forward_phase="),
    v("norm-scale", lambda g: norm(g, scale=(1, 7)), "'ln' .*'gain'. has dims .1, 7.", "input's rank"),
    v("norm-scale-rank", lambda g: norm(g, scale=(8,)), "'ln' .*'gain'. has dims .8.", "input's rank"),
    v("norm-epsilon-many", lambda g: norm(g, eps=(1, 8)), "'ln' .*'eps'. has dims", "one element"),
    v("norm-epsilon-missing", lambda g: norm(g, epsilon=None), "'ln' .*'epsilon' is missing", "epsilon="),
    v("norm-bias-without-scale", lambda g: norm(g, scale=(1, 8), bias=x(g, 1, 8, name="b")) and norm_bias_only(g),
      "'bare' .*bias is given without scale", "scale of ones"),
    v("sdpa-both-stats", lambda g: sdpa(g, is_inference=True, generate_stats=False), "sdpa: .*both given",
        "one of them"),
    v("sdpa-no-stats", lambda g: sdpa(g, is_inference=None), "'attn' .*neither generate_stats nor", "generate_stats="),
    v("sdpa-stats-int", lambda g: sdpa(g, is_inference=2), "sdpa: is_inference is 2", "True or False"),
    v("sdpa-two-causals", lambda g: sdpa(g, use_causal_mask=True, use_causal_mask_bottom_right=True), "sdpa: .*both",
        "one"),
    v("sdpa-causal-and-bound", lambda g: sdpa(g, use_causal_mask=True, diagonal_band_right_bound=1), "sdpa: .*both",
        "one"),
    v("sdpa-window-and-bound", lambda g: sdpa(g, sliding_window_length=2, diagonal_band_left_bound=1), "sdpa: .*both",
        "one"),
    v("sdpa-right-bound", lambda g: sdpa(g, diagonal_band_right_bound=-1), "'attn' .*right_bound is -1", "0 or more"),
    v("sdpa-head-dim", lambda g: sdpa(g, k=(1, 2, 4, 6)), "'attn' .*head dims", "same last extent"),
    v("sdpa-sequence", lambda g: sdpa(g, k=(1, 2, 5, 8)), "'attn' .*sequence lengths", "same sequence"),
    v("sdpa-heads", lambda g: sdpa(g, q=(1, 3, 4, 8)), "'attn' .*no multiple", "divide"),
    v("sdpa-batch", lambda g: sdpa(g, k=(2, 2, 4, 8)), "'attn' .*batch extents", "same batch"),
    v("sdpa-rank", lambda g: sdpa(g, q=(2, 4, 8)), "'attn' .*rank 4", "head dim"),
    v("sdpa-bias", lambda g: sdpa(g, bias=x(g, 1, 1, 3, 4, name="bias")), "'attn' .*bias has dims", "broadcast"),
    v("sdpa-padding-without-lengths", lambda g: sdpa(g, use_padding_mask=True), "'attn' .*seq_len_q is missing",
        "INT32"),
    v("sdpa-lengths-without-padding", lambda g: sdpa(g, seq_len_q=x(g, 1, 1, 1, 1, name="n")), "'attn' .*without",
        "True"),
    v("sdpa-scale-twice", lambda g: sdpa(g, attn_scale=0.5, attn_scale_prefolded=True), "sdpa: .*excludes", "leave"),
    ns("sdpa-dropout", lambda g: sdpa(g, dropout=0.1), "'attn' .*'dropout'", "leave it out"),
]  # fmt: skip


def norm_bias_only(g: Graph) -> None:
    phase = cudnn.norm_forward_phase.INFERENCE
    given = {"bias": x(g, 1, 8, name="b2"), "epsilon": x(g, 1, 1, name="e2")}
    g.layernorm(input=x(g, 4, 8, name="x2"), norm_forward_phase=phase, name="bare", **given)[0].set_output(True)
