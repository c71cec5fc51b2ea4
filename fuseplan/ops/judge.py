"""The rule of "right": which results of a candidate count as right, element by element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuseplan import dtypes
from fuseplan.dtypes import DType
from fuseplan.ir.graph import Graph
from fuseplan.ops import judge_casts
from fuseplan.ops.arrays import numpy_namespace
from fuseplan.ops.evaluate import evaluate, run_judge, run_reference
from fuseplan.ops.perturb import NUM_UNMOVED_RUNS, run_perturbed
from fuseplan.ops.schema import schema_of

NUM_PERTURBED_RUNS = 7
UNDECIDED_SPREAD = 1e-3


@dataclass(frozen=True)
class Verdict:
    """What the rule says of one candidate.

    Args:
        is_right: every decided element of every output is within its bound
        num_wrong, num_undecided, num_elements: counts over all outputs
        worst: largest error over its bound among decided elements (at most 1 if right)
        message: names the worst element of a wrong output, else empty
    """

    is_right: bool
    num_wrong: int
    num_undecided: int
    num_elements: int
    worst: float
    message: str = ""


def ulp(x: Any, t: DType) -> Any:
    """Distance to the next value of `t` at |x|, as float64; 0 for integer types."""
    if not t.is_float:
        return np.zeros(np.shape(x))
    exponent_floor = {
        "FLOAT": -126,
        "DOUBLE": -1022,
        "HALF": -14,
        "BFLOAT16": -126,
        "FP8_E4M3": -6,
        "FP8_E5M2": -14,
    }
    with np.errstate(all="ignore"):
        size = np.where(np.isfinite(x), np.abs(x), 0.0)
        exponent = np.frexp(np.maximum(size, 1e-300))[1] - 1
    return np.ldexp(
        1.0, np.maximum(exponent, exponent_floor.get(t.name, -126)) - t.mantissa_bits
    )


def is_exact(graph: Graph) -> bool:
    """Whether the graph is made only of correctly rounded operations in FLOAT (or on integers)."""
    return all(
        schema_of(n.op).is_exact_at(n)
        and n.compute in (dtypes.FLOAT, dtypes.INT32, dtypes.INT64, dtypes.BOOLEAN)
        for n in graph.nodes
    ) and all(
        t.dtype is dtypes.FLOAT or not t.dtype.is_float for t in graph.tensors.values()
    )


def judge(
    graph: Graph, inputs: Mapping[int, Any], candidate: Mapping[int, Any]
) -> Verdict:
    """Judge a candidate's outputs by the rule of docs/design/0003-rule-of-right.md.

    Args:
        graph: the source graph, before lowering
        inputs: uid -> NumPy array in the storage type
        candidate: uid -> NumPy array for each non-virtual output
    """
    with np.errstate(all="ignore"):
        if is_exact(graph):
            same = evaluate(
                graph, inputs, numpy_namespace(), run=run_reference, by=judge_casts
            )
            return _combine(
                [_bitwise(graph, uid, a, candidate[uid]) for uid, a in same.items()]
            )
        exact = {
            uid: np.asarray(a, dtype=np.float64)
            for uid, a in run_judge(graph, inputs).items()
        }
        spread = {uid: np.zeros(a.shape) for uid, a in exact.items()}
        for seed in range(NUM_UNMOVED_RUNS + NUM_PERTURBED_RUNS):
            for uid, p in run_perturbed(graph, inputs, seed).items():
                p = np.asarray(p, dtype=np.float64)
                gap = np.where(
                    (p == exact[uid]) | (np.isnan(p) & np.isnan(exact[uid])),
                    0.0,
                    np.abs(p - exact[uid]),
                )
                spread[uid] = np.maximum(
                    spread[uid], np.where(np.isnan(gap), np.inf, gap)
                )
        return _combine(
            [
                _within(graph, uid, exact[uid], spread[uid], candidate[uid])
                for uid in exact
            ]
        )


def _bitwise(graph: Graph, uid: int, a: Any, c: Any) -> Verdict:
    same = (a == c) | ((a != a) & (c != c))
    return _verdict(
        graph,
        uid,
        np.asarray(a),
        np.asarray(c),
        np.where(same, 0.0, np.inf),
        np.zeros(np.shape(a), bool),
    )


def _within(graph: Graph, uid: int, exact: Any, spread: Any, c: Any) -> Verdict:
    spec = graph.tensors[uid]
    c = np.asarray(c, dtype=np.float64)
    undecided = spread > UNDECIDED_SPREAD * np.maximum(
        np.abs(exact), ulp(0.0, spec.dtype)
    )
    if spec.dtype.is_float:  # a subnormal's spread is large in relative terms only
        undecided &= spread > 4 * ulp(exact, spec.dtype)
    undecided |= np.isinf(
        spread
    )  # an honest run overflows, or gives NaN, where the judge does not, or the reverse
    bound = 8 * spread + 4 * ulp(exact, spec.dtype)
    same = (
        (c == exact)
        | (np.isnan(c) & np.isnan(exact))
        | (np.isinf(exact) & (c == exact))
    )
    error = np.where(
        same, 0.0, np.abs(c - exact) / np.where(bound > 0, bound, np.finfo(float).tiny)
    )
    return _verdict(
        graph, uid, exact, c, np.where(np.isnan(error), np.inf, error), undecided
    )


def _verdict(
    graph: Graph, uid: int, exact: Any, c: Any, over: Any, undecided: Any
) -> Verdict:
    wrong = (over > 1.0) & ~undecided
    decided = np.where(undecided, 0.0, over)
    message = ""
    if wrong.any():
        at = tuple(
            int(i) for i in np.unravel_index(int(np.argmax(decided)), np.shape(decided))
        )
        message = f"output {graph.tensors[uid].name!r} at {list(at)}: got {c[at]!r}, judge says {exact[at]!r}"
    return Verdict(
        not wrong.any(), int(wrong.sum()), int(undecided.sum()), int(np.size(over)),
        float(decided.max(initial=0.0)), message,
    )  # fmt: skip


def _combine(parts: list[Verdict]) -> Verdict:
    return Verdict(
        all(p.is_right for p in parts), sum(p.num_wrong for p in parts), sum(p.num_undecided for p in parts),
        sum(p.num_elements for p in parts), max((p.worst for p in parts), default=0.0),
        next((p.message for p in parts if p.message), ""),
    )  # fmt: skip


def is_right_by_norm(
    xp: Any, exact: Any, declared: Any, candidate: Any, t: DType, rows: int = 256
) -> bool:
    """The tuner's rule, on arrays of `xp`: ``||C-J|| <= 2 ||A-J|| + 4 ulp ||J||`` over each block of rows.

    Args:
        exact, declared, candidate: judge, array engine in the declared types, candidate; same dims
        t: stored type of the candidate
        rows: size of a block along the flattened leading axes
    """
    eps = 2.0**-t.mantissa_bits if t.is_float else 0.0
    double = xp.dtype(dtypes.DOUBLE)
    j, a, c = (_as_rows(xp, xp.astype(x, double)) for x in (exact, declared, candidate))
    for start in range(0, int(j.shape[0]), rows):
        jb, ab, cb = (x[start : start + rows, :] for x in (j, a, c))
        odd = (jb != jb) | (
            xp.abs(jb) == float("inf")
        )  # NaN and infinities must agree as such
        if not bool(
            xp.all(xp.where(odd, (cb == jb) | ((cb != cb) & (jb != jb)), cb == cb))
        ):
            return False
        zero = xp.zeros_like(jb)
        gap, ref, size = (
            _norm(xp, xp.where(odd, zero, x)) for x in (cb - jb, ab - jb, jb)
        )
        if not gap <= 2 * ref + 4 * eps * size:
            return False
    return True


def _as_rows(xp: Any, x: Any) -> Any:
    last = int(x.shape[-1]) if len(x.shape) else 1
    return xp.reshape(x, (-1, last))


def _norm(xp: Any, x: Any) -> float:
    return float(xp.sqrt(xp.sum(x * x)))
