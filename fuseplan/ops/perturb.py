"""Runs a graph in its declared types while every inexact operation's result moves by at most one ulp.

An ndarray subclass sees each ufunc that a reference calls. After an inexact one it moves the result
at random; operands of sums and matrix products move too, which stands for the roundings inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fuseplan import dtypes
from fuseplan.dtypes import DType
from fuseplan.ir.graph import Graph
from fuseplan.ops import judge_casts
from fuseplan.ops.arrays import ArrayNamespace, numpy_namespace
from fuseplan.ops.evaluate import evaluate, run_reference
from fuseplan.ops.schema import NodeView

_INEXACT = frozenset(
    "add subtract multiply divide true_divide sqrt exp exp2 expm1 log log1p log2 tanh sin cos tan power float_power "
    "square reciprocal matmul hypot logaddexp".split()
)

_COMPARISONS = frozenset(
    "equal not_equal greater greater_equal less less_equal".split()
)

NUM_UNMOVED_RUNS = 2
#: distance of subnormal values: a relative move would not leave the grid there
_SMALLEST = {"FLOAT": 2.0**-149, "HALF": 2.0**-24, "BFLOAT16": 2.0**-133}


class _Nudge:
    """How results move: a generator and the compute type whose ulp counts.

    Args:
        joins: whether operands of a comparison that are few ulps apart count as equal
    """

    def __init__(
        self, seed: int, compute: DType, ulps: float = 1.0, *, joins: bool = False
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.compute, self.ulps, self.joins = compute, ulps, joins

    def move(self, x: Any) -> Any:
        x = np.asarray(x)
        if x.dtype.kind != "f":
            return x
        u = self.ulps * (
            self.rng.integers(0, 2, x.shape) * 2.0 - 1.0
        )  # a full ulp: see docs/design/0003
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64)
            step = np.maximum(
                np.abs(wide) * 2.0**-self.compute.mantissa_bits,
                _SMALLEST.get(self.compute.name, 0.0),
            )
            wide = np.where(np.isfinite(wide) & (wide != 0), wide + u * step, wide)
            return self.on_grid(wide.astype(x.dtype))

    def join(self, x: Any, y: Any) -> Any:
        """x, or y where both are finite and so near that another order of rounding may make them equal."""
        x, y = np.asarray(x), np.asarray(y)
        if not self.joins or x.dtype.kind != "f" or y.dtype.kind != "f":
            return x
        with np.errstate(all="ignore"):
            a, b = x.astype(np.float64), y.astype(np.float64)
            step = np.maximum(np.abs(a), np.abs(b)) * 2.0**-self.compute.mantissa_bits
            return np.where(np.isfinite(step) & (np.abs(a - b) <= 4 * step), y, x)

    def on_grid(self, x: Any) -> Any:
        """x rounded to a compute type under 32 bits; those are evaluated in float32."""
        if self.compute.bits >= 32 or x.dtype.kind != "f":
            return x
        with np.errstate(all="ignore"):
            return judge_casts.narrow(numpy_namespace(), x, self.compute).astype(
                x.dtype
            )


class _Moving(np.ndarray):
    """An array whose ufunc results move; state travels with views and results."""

    nudge: _Nudge | None = None

    def __array_finalize__(self, obj: Any) -> None:
        if obj is not None:
            self.nudge = getattr(obj, "nudge", None)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any
    ) -> Any:
        nudge = next(
            x.nudge for x in inputs if isinstance(x, _Moving) and x.nudge is not None
        )
        plain = [x.view(np.ndarray) if isinstance(x, _Moving) else x for x in inputs]
        moves = ufunc.__name__ in _INEXACT
        if moves and (method == "reduce" or ufunc is np.matmul):
            plain = [nudge.move(x) if isinstance(x, np.ndarray) else x for x in plain]
        if ufunc.__name__ in _COMPARISONS and method == "__call__":
            plain[0] = nudge.join(plain[0], plain[1])
        if "out" in kwargs:
            kwargs["out"] = tuple(
                o.view(np.ndarray) if isinstance(o, _Moving) else o
                for o in kwargs["out"]
            )
        result = getattr(ufunc, method)(*plain, **kwargs)
        return _wrap(nudge.move(result) if moves else result, nudge)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        result = super().__array_function__(func, types, args, kwargs)
        return _wrap(result, self.nudge) if isinstance(result, np.ndarray) else result


def _wrap(x: Any, nudge: _Nudge | None) -> Any:
    made = np.asarray(x).view(_Moving)
    made.nudge = nudge
    return made


class _MovingNamespace(ArrayNamespace):
    """The adapter for moving arrays: functions that are no ufuncs keep the array class."""

    def __init__(self, nudge: _Nudge, *, holds: bool) -> None:
        super().__init__(numpy_namespace().base)
        self.nudge, self._holds = nudge, holds

    def erf(self, x: Any) -> Any:
        return _wrap(self.nudge.move(super().erf(np.asarray(x))), self.nudge)

    def held_in(self, x: Any, t: DType) -> Any:
        """x moved and rounded in a narrower type, in runs whose operands are rounded."""
        if not self._holds or not t.is_float or t.bits >= self.nudge.compute.bits:
            return x
        narrow = _Nudge(0, t, self.nudge.ulps)
        narrow.rng = self.nudge.rng
        return _wrap(narrow.move(x), self.nudge)

    def where(self, mask: Any, a: Any, b: Any) -> Any:
        return _wrap(
            np.where(np.asarray(mask), np.asarray(a), np.asarray(b)), self.nudge
        )


def run_perturbed(graph: Graph, inputs: Mapping[int, Any], seed: int) -> dict[int, Any]:
    """One moved run in the declared types; results of the non-virtual outputs by uid, as plain arrays.

    Args:
        seed: of the moves; below `NUM_UNMOVED_RUNS` nothing moves, which is the run that a candidate most often
            is. With an odd one operands are rounded to compute types under 32 bits first,
            and factors inside of an op to the type of the other factor
    """

    def run(view: NodeView, xp: ArrayNamespace, args: dict[str, Any]) -> dict[str, Any]:
        nudge = _Nudge(
            seed * 1_000_003 + view.node.index,
            _grid_of(view.compute),
            0.0 if seed < NUM_UNMOVED_RUNS else 1.0,
            joins=seed >= NUM_UNMOVED_RUNS and bool(seed % 2),
        )
        moving = {
            port: _wrap(nudge.on_grid(x) if seed % 2 else x, nudge)
            for port, x in args.items()
        }
        return {
            port: np.asarray(y)
            for port, y in run_reference(
                view, _MovingNamespace(nudge, holds=bool(seed % 2)), moving
            ).items()
        }

    plain = {uid: np.asarray(x) for uid, x in inputs.items()}
    with np.errstate(all="ignore"):
        return evaluate(graph, plain, numpy_namespace(), run=run, by=judge_casts)


def _grid_of(compute: DType) -> DType:
    return compute if compute.is_float and compute.mantissa_bits else dtypes.FLOAT
