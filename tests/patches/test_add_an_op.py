"""A new op touches its entry, its oracle, the stubs and the changelog; every test that draws takes it by its entry."""

from __future__ import annotations

import pytest

from tests.patches.patching import Copy

ENTRY = """        FloatRow(
            "softcap", _IN, lambda xp, x, *, cap: cap * xp.tanh(x / cap),
            lambda b, x, *, cap: b.emit("mul", b.emit("tanh", b.emit("div", x, b.const(cap))), b.const(cap)),
            "cap tanh(x / cap).", 10, attrs=(Attr("cap", "float", is_required=True),),
            domain=Domain(attr_sets=({"cap": 1.0}, {"cap": 30.0}), bad_attrs=({"cap": None},)),
        ),
"""
ORACLE = """        "softcap": ("y", lambda v, t: _attr(v, "cap") * torch.tanh(t["input"] / _attr(v, "cap"))),
"""
FUZZ = """
import sys
from fuseplan.testing.fuzz import KINDS, MAX_UNDECIDED
from fuseplan.testing.run import judge_engines

kind, count, engines, start = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(","), int(sys.argv[4])
drawn, shares = 0, []
seed = start
while drawn < count:
    graph = KINDS[kind](seed)
    if any(node.op == "softcap" for node in graph.nodes):
        drawn += 1
        for name, verdict in judge_engines(graph, engines, seed).items() if engines != [""] else ():
            assert verdict.is_right, (kind, seed, name, verdict.message)
            shares.append(verdict.num_undecided / max(1, verdict.num_elements))
    seed += 1
    assert seed < start + 40 * count, f"drawn in {drawn} of {seed - start} graphs only"
assert sum(shares) <= MAX_UNDECIDED[kind] * len(shares)  # of a graph, so that a large one does not stand for all
print("drawn", drawn)
"""


@pytest.fixture
def softcap(copy: Copy) -> Copy:
    copy.insert("fuseplan/ops/pointwise_unary.py", '        ExactRow(\n            "gen_index"', ENTRY)
    copy.insert("tests/ops/oracles.py", '        "gen_index": ("y", _gen_index),\n', ORACLE)
    copy.insert("CHANGELOG.md", "- Engines: generated C", "- `softcap`.\n")
    copy.run("scripts.make_stubs")
    return copy


def test_new_op_touches_four_files_and_passes_the_tests_of_ops(softcap: Copy) -> None:
    assert set(softcap.touched()) == {
        "fuseplan/ops/pointwise_unary.py", "fuseplan/api/methods.pyi", "tests/ops/oracles.py", "CHANGELOG.md",
    }  # fmt: skip
    softcap.pytest("tests/ops", "tests/unit/api/test_stubs.py", "-k", "softcap or stubs")


@pytest.mark.full
@pytest.mark.parametrize("kind", ["smooth", "wide"])
def test_new_op_is_drawn_into_random_graphs_and_none_raises(softcap: Copy, kind: str) -> None:
    softcap.write("draw.py", FUZZ)
    assert softcap.run("draw", kind, "300", "", "0") == "drawn 300\n"
    assert softcap.run("draw", kind, "40", "array", "0") == "drawn 40\n"
    assert softcap.run("draw", kind, "4", "cpu_c", "0") == "drawn 4\n"


@pytest.mark.full
@pytest.mark.parametrize("start", range(0, 12000, 2000))
@pytest.mark.parametrize("kind", ["smooth", "wide"])
def test_new_op_is_right_in_many_random_graphs(softcap: Copy, kind: str, start: int) -> None:
    """300 graphs of a kind in six parts; each takes its first 50 graphs with the op from 2000 seeds of its own."""
    softcap.write("draw.py", FUZZ)
    assert softcap.run("draw", kind, "50", "array,cpu_c", str(start)) == "drawn 50\n"
