"""One program that computes what follows from reductions which many programs added up.

`results` is a hole: a generated kernel has its own. Run alone, y = sqrt(x).
"""

import triton  # import here: kernel files are read as text, or run alone
import triton.language as tl  # import here: as above


@triton.jit
def results(params, INDEX_BITS: tl.constexpr):
    """Values without extent."""
    x, y = params
    tl.store(y, tl.sqrt(tl.load(x)))


@triton.jit
def finish(x, y, INDEX_BITS: tl.constexpr):
    results((x, y), INDEX_BITS)
