"""Which keys the queries of a tile see, and lists of tiles for programs that walk several."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from fuseplan.ir.attention import Attention

ROWS = 128  # queries of a tile
_TILE_COST = 0.7  # of what a tile costs beside its blocks of keys, in blocks of 128


@dataclass(frozen=True)
class Bounds:
    """Which keys a query sees, its shift included: ``column <= row + right`` and ``column + left > row``."""

    rows: int
    columns: int
    right: int | None
    left: int | None

    @staticmethod
    def of(attention: Attention) -> Bounds:
        """The bounds of an attention whose sequences have one length."""
        right, left = attention.right, attention.left
        if attention.is_bottom:
            shift = attention.columns - attention.rows
            right = None if right is None else right + shift
            left = None if left is None else left - shift
        return Bounds(attention.rows, attention.columns, right, left)

    @property
    def tiles(self) -> int:
        """Tiles of queries."""
        return -(-self.rows // ROWS)

    def cuts(self, block_n: int) -> int:
        """The cases of `cut` in the kernel."""
        found = 0
        if self.right is not None:
            found += 1
        if self.left is not None:
            found += 2
        if self.columns % block_n:
            found += 4
        return found

    def edges(self, block_n: int) -> tuple[int, int]:
        """How many blocks of a tile a right and a left bound cut, at most; the first one counts in any case."""
        right = _crossed(self.right, block_n)
        left = _crossed(self.left, block_n)
        return max(1, right), left

    def is_seen(self, row: int, column: int) -> bool:
        """Whether a score counts."""
        if self.right is not None and column > row + self.right:
            return False
        if self.left is not None and column + self.left <= row:
            return False
        return column < self.columns

    def blocks(self, m: int, block_n: int) -> tuple[int, int]:
        """First and last + 1 of the blocks of keys of a tile of queries; one at least."""
        first_row = m * ROWS
        last_row = first_row + ROWS - 1
        first, last = 0, -(-self.columns // block_n)
        if self.right is not None:
            end = (last_row + self.right) // block_n + 1
            last = max(1, min(last, end))
        if self.left is not None:
            start = max(0, first_row + 1 - self.left) // block_n
            first = min(start, last - 1)
        return first, last

    @property
    def is_triangle(self) -> bool:
        """Whether the first block of every tile lies with its diagonal on the right bound, and nothing else cuts it."""
        if self.right is None or self.left is not None:
            return False
        if self.right < 0 or self.right % ROWS:
            return False
        blocks_of_keys = -(-self.columns // ROWS)
        return self.tiles + self.right // ROWS <= blocks_of_keys

    def cost(self, m: int, block_n: int) -> float:
        """What a tile costs, in blocks of 128 keys."""
        first, last = self.blocks(m, block_n)
        return (last - first) * block_n / ROWS + _TILE_COST


def _crossed(bound: int | None, block_n: int) -> int:
    """Blocks of keys that a bound crosses over the queries of a tile."""
    if bound is None:
        return 0
    is_between = bound % block_n > 0
    return ROWS // block_n + is_between


def tile_lists(
    bounds: Bounds, heads: int, order: int, programs: int, block_n: int
) -> list[int]:
    """The tiles of each program, as a table with a column a program: their number, then ``head << 16 | tile``.

    Heads in groups of `order`, whose keys and values stay in the L2 cache; the longest tiles of a group come first,
    each goes to the program with the least to do.

    Args:
        heads: of all batches
    """
    costs = [bounds.cost(m, block_n) for m in range(bounds.tiles)]
    longest_first = sorted(range(bounds.tiles), key=lambda m: (-costs[m], -m))
    work = [(0.0, program) for program in range(programs)]
    lists: list[list[int]] = [[] for _ in range(programs)]
    for group in range(0, heads, order):
        for m in longest_first:
            for head in range(group, min(group + order, heads)):
                load, program = work[0]
                lists[program].append(head << 16 | m)
                heapq.heapreplace(work, (load + costs[m], program))
    rows = max(map(len, lists)) + 1  # one more is read ahead
    found = [len(own) for own in lists]
    for i in range(rows):
        found += [own[i] if i < len(own) else 0 for own in lists]
    return found
