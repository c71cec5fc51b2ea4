"""What the tests of bad input share: one row of a table, and guarded buffers with the float64 result of a good call."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fuseplan as cudnn
from fuseplan import settings

Array = np.ndarray[Any, Any]
DT = cudnn.data_type
A, FALLBACK = cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK
GUARD_BYTES, GUARD, FILL = 64, 0xA5, 0x5C


@dataclass(frozen=True)
class Row:
    """One piece of bad input.

    Args:
        id: what is wrong with it
        make: makes it; gets the table's fixture
        error: class that programs written for the reference API expect
        own: class of fuseplan
        name: regular expression for the user's name in the first line of the message
        advice: regular expression for the line that says what to do
    """

    id: str
    make: Callable[[Any], object]
    error: type[BaseException]
    own: type[BaseException]
    name: str
    advice: str


def param(rows: list[Row]) -> pytest.MarkDecorator:
    """Parametrise a test over a table."""
    assert len({r.id for r in rows}) == len(rows)
    return pytest.mark.parametrize("row", rows, ids=[r.id for r in rows])


def refused(row: Row, call: Callable[[], object]) -> None:
    """Check that a call raises what the row says, with the user's name and advice."""
    with pytest.raises(row.error) as caught:
        call()
    check_error(row, caught.value)


def check_error(row: Row, error: BaseException) -> None:
    """Class, name and advice of one error."""
    assert isinstance(error, row.error), repr(error)
    assert type(error) is row.own, repr(error)
    text = str(error)
    assert re.search(row.name, text), text
    advice = [line for line in text.splitlines() if line.strip().startswith("fix:")]
    assert advice and re.search(row.advice, advice[-1]), text


class Guarded:
    """An array with guard bytes on both sides."""

    def __init__(self, values: Array) -> None:
        self.raw = np.full(values.nbytes + 2 * GUARD_BYTES, GUARD, np.uint8)
        inner = self.raw[GUARD_BYTES : GUARD_BYTES + values.nbytes]
        self.array: Array = inner.view(values.dtype).reshape(values.shape)
        self.array[...] = values

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data)

    @property
    def is_guarded(self) -> bool:
        return bool((self.raw[:GUARD_BYTES] == GUARD).all() and (self.raw[-GUARD_BYTES:] == GUARD).all())


def filled(*dim: int, dtype: Any = np.float32) -> Array:
    """An array of a pattern that no result has."""
    made = np.empty(dim, dtype)
    made.view(np.uint8)[...] = FILL
    return made


class Mlp:
    """y = relu(a @ b * s + c) @ d, built; two anchors, so that the compiled plan needs a workspace.

    Uids are 11 to 16 for a, b, c, d, s, y; s is a host scalar. Two virtual tensors are named "twin".
    """

    def __init__(self, dispatcher: str = "auto", modes: tuple[Any, ...] = (A, FALLBACK), **options: Any) -> None:
        settings.use(settings.Settings(cache_dir=settings.current().cache_dir, dispatcher=dispatcher))
        self.handle = cudnn.create_handle("cpu")
        self.g = g = cudnn.pygraph(name="mlp", io_data_type=DT.FLOAT, handle=self.handle, **options)
        self.a, self.b = g.tensor([4, 8], name="a", uid=11), g.tensor([8, 5], name="b", uid=12)
        self.c, self.d = g.tensor([1, 5], name="c", uid=13), g.tensor([5, 3], name="d", uid=14)
        self.s = g.tensor([1, 1], name="s", uid=15, is_pass_by_value=True)
        first = g.mul(g.matmul(self.a, self.b, name="up").set_name("twin"), self.s).set_name("twin")
        self.y = g.matmul(g.relu(g.add(first, self.c)), self.d, name="down").set_output(True).set_name("y").set_uid(16)
        g.build(list(modes))
        rng = np.random.default_rng(1)
        shapes = {"a": (4, 8), "b": (8, 5), "c": (1, 5), "d": (5, 3)}
        self.inputs = {k: Guarded(rng.normal(size=v).astype(np.float32)) for k, v in shapes.items()}
        self.scale = np.float32(0.75)
        self.out = Guarded(filled(4, 3))
        self.work = Guarded(filled(max(64, g.get_workspace_size()), dtype=np.uint8))

    def pack(self, **changes: Any) -> dict[Any, Any]:
        """The good pack by names, with some entries changed; ... takes one out."""
        made: dict[Any, Any] = {k: v.array for k, v in self.inputs.items()}
        made.update(s=float(self.scale), y=self.out.array)
        made.update(changes)
        return {k: v for k, v in made.items() if v is not ...}

    def snapshot(self) -> list[bytes]:
        """Every byte that a call could write, guards included."""
        return [b.raw.tobytes() for b in (*self.inputs.values(), self.out, self.work)]

    def calls(self) -> dict[str, Callable[..., object]]:
        """The ways to run a pack: f(pack, workspace, handle)."""
        g = self.g
        return {
            "execute": lambda p, w, h, **k: g.execute(p, w, h, **k),
            "at index": lambda p, w, h, **k: g.execute_plan_at_index(p, w, 0, h, **k),
            "bind": lambda p, w, h: g.bind(p, w, h)(),
        }

    def check_good(self) -> None:
        """A good call gives the float64 result and stays inside its buffers."""
        self.out.array[...] = filled(4, 3)
        self.g.execute(self.pack(), self.work.array)
        a, b, c, d = (self.inputs[k].array.astype(np.float64) for k in "abcd")
        wanted = np.maximum(a @ b * np.float64(self.scale) + c, 0) @ d
        np.testing.assert_allclose(self.out.array, wanted, rtol=2e-6, atol=2e-6)
        assert all(x.is_guarded for x in (*self.inputs.values(), self.out, self.work))
