"""Adding an engine with a foreign library touches one folder and one line of the registry."""

from __future__ import annotations

from tests.patches.patching import Copy

ENGINE = '''"""The C library's own functions of one argument, called through the launcher."""

from __future__ import annotations

import ctypes
import ctypes.util
import struct

from fuseplan.dtypes import DOUBLE
from fuseplan.engines.base import YES, Config, Executable, FusionLimits, KnobSpace, Support, no
from fuseplan.ir.graph import packed_stride
from fuseplan.ir.region import Region
from fuseplan.runtime import toolchain
from fuseplan.runtime.device import Device
from fuseplan.runtime.launch import Launch, LaunchKind, Patch, PatchKind

TAKES = frozenset({"erf", "tanh", "exp", "log"})
SHIM = """
#include <stdint.h>
int run(const void *block, void *stream) {
  const struct { const double *x; double *y; int64_t n; double (*f)(double); } *p = block;
  (void)stream;
  if (!p->f) return 1;
  for (int64_t i = 0; i < p->n; ++i) p->y[i] = p->f(p->x[i]);
  return 0;
}
"""


class LibmEngine:
    name = "libm"
    engine_ids = range(20900, 20901)
    device_kinds = frozenset({"cpu"})
    is_general = False
    is_compiled = True

    def limits(self, device: Device) -> FusionLimits:
        return FusionLimits(ops=TAKES, max_nodes=1)

    def supports(self, region: Region, device: Device) -> Support:
        if [n.op for n in region.graph.nodes if n.op not in TAKES] or len(region.graph.nodes) != 1:
            return no(f"it runs one of {sorted(TAKES)}")
        for t in region.graph.tensors.values():
            if t.dtype is not DOUBLE or t.stride != packed_stride(t.dim):
                return no(f"tensor {t.name!r} is not packed DOUBLE")
        return YES

    def knobs(self, region: Region, device: Device) -> KnobSpace:
        return KnobSpace()

    def build(self, region: Region, device: Device, config: Config, *, aligned: bool = True) -> Executable:
        library = ctypes.CDLL(ctypes.util.find_library("m"))
        function = ctypes.cast(library[region.graph.nodes[0].op], ctypes.c_void_p).value
        (spec,) = {t.numel for t in region.graph.tensors.values()}
        is_read = [not operand.role.is_written for operand in region.operands]
        patches = tuple(Patch(PatchKind.POINTER, 0 if read else 8, slot) for slot, read in enumerate(is_read))
        launch = Launch(
            LaunchKind.LIBRARY, bytes(16) + struct.pack("qQ", spec, function), patches,
            toolchain.compile_shared(SHIM, label="libm"), "run", label="libm", owner=library,
            status_text=lambda status: "the library lacks the function",
        )
        return Executable((launch,))

    def estimate_us(self, region: Region, device: Device, config: Config) -> float:
        return region.cost.flops / 1e3

    def notes(self, region: Region, device: Device, config: Config) -> frozenset[str]:
        return frozenset()


ENGINE = LibmEngine()
'''
CHECK = """
from fuseplan import dtypes
from fuseplan.engines.registry import engines_for
from fuseplan.ir.graph import DraftTensor
from fuseplan.testing.random_graphs import GraphMaker
from fuseplan.testing.run import build_on, judge_engines
import random

maker = GraphMaker(random.Random(0), dtypes.DOUBLE, dtypes.DOUBLE)
maker.builder.compute_dtype = dtypes.DOUBLE
x = maker.input((3, 5, 7), dtypes.DOUBLE, (35, 7, 1))
y, = maker.node("erf", {"input": x})
maker.node("add", {"a": maker.node("exp", {"input": y})[0], "b": x})
graph = maker.finish()
assert "libm" in [e.name for e in engines_for("cpu")]
labels = [launch.label for launch in build_on(graph, "libm").program.launches]
assert labels.count("libm") == 2, labels
verdict = judge_engines(graph, ["libm"], 1)["libm"]
assert verdict.is_right, verdict.message
print("right")
"""


def test_new_engine_touches_its_folder_and_one_line(copy: Copy) -> None:
    copy.write("fuseplan/engines/libm/__init__.py", "")
    copy.write("fuseplan/engines/libm/engine.py", ENGINE)
    copy.insert("fuseplan/engines/registry.py", '    Line("array",', '    Line("libm", CPU),\n')
    touched = copy.touched()
    assert {file for file in touched if not file.startswith("fuseplan/engines/libm/")} == {
        "fuseplan/engines/registry.py"
    }
    assert touched["fuseplan/engines/registry.py"] == 1
    copy.write("check.py", CHECK)
    assert copy.run("check") == "right\n"
    copy.pytest("tests/unit/test_structure.py", "-k", "imports or engines_are_named")
    copy.pytest("tests/ops/test_engines.py", "-k", "libm and (erf or tanh or add)")
