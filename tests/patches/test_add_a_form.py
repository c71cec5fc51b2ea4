"""Adding a form touches its file and the tuple of its engine: an import and an entry."""

from __future__ import annotations

import pytest

from tests.patches.patching import ROOT, Copy

FORM = '''"""Copies: a region that only moves packed memory of one type is one memcpy."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from fuseplan.engines.base import Config, KnobSpace, Support
from fuseplan.engines.cpu_c.source import Arguments, Source
from fuseplan.engines.forms import NOT_THIS
from fuseplan.ir.graph import packed_stride
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device

TEXT = """
#include <stdint.h>
#include <string.h>
struct fp_task;
{block}
int fp_copy(const void *block, const struct fp_task *task) {{
  const struct args *p = block;
  (void)task;
  memcpy(p->y, p->x, p->num_bytes);
  return 0;
}}
"""


@dataclass(frozen=True)
class CopySchedule:
    """Which operand is copied into which, and how much."""

    source: int
    target: int
    num_bytes: int
    device: Device


class CopyForm:
    """One memcpy, as one task."""

    name = "copy"

    def match(self, region: Region, device: Device) -> CopySchedule | Support:
        if len(region.operands) != 2 or any(v.op not in ("load", "cast") for v in region.values):
            return NOT_THIS
        types = {t for v in region.values for t in (v.dtype, v.compute)} | {o.dtype for o in region.operands}
        shapes = {(o.dim, o.stride, o.offset) for o in region.operands}
        dim = region.operands[0].dim
        if len(types) > 1 or shapes != {(dim, packed_stride(dim), 0)} or not (region.loads and region.stores):
            return NOT_THIS
        (_, source), (_, target) = region.loads[0], region.stores[0]
        return CopySchedule(source, target, prod(dim) * region.operands[0].dtype.itemsize, device)

    def configs(self, schedule: CopySchedule) -> KnobSpace:
        return KnobSpace()

    def estimate_us(self, schedule: CopySchedule, config: Config) -> float:
        return 0.5 + 2 * schedule.num_bytes / (schedule.device.memory_gbps * 1e3)

    def notes(self, schedule: CopySchedule, config: Config) -> frozenset[str]:
        return frozenset()

    def emit(self, schedule: CopySchedule, config: Config) -> Source:
        args = Arguments()
        args.pointer("x", "const char", schedule.source)
        args.pointer("y", "char", schedule.target)
        args.number("num_bytes", schedule.num_bytes)
        template, patches = args.block()
        text = TEXT.format(block="\\n".join(args.struct_lines()))
        return Source(text, "fp_copy", template, patches, 0, 1, self.estimate_us(schedule, config))
'''
CHECK = """
import random
from fuseplan import dtypes
from fuseplan.testing.random_graphs import GraphMaker
from fuseplan.testing.run import build_on, judge_engines

for stride, expected in (((35, 7, 1), "fp_copy"), ((1, 3, 15), "other")):
    maker = GraphMaker(random.Random(0))
    maker.node("identity", {"input": maker.input((3, 5, 7), dtypes.FLOAT, stride)})
    graph = maker.finish()
    (launch,) = build_on(graph, "cpu_c").program.launches
    assert (launch.symbol == "fp_copy") is (expected == "fp_copy"), launch.symbol
    verdict = judge_engines(graph, ["cpu_c"], 1)["cpu_c"]
    assert verdict.is_right, verdict.message
print("right")
"""
ENGINE = "fuseplan/engines/cpu_c/engine.py"
FORMS = ROOT / "fuseplan" / "engines" / "cpu_c" / "forms"


@pytest.mark.skipif(not FORMS.is_dir(), reason="the engine cpu_c is not made of forms yet")
def test_new_form_touches_its_file_and_the_tuple_of_its_engine(copy: Copy) -> None:
    copy.write("fuseplan/engines/cpu_c/forms/copy.py", FORM)
    copy.insert(
        ENGINE, "from fuseplan.engines.cpu_c.forms.matmul ", "from fuseplan.engines.cpu_c.forms.copy import CopyForm\n"
    )
    copy.insert(ENGINE, "MatmulForm(), ", "CopyForm(), ")
    assert copy.touched() == {ENGINE: 1, "fuseplan/engines/cpu_c/forms/copy.py": len(FORM.splitlines())}
    copy.write("check.py", CHECK)
    assert copy.run("check") == "right\n"
    copy.pytest("tests/unit/test_structure.py", "-k", "imports or engines_are_named")
    copy.pytest("tests/ops/test_engines.py", "-k", "cpu_c and (identity or matmul or abs)")
