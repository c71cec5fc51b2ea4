"""Test cases that every pointwise op gets, made from its ports and the domain of its formula."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fuseplan.errors import InvalidGraphError
from fuseplan.ir.graph import AttrValue
from fuseplan.ops.schema import Sample

OUT = "OUT_0"

_DIMS: dict[str, tuple[tuple[int, ...], ...]] = {  # dims of the first, second, third input
    "odd": ((3, 5, 7), (1, 5, 1), (3, 1, 7)),
    "ranks": ((2, 3, 4, 5), (4, 5), (3, 1, 1)),
    "first-smaller": ((1, 5, 1), (3, 5, 7), (5, 7)),
    "scalars": ((3, 5, 7), (1, 1, 1), (1,)),
    "ones": ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),
}


@dataclass(frozen=True)
class Domain:
    """Where an op's sample inputs come from.

    Args:
        low, high: range of random inputs
        huge: largest magnitude of the case with huge values, 0 for no such case
        ranges: input port -> range where it differs
        attr_sets: attribute values, used in turn
        is_logical: truth values in and out are usual
        bad_attrs: attribute values that validation must refuse
    """

    low: float = -2.0
    high: float = 2.0
    huge: float = 1e30
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    attr_sets: tuple[Mapping[str, AttrValue], ...] = ({},)
    is_logical: bool = False
    bad_attrs: tuple[Mapping[str, AttrValue], ...] = ()


def samples_of(
    ports: tuple[str, ...], domain: Domain, *, is_float_only: bool
) -> Callable[[], Iterable[Sample]]:  # fmt: skip
    """The sample function of an op with these input ports."""

    def inputs(dims: Iterable[tuple[int, ...]], type_name: str = "FLOAT", *strides: Any) -> dict[str, tuple[Any, ...]]:
        return {p: (d, type_name, *strides) for p, d in zip(ports, dims, strict=False)}

    def sample(id: str, ins: dict[str, tuple[Any, ...]], turn: int = 0, **more: Any) -> Sample:
        known: dict[str, Any] = {
            "attrs": domain.attr_sets[turn % len(domain.attr_sets)],
            "low": domain.low,
            "high": domain.high,
            "ranges": domain.ranges,
        }
        return Sample(id, ins, **{**known, **more})

    def samples() -> Iterable[Sample]:
        unary = len(ports) == 1
        same = [(4, 6, 5)] * len(ports)
        for turn in range(len(domain.attr_sets)):
            yield sample(f"odd-{turn}" if turn else "odd", inputs(_DIMS["odd"]), turn)
        for id in ("ones", *(() if unary else ("ranks", "first-smaller", "scalars"))):
            yield sample(id, inputs(_DIMS[id]))
        yield sample("transposed", inputs(same, "FLOAT", (1, 4, 24)), 1)
        yield sample("zero-stride", inputs(same, "FLOAT", (0, 5, 1)), 2)
        yield sample("half", inputs(_DIMS["odd"], "HALF"), 1, types={OUT: "HALF"})
        yield sample("bf16", inputs(same, "BFLOAT16"), 2, types={OUT: "BFLOAT16"})
        if domain.huge:
            low = -domain.huge if domain.low < 0 else domain.low
            yield sample("huge", inputs(_DIMS["odd"]), low=low, high=domain.huge)
        if not is_float_only:
            yield sample("int32", inputs(_DIMS["odd"], "INT32"), types={OUT: "INT32"}, compute="INT32")
        if domain.is_logical:
            yield sample("boolean", inputs(_DIMS["odd"], "BOOLEAN"), types={OUT: "BOOLEAN"}, compute="BOOLEAN")
            yield sample("boolean-out", inputs(same), types={OUT: "BOOLEAN"})
        yield from _failures(unary)

    def _failures(unary: bool) -> Iterable[Sample]:
        bad = InvalidGraphError
        yield sample("output-dims-wrong", inputs(_DIMS["odd"]), outputs={OUT: (3, 5, 6)}, fails=bad)
        if is_float_only:
            yield sample("integer-compute", inputs(_DIMS["odd"], "INT32"), compute="INT32", fails=bad)
        for turn, attrs in enumerate(domain.bad_attrs):
            yield sample(f"bad-attributes-{turn}", inputs(_DIMS["odd"]), attrs=attrs, fails=bad)
        if not unary:
            yield sample("inputs-disagree", inputs(((3, 4), (3, 5), (3, 4))), fails=bad)
            yield sample("no-stride-rule", inputs(((4, 1), (1, 5), (1, 1))), fails=bad)

    return samples
