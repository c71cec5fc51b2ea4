"""The convolution at several batch sizes, with one kernel cache: later builds compile nothing."""

from __future__ import annotations

import time

import fuseplan
from fuseplan.cli.tour.convolution import SIZES, conv_relu
from fuseplan.cli.tour.setting import Outcome, Setting

BATCHES = {"tiny": (2, 3), "small": (2, 3, 4, 5), "tutorial": (8, 16, 24, 32)}


def run(at: Setting) -> Outcome:
    _, c, size, k = SIZES[at.size]
    at.say("problem", f"N {BATCHES[at.size]}, C{c} {size}x{size}, K{k} 3x3, one kernel cache")
    cache = fuseplan.create_kernel_cache()
    taken, worst = [], 0.0
    for n in BATCHES[at.size]:
        g, pack, want = conv_relu(at, n, kernel_cache=cache, is_dynamic_shape_enabled=True)
        start = time.perf_counter()
        g.build()
        taken.append((time.perf_counter() - start) * 1e3)
        at.say(f"N = {n}", f"built in {taken[-1]:.1f} ms, {g.inspect()['selected_plan']}")
        at.run(g, pack)
        worst = max(worst, at.compare(g, pack, list(pack)[-1], want))
    later = sum(taken[1:]) / len(taken[1:])
    return Outcome(worst, None, None, f"first build {taken[0]:.1f} ms, later {later:.1f} ms")
