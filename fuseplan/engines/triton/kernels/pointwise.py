"""Elements in blocks: a program computes neighbouring positions of the domain.

`elements` is a hole: a generated kernel has its own. Run alone, y = relu(x).
"""

import triton  # import here: kernel files are read as text, or run alone
import triton.language as tl  # import here: as above


@triton.jit
def elements(params, pid, i, inside, BLOCK: tl.constexpr, MERGED: tl.constexpr):
    """All values at positions `i`; where MERGED, the last axis alone has all positions of the domain."""
    x, y = params
    tl.store(y + i, tl.maximum(tl.load(x + i, mask=inside, other=0.0), 0.0), mask=inside)


@triton.jit
def block_of_elements(params, count, BLOCK: tl.constexpr, MERGED: tl.constexpr, INDEX_BITS: tl.constexpr):
    """The work of one program."""
    index: tl.constexpr = tl.int64 if INDEX_BITS == 64 else tl.int32
    pid = tl.program_id(0)
    i = pid.to(index) * BLOCK + tl.arange(0, BLOCK)
    elements(params, pid, i, i < count, BLOCK, MERGED)


@triton.jit
def pointwise(x, y, count, BLOCK: tl.constexpr, MERGED: tl.constexpr, INDEX_BITS: tl.constexpr):
    block_of_elements((x, y), count, BLOCK, MERGED, INDEX_BITS)
