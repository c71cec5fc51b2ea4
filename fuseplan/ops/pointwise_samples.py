"""Test cases and draws that every pointwise op gets, made from its ports and the domain of its formula."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from fuseplan.dtypes import BOOLEAN
from fuseplan.errors import InvalidGraphError
from fuseplan.ir.graph import AttrValue, DraftTensor
from fuseplan.ops.draws import Draw, Draws, Pool
from fuseplan.ops.schema import Sample

OUT = "y"

_DIMS: dict[
    str, tuple[tuple[int, ...], ...]
] = {  # dims of the first, second, third input
    "odd": ((3, 5, 7), (1, 5, 1), (3, 1, 7)),
    "ranks": ((2, 3, 4, 5), (4, 5), (3, 1, 1)),
    "first-smaller": ((1, 5, 1), (3, 5, 7), (5, 7)),
    "scalars": ((3, 5, 7), (1, 1, 1), (1,)),
    "ones": ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),
}


@dataclass(frozen=True)
class Domain:
    """Where an op's inputs in samples and random graphs come from.

    Args:
        low, high: range of random inputs
        huge: largest magnitude of the case with huge values, 0 for no such case
        ranges: input port -> range where it differs
        attr_sets: attribute values, used in turn
        is_logical: truth values in and out are usual
        bad_attrs: attribute values that validation must refuse
        operands: what random graphs draw: ``any``, ``bounded`` or ``positive``; ports with a range above 0 are positive
        is_continuous: see `Draws`; never true of an op of truth values
        draw_attrs: draws attributes that depend on the first operand's rank, for ops whose result has its dims
    """

    low: float = -2.0
    high: float = 2.0
    huge: float = 1e30
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    attr_sets: tuple[Mapping[str, AttrValue], ...] = ({},)
    is_logical: bool = False
    bad_attrs: tuple[Mapping[str, AttrValue], ...] = ()
    operands: str = "any"
    is_continuous: bool = True
    draw_attrs: Callable[[random.Random, int], Mapping[str, AttrValue]] | None = None


@dataclass(frozen=True)
class _Cases:
    """The cases of one op."""

    ports: tuple[str, ...]
    domain: Domain
    is_float_only: bool

    def inputs(
        self, dims: Iterable[tuple[int, ...]], kind: str = "FLOAT", *stride: Any
    ) -> dict[str, tuple[Any, ...]]:
        return {p: (d, kind, *stride) for p, d in zip(self.ports, dims, strict=False)}

    def sample(
        self, id: str, inputs: dict[str, tuple[Any, ...]], turn: int = 0, **more: Any
    ) -> Sample:
        domain = self.domain
        known: dict[str, Any] = {
            "attrs": domain.attr_sets[turn % len(domain.attr_sets)],
            "low": domain.low,
            "high": domain.high,
            "ranges": domain.ranges,
        }
        return Sample(id, inputs, **{**known, **more})

    def good(self) -> Iterable[Sample]:
        domain, make, inputs = self.domain, self.sample, self.inputs
        odd, same = _DIMS["odd"], [(4, 6, 5)] * len(self.ports)
        for turn in range(len(domain.attr_sets)):
            yield make(f"odd-{turn}" if turn else "odd", inputs(odd), turn)
        for id in (
            "ones",
            *(("ranks", "first-smaller", "scalars") if len(self.ports) > 1 else ()),
        ):
            yield make(id, inputs(_DIMS[id]))
        yield make("transposed", inputs(same, "FLOAT", (1, 4, 24)), 1)
        yield make("zero-stride", inputs(same, "FLOAT", (0, 5, 1)), 2)
        yield make("half", inputs(odd, "HALF"), 1, types={OUT: "HALF"})
        yield make("bf16", inputs(same, "BFLOAT16"), 2, types={OUT: "BFLOAT16"})
        if domain.huge:
            low = -domain.huge if domain.low < 0 else domain.low
            yield make("huge", inputs(odd), low=low, high=domain.huge)
        if not self.is_float_only:
            yield make(
                "int32", inputs(odd, "INT32"), types={OUT: "INT32"}, compute="INT32"
            )
        if domain.is_logical:
            yield make(
                "boolean",
                inputs(odd, "BOOLEAN"),
                types={OUT: "BOOLEAN"},
                compute="BOOLEAN",
            )
            yield make("boolean-out", inputs(same), types={OUT: "BOOLEAN"})

    def bad(self) -> Iterable[Sample]:
        make, inputs, fails, odd = (
            self.sample,
            self.inputs,
            InvalidGraphError,
            _DIMS["odd"],
        )
        yield make(
            "output-dims-wrong", inputs(odd), outputs={OUT: (3, 5, 6)}, fails=fails
        )
        if self.is_float_only:
            yield make(
                "integer-compute", inputs(odd, "INT32"), compute="INT32", fails=fails
            )
        for turn, attrs in enumerate(self.domain.bad_attrs):
            yield make(f"bad-attributes-{turn}", inputs(odd), attrs=attrs, fails=fails)
        if len(self.ports) > 1:
            yield make("inputs-disagree", inputs(((3, 4), (3, 5), (3, 4))), fails=fails)
            yield make("no-stride-rule", inputs(((4, 1), (1, 5), (1, 1))), fails=fails)


def samples_of(
    ports: tuple[str, ...], domain: Domain, *, is_float_only: bool
) -> Callable[[], Iterable[Sample]]:
    """The sample function of an op with these input ports."""
    cases = _Cases(ports, domain, is_float_only)
    return lambda: chain(cases.good(), cases.bad())


def draws_of(ports: tuple[str, ...], domain: Domain) -> Draws:
    """How random graphs draw an op with these input ports."""

    def operand(pool: Pool, port: str, x: DraftTensor) -> DraftTensor:
        low, _ = domain.ranges.get(port, (domain.low, domain.high))
        if low > 0 or domain.operands == "positive":
            return pool.positive(x)
        return pool.bounded(x) if domain.operands == "bounded" else x

    def draw(pool: Pool) -> Draw:
        rng = pool.rng
        drawn = [pool.like() for _ in ports]
        if rng.random() < 0.1:
            drawn = drawn[:1] * len(ports)
        inputs = {
            port: operand(pool, port, x) for port, x in zip(ports, drawn, strict=True)
        }
        truth = {OUT: BOOLEAN} if domain.is_logical else {}
        if domain.draw_attrs is not None:
            return Draw(
                inputs, attrs=domain.draw_attrs(rng, len(inputs[ports[0]].need_dim()))
            )
        attrs = rng.choice(
            [a for a in domain.attr_sets if not pool.is_whole or _is_whole(a)]
        )
        return Draw(
            inputs, {OUT: pool.dim} if rng.random() < 0.04 else {}, attrs, truth
        )

    return Draws(draw, is_continuous=domain.is_continuous and not domain.is_logical)


def _is_whole(attrs: Mapping[str, AttrValue]) -> bool:
    return all(
        value.is_integer() for value in attrs.values() if isinstance(value, float)
    )
