"""Matrix product over the last two axes, with broadcast batch axes."""

from __future__ import annotations

from collections.abc import Iterable

from fuseplan.errors import InvalidGraphError
from fuseplan.ir.graph import DraftNode, packed_stride
from fuseplan.ir.region import Cost
from fuseplan.ops import schema
from fuseplan.ops.arrays import ArrayNamespace
from fuseplan.ops.draws import Draw, Draws, Pool
from fuseplan.ops.schema import (
    Array,
    Attr,
    Call,
    FragmentBuilder,
    NodeView,
    OpSchema,
    Port,
    Sample,
    register,
    reject,
)
from fuseplan.ops.shapes import set_dim


def _infer(node: DraftNode) -> None:
    a, b = node.inputs["A"].need_dim(), node.inputs["B"].need_dim()
    shown = f"A {list(a)}, B {list(b)}"
    if len(a) != len(b) or len(a) < 2:
        raise reject(
            node,
            f"operands must have the same rank, at least 2: {shown}",
            "add leading axes of extent 1",
        )
    if a[-1] != b[-2]:
        raise reject(
            node,
            f"A has K = {a[-1]} columns, B has {b[-2]} rows: {shown}",
            "A is [.., M, K], B is [.., K, N]",
        )
    try:
        batch = schema.broadcast((a[:-2], b[:-2]))
    except ValueError as error:
        raise reject(
            node,
            f"batch axes do not broadcast: {shown} ({error})",
            "extents must be equal or 1",
        ) from None
    set_dim(node, "C", (*batch, a[-2], b[-1]), packed_stride)


def _reference(
    view: NodeView, xp: ArrayNamespace, arrays: dict[str, Array]
) -> dict[str, Array]:
    return {"C": xp.matmul(arrays["A"], arrays["B"])}


def _decompose(
    b: FragmentBuilder, view: NodeView, args: dict[str, int]
) -> dict[str, int]:
    return {
        "C": b.emit("matmul", args["A"], args["B"], dim=b.ranked(view.made("C").dim))
    }


def _cost(view: NodeView) -> Cost:
    return Cost(
        2.0 * view.made("C").numel * view.need("A").dim[-1],
        view.in_bytes,
        view.out_bytes,
    )


def _draw(pool: Pool) -> Draw:
    """A drawn tensor times a new input, which may broadcast over batch axes or carry them."""
    rng, a = pool.rng, pool.of_rank(range(2, 5))
    *batch, k = a.need_dim()[:-2] + a.need_dim()[-1:]
    lead = (rng.choice((1, d)) if d > 1 else rng.choice((1, 2)) for d in batch)
    return Draw({"A": a, "B": pool.input((*lead, k, rng.choice((1, 8, 65))))})


def _samples() -> Iterable[Sample]:  # table
    bad = InvalidGraphError
    yield Sample("odd", {"A": ((5, 7), "FLOAT"), "B": ((7, 3), "FLOAT")})
    yield Sample("batch", {"A": ((2, 5, 9), "FLOAT"), "B": ((2, 9, 11), "FLOAT")})
    yield Sample(
        "broadcast-batch", {"A": ((2, 1, 5, 4), "FLOAT"), "B": ((1, 3, 4, 6), "FLOAT")}
    )
    yield Sample(
        "transposed-b",
        {"A": ((2, 5, 9), "FLOAT"), "B": ((2, 9, 11), "FLOAT", (99, 1, 9))},
    )
    yield Sample(
        "transposed-a",
        {"A": ((1, 8, 16), "FLOAT", (128, 1, 8)), "B": ((1, 16, 8), "FLOAT")},
    )
    yield Sample(
        "zero-stride-batch",
        {"A": ((3, 4, 5), "FLOAT", (0, 5, 1)), "B": ((3, 5, 2), "FLOAT")},
    )
    yield Sample("ones", {"A": ((1, 1, 1), "FLOAT"), "B": ((1, 1, 1), "FLOAT")})
    yield Sample("vector", {"A": ((1, 1, 33), "FLOAT"), "B": ((1, 33, 1), "FLOAT")})
    yield Sample(
        "half",
        {"A": ((2, 5, 9), "HALF"), "B": ((2, 9, 11), "HALF")},
        types={"C": "HALF"},
    )
    yield Sample(
        "bf16-mixed",
        {"A": ((2, 5, 9), "BFLOAT16"), "B": ((2, 9, 11), "FLOAT")},
        types={"C": "BFLOAT16"},
    )
    yield Sample(
        "huge", {"A": ((4, 6), "FLOAT"), "B": ((6, 4), "FLOAT")}, low=-1e18, high=1e18
    )
    yield Sample(
        "int8",
        {"A": ((3, 5), "INT8"), "B": ((5, 4), "INT8")},
        types={"C": "INT32"},
        compute="INT32",
        low=-99,
        high=99,
    )
    yield Sample(
        "k-differs", {"A": ((5, 7), "FLOAT"), "B": ((6, 3), "FLOAT")}, fails=bad
    )
    yield Sample(
        "ranks-differ", {"A": ((1, 5, 7), "FLOAT"), "B": ((7, 3), "FLOAT")}, fails=bad
    )
    yield Sample("rank-1", {"A": ((7,), "FLOAT"), "B": ((7,), "FLOAT")}, fails=bad)
    yield Sample(
        "batch-differs",
        {"A": ((2, 5, 7), "FLOAT"), "B": ((3, 7, 3), "FLOAT")},
        fails=bad,
    )
    yield Sample(
        "output-dims",
        {"A": ((5, 7), "FLOAT"), "B": ((7, 3), "FLOAT")},
        outputs={"C": (3, 5)},
        fails=bad,
    )


MATMUL = register(
    OpSchema(
        name="matmul",
        family="matmul",
        inputs=(Port("A"), Port("B")),
        outputs=(Port("C"),),
        infer=_infer,
        reference=_reference,
        cost=_cost,
        decompose=_decompose,
        samples=_samples,
        draws=Draws(_draw, weight=3.0),
        call=Call(
            positional=("A", "B", "compute_data_type", "padding", "name"),
            classic=("A", "B", "compute_data_type", "padding", "name"),
            doc="Matrix product of A [.., M, K] and B [.., K, N]; batch axes broadcast.",
        ),
        attrs=(Attr("padding", "float", 0.0),),
    )
)
