"""A one-way print of graphs, for people (of regions: `writer.region_summary`)."""

from __future__ import annotations

from fuseplan.dtypes import DType
from fuseplan.ir.graph import Graph

_SHORT = {
    "FLOAT": "f32", "DOUBLE": "f64", "HALF": "f16", "BFLOAT16": "bf16", "INT8": "i8", "UINT8": "u8", "INT32": "i32",
    "INT64": "i64", "BOOLEAN": "b8", "FP8_E4M3": "e4m3", "FP8_E5M2": "e5m2",
}  # fmt: skip


def type_name(t: DType, dim: tuple[int, ...]) -> str:
    """For instance ``bf16[2,64,64]``."""
    return f"{_SHORT.get(t.name, t.name.lower())}[{','.join(map(str, dim))}]"


def print_graph(graph: Graph) -> str:
    """One line per node: results, op, arguments, attributes; what a node applies inside stands below it."""
    lines = [f"graph {graph.name!r}"]
    names = {uid: f"%{uid}" for uid in graph.tensors}
    for uid in graph.input_uids:
        t = graph.tensors[uid]
        packed = (
            ""
            if t.ragged is None
            else f" sequences from %{t.ragged.offsets} times {t.ragged.multiplier}"
        )
        lines.append(
            f"  {names[uid]} = input {t.name!r} {type_name(t.dtype, t.dim)} stride {list(t.stride)}{packed}"
        )
    for n in graph.nodes:
        outs = ", ".join(
            f"{names[u]}: {type_name(graph.tensors[u].dtype, graph.tensors[u].dim)}"
            for _, u in n.outputs
        )
        ins = ", ".join(f"{p}={names[u]}" for p, u in n.inputs)
        attrs = "".join(f", {k}={v}" for k, v in n.attrs if v is not None)
        lines.append(
            f"  {outs} = {n.op}({ins}{attrs})  # node {n.index} {n.name!r}, computed in {n.compute.name}"
        )
        if n.body is not None:
            lines += ["    " + line for line in print_graph(n.body).splitlines()]
    shown = [graph.tensors[u].name for u in graph.output_uids]
    return "\n".join([*lines, f"  outputs {shown}"])
