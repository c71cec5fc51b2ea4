"""Graphs of one node and their inputs, made from the samples of the op schemas."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

import fuseplan.ops  # noqa: F401 - registers the ops
from fuseplan import dtypes
from fuseplan.dtypes import dtype_of
from fuseplan.ir.graph import DraftNode, DraftTensor, GraphBuilder, packed_stride, span_elements
from fuseplan.ops.arrays import ArrayNamespace, numpy_dtype, numpy_namespace
from fuseplan.ops.casts import widen
from fuseplan.ops.infer import complete
from fuseplan.ops.schema import NodeView, OpSchema, Sample, all_schemas

Arrays = dict[str, Any]
NODE_NAME = "the_node"


@dataclass(frozen=True)
class Case:
    """A validated one-node graph with inputs by port, in their storage types."""

    view: NodeView
    inputs: Arrays

    def widened(self, *, judge: bool = True) -> Arrays:
        """Inputs as references get them."""
        xp = numpy_namespace()
        return {port: widen(xp, x, self.view.compute, judge=judge) for port, x in self.inputs.items()}

    @property
    def out_ports(self) -> tuple[str, ...]:
        return tuple(port for port, _ in self.view.node.outputs)


def draft(schema: OpSchema, sample: Sample) -> tuple[GraphBuilder, DraftNode]:
    """The sample as a graph of one node whose results are not virtual."""
    ins: dict[str, DraftTensor] = {}
    for port, (dim, kind, *stride) in sample.inputs.items():
        ins[port] = DraftTensor(len(ins) + 1, port, dim, stride[0] if stride else None, dtype_of(kind))
    outs: dict[str, DraftTensor] = {}
    for port in (p.name for p in schema.outputs if p.name not in sample.absent):
        dtype = dtype_of(sample.types[port]) if port in sample.types else None
        outs[port] = DraftTensor(100 + len(outs), port, sample.outputs.get(port), None, dtype)
    attrs = {a.name: a.default for a in schema.attrs} | dict(sample.attrs)
    node = DraftNode(schema.name, NODE_NAME, ins, outs, attrs, dtype_of(sample.compute))
    return GraphBuilder("case", io_dtype=dtypes.FLOAT, nodes=[node]), node


def random_input(rng: np.random.Generator, dim: tuple[int, ...], stride: tuple[int, ...], kind: str,
                 low: float, high: float) -> Any:  # fmt: skip
    """Random values in the storage type; equal addresses hold equal values."""
    t = dtype_of(kind)
    count = span_elements(dim, stride)
    if kind == "BOOLEAN":
        flat = rng.integers(0, 2, count).astype(bool)
    elif t.is_float:
        flat = rng.uniform(low, high, count).astype(numpy_dtype(t))
    else:
        flat = rng.integers(max(int(low), -int(t.max_finite) if t.kind == "int" else 0), int(high) + 1, count)
        flat = flat.astype(numpy_dtype(t))
    item = flat.itemsize
    return np.lib.stride_tricks.as_strided(flat, dim, tuple(s * item for s in stride)).copy()


def make_case(schema: OpSchema, sample: Sample) -> Case:
    """Validate and freeze the sample, with inputs that depend only on its names."""
    builder, _ = draft(schema, sample)
    complete(builder)
    graph = builder.freeze()
    rng = np.random.default_rng(zlib.crc32(f"{schema.name}/{sample.id}".encode()))
    inputs: Arrays = {}
    for port, (dim, kind, *stride) in sample.inputs.items():
        low, high = sample.ranges.get(port, (sample.low, sample.high))
        inputs[port] = random_input(rng, dim, stride[0] if stride else packed_stride(dim), kind, low, high)
    return Case(NodeView(graph.nodes[0], graph), inputs)


def run_reference(schema: OpSchema, case: Case, xp: ArrayNamespace | None = None, *, judge: bool = True) -> Arrays:
    """Results by port as NumPy arrays, computed with NumPy or the namespace given."""
    arrays, space = case.widened(judge=judge), xp or numpy_namespace()
    if space.is_torch:
        arrays = {port: space.asarray(x.copy()) for port, x in arrays.items()}
    with np.errstate(all="ignore"):
        made = schema.reference(case.view, space, arrays)
    return {port: np.asarray(made[port]) for port in case.out_ports}


def differences(actual: Arrays, expected: Arrays, *, rtol: float = 1e-11, of_largest: float = 1e-13) -> list[str]:
    """What differs, as text; empty if all values agree. Infinities and NaN must be in the same places.

    Args:
        rtol: allowed difference, relative to the element
        of_largest: further difference allowed, relative to the largest finite element (sums cancel)
    """
    found = [f"{port} is missing" for port in expected if port not in actual]
    for port, want in expected.items():
        if port not in actual:
            continue
        got, ref = np.asarray(actual[port], dtype=np.float64), np.asarray(want, dtype=np.float64)
        if got.shape != ref.shape:
            found.append(f"{port} has shape {got.shape}, not {ref.shape}")
            continue
        with np.errstate(all="ignore"):
            finite = np.abs(ref[np.isfinite(ref)])
            atol = of_largest * float(finite.max(initial=0.0))
            close = (got == ref) | (np.isnan(got) & np.isnan(ref)) | (np.abs(got - ref) <= rtol * np.abs(ref) + atol)
        if not close.all():
            at = np.argwhere(~close)[0]
            found.append(f"{port}{at.tolist()} is {got[tuple(at)]}, not {ref[tuple(at)]} ({(~close).sum()} differ)")
    return found


def cases(wants: Callable[[OpSchema, Sample], bool]) -> Iterable[tuple[OpSchema, Sample]]:
    """All (op, sample) that `wants` takes."""
    return [(op, s) for op in all_schemas() for s in op.samples() if wants(op, s)]


def case_id(value: object) -> str:
    """Test id of a schema or sample."""
    return value.name if isinstance(value, OpSchema) else value.id if isinstance(value, Sample) else str(value)
