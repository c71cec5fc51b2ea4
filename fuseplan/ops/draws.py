"""How the random graphs of tests draw a node of an op: a part of the op's entry, with a default for most."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fuseplan.dtypes import DType
from fuseplan.ir.graph import AttrValue, DraftTensor

Dims = tuple[int, ...]


class Pool(Protocol):
    """A growing graph, as a draw sees it: where operands come from."""

    @property
    def rng(self) -> random.Random: ...

    @property
    def dim(self) -> Dims:
        """The dims that most tensors broadcast to."""
        ...

    @property
    def is_whole(self) -> bool:
        """Whether all arithmetic is in integers."""
        ...

    def like(self) -> DraftTensor:
        """A tensor that broadcasts to `dim`: made earlier, a new input, or a host scalar."""
        ...

    def of_rank(self, ranks: range) -> DraftTensor:
        """A tensor of one of these ranks and any dims, not large; bounded where sums of products leave the range."""
        ...

    def input(self, dim: Dims) -> DraftTensor:
        """A new input of any type and strides."""
        ...

    def scalar(
        self, rank: int, value: float | None = None, dtype: DType | None = None
    ) -> DraftTensor:
        """A host scalar: baked in, owned by the graph, or passed by the caller; with a value, never the last."""
        ...

    def bounded(self, x: DraftTensor) -> DraftTensor:
        """x brought to a moderate range."""
        ...

    def positive(self, x: DraftTensor) -> DraftTensor:
        """x brought to a moderate range above 0."""
        ...


@dataclass(frozen=True)
class Draw:
    """A drawn node of an op.

    Args:
        inputs: tensors by port
        outputs: the result ports that are made, with dims, or None where inference gives them; empty: all ports
        attrs: attributes as stored, where they differ from their defaults
        types: result ports that may as well have this type
    """

    inputs: Mapping[str, DraftTensor]
    outputs: Mapping[str, Dims | None] = field(default_factory=dict)
    attrs: Mapping[str, AttrValue] = field(default_factory=dict)
    types: Mapping[str, DType] = field(default_factory=dict)


@dataclass(frozen=True)
class Draws:
    """How an op takes part in random graphs. Which types it computes in follows from the entry's samples.

    Args:
        draw: draws a node, or None where the pool has nothing for it; unset: one of the entry's samples, its
            operands taken from the pool or made
        weight: how often the op is drawn, where most have 1
        is_continuous: results move little where inputs move little, so that engines differ by rounding only
    """

    draw: Callable[[Pool], Draw | None] | None = None
    weight: float = 1.0
    is_continuous: bool = True
