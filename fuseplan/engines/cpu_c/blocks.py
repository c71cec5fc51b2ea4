"""What the forms with an anchor share: rows and blocks of sums, what is computed in front of anchors, the epilogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fuseplan.codegen import c_expr
from fuseplan.codegen.axes import MergedAxis, separate
from fuseplan.engines.base import YES, Support, no
from fuseplan.engines.cpu_c.dataflow import depends_on, needed_for
from fuseplan.engines.cpu_c.elements import (
    GlobalReductions,
    domain_refusal,
    element_stores,
    global_reductions,
    most_tasks,
    reductions_refusal,
    write_elements,
)
from fuseplan.engines.cpu_c.estimate import expected_us, work_us
from fuseplan.engines.cpu_c.frame import Frame
from fuseplan.engines.cpu_c.source import Holes
from fuseplan.engines.cpu_c.tiling import Tiling, rows_of, stores_vary, write_positions
from fuseplan.ir.anchors import ANCHORS
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device

BLOCK = 64  # sums of one block: a few vector registers' worth
AT = ("const struct args *p", "const struct position *at")
_EPILOGUE = (*AT, "int64_t first", "int64_t width", "ACC acc[][BLOCK]")


@dataclass(frozen=True)
class BlockSchedule:
    """How a region with anchors is computed.

    Args:
        axes: loops; blocks of sums run along the last one
        anchors: values that are anchors, in order; the q-th has the sums ``acc[q]``
        reduces: reductions over the elements
    """

    region: Region
    axes: tuple[MergedAxis, ...]
    anchors: tuple[int, ...]
    reduces: tuple[int, ...]
    tiling: Tiling
    work_us: float
    expected_us: float

    @property
    def labels(self) -> tuple[int, ...]:
        """Each loop is named by its axis in the region."""
        return tuple([axis.axes[0] for axis in self.axes])


def blocks_refusal(region: Region, op: str) -> Support:
    """Why the anchors of a region, all of which should be `op`, cannot share its loops, or YES."""
    after = depends_on(region, [r for r in region.reductions if _reduces(region, r)])
    first = region.values[region.anchors[0]]
    for i in region.anchors:
        v = region.values[i]
        if v.op != op:
            return no(f"value {i} is {v.op}: an anchor of another kind than {op}", at=i)
        if c_expr.KIND[v.compute.name] != c_expr.KIND[first.compute.name]:
            return no(
                f"value {i} ({op}) adds up in {v.compute}, another anchor in {first.compute}",
                at=i,
            )
        for j in region.anchors:
            if j != i and depends_on(region, [j])[i]:
                return no(
                    f"of two anchors one reads the other: value {i} ({op}) needs value {j}",
                    at=i,
                )
        for a in v.args:
            if after[a]:
                return no(
                    f"value {i} ({op}) reads value {a} ({region.values[a].op}), which needs a reduction",
                    at=i,
                )
    for fit in (_written_refusal(region), domain_refusal(region)):
        if not fit.is_supported:
            return fit
    return reductions_refusal(region)


def _written_refusal(region: Region) -> Support:
    """No task may read as a factor what another one writes as a result."""
    written = {o.uid for o in region.operands if o.role.is_written}
    for i in region.anchors:
        for a in needed_for(region, region.values[i].args, is_anchor(region)):
            k = region.operand_of.get(a, -1)
            if k >= 0 and region.operands[k].uid in written:
                return no(
                    f"value {i} ({region.values[i].op}) reads operand {k}, which the kernel writes",
                    at=i,
                )
    return YES


def _reduces(region: Region, reduce: int) -> bool:
    v = region.values[reduce]
    return any(region.values[v.args[0]].dim[a] != 1 for a in v.axes)


def schedule_blocks(
    region: Region, device: Device, block_axis: int, keep: Sequence[int] = ()
) -> BlockSchedule:
    """The schedule of a region that `blocks_refusal` has nothing against.

    Args:
        keep: further axes that are loops even if their extent is 1
    """
    rank = len(region.domain)
    order = [*(a for a in range(rank) if a != block_axis), block_axis]
    axes = tuple(separate(region.domain, order, keep=(block_axis, *keep)))
    reduces = global_reductions(region)
    work = work_us(region)
    tiling = Tiling(rows_of(axes[:-1]), axes[-1].count, BLOCK)
    if stores_vary(region, [i for i, _ in element_stores(region, reduces)], axes):
        tiling = tiling.divided(work, most=most_tasks(region, reduces))
    us = expected_us(region, device, tiling.num_tasks)
    return BlockSchedule(region, axes, region.anchors, reduces, tiling, work, us)


def begin_blocks(
    schedule: BlockSchedule,
    anchor_name: str,
    block: int | str = BLOCK,
    factor: str = "",
) -> Holes:
    """The holes that say how many anchors there are, how they add up, and where a row is.

    Args:
        block: what `BLOCK` is in the kernel: the most elements that the epilogue gets at a time
        factor: C type of a factor, if it is not that of a sum
    """
    holes = Holes(schedule.region)
    compute = schedule.region.values[schedule.anchors[0]].compute
    acc = c_expr.MAIN_LOOP[c_expr.KIND[compute.name]]
    holes.macro("BLOCK", block)
    holes.macro(f"{anchor_name}S", len(schedule.anchors))
    holes.macro(
        f"EACH_{anchor_name}(DO)",
        " ".join([f"DO({q})" for q in range(len(schedule.anchors))]),
    )
    holes.macro("ACC", acc.ctype)
    holes.macro("FACTOR", factor or c_expr.CARRIER[acc.dtype.name])
    holes.macro(
        "MULTIPLY_ADD(x, y, sum)", acc.update.format(x="(x)", y="(y)", a="(sum)")
    )
    holes.macro("HAS_REDUCTIONS", int(bool(schedule.reduces)))
    write_positions(holes, schedule.tiling, schedule.axes[:-1], schedule.labels[:-1])
    return holes


def write_load(
    holes: Holes, argument: int, anchor: int, index: Mapping[int, str]
) -> str:
    """The body of a load hole: an anchor's argument at one position, with what is computed in front of it.

    Args:
        index: C text of the position on each axis of the region; where the argument has extent 1 there is none
    """
    region = holes.region
    v = region.values[argument]
    axes = separate(v.dim, range(len(v.dim)))
    frame = Frame(
        holes,
        axes,
        [index[axis.axes[0]] for axis in axes],
        [axis.axes[0] for axis in axes],
    )
    for i in needed_for(region, [argument], [False] * len(region.values)):
        frame.value(i)
    frame.writer.line(
        f"return {c_expr.argument(f'v{argument}', v.dtype, region.values[anchor].compute)};"
    )
    return frame.writer.text()


def outer_index(schedule: BlockSchedule) -> dict[int, str]:
    """C text of the position on every axis that a row has a position on."""
    return {a: f"at->i{a}" for a in schedule.labels[:-1]}


def finish_blocks(
    holes: Holes, schedule: BlockSchedule, has_lanes: bool = False
) -> None:
    """The holes `epilogue`, `begin` and `finish`.

    Args:
        has_lanes: reductions to one result have one for each column of a block until the task ends
    """
    sums = GlobalReductions(
        holes, schedule.axes, schedule.labels, schedule.reduces, schedule.tiling
    )
    index = [*outer_index(schedule).values(), "(first + j)"]
    frame = Frame(holes, schedule.axes, index, schedule.labels)
    texts = {i: f"acc[{q}][j]" for q, i in enumerate(schedule.anchors)}
    loop = "for (int64_t j = 0; j < width; ++j) {"
    parameters: tuple[str, ...] = _EPILOGUE
    if has_lanes:
        sums.write_lanes()
        parameters = (*_EPILOGUE, "struct lanes *restrict lanes")
    write_elements(frame, loop, sums, texts)
    holes.function("void", "epilogue", parameters, frame.writer)
    sums.write_begin()
    sums.write_finish()


def is_anchor(region: Region) -> list[bool]:
    """For each value, whether it is an anchor."""
    return [v.op in ANCHORS for v in region.values]


def largest_load(region: Region, argument: int) -> int:
    """The operand that an anchor's argument reads most elements of, -1 if it reads none."""
    found = needed_for(region, [argument], is_anchor(region))
    loads: Sequence[int] = [
        region.operand_of[i] for i in found if i in region.operand_of
    ]
    return max(
        loads, key=lambda k: sum(d != 1 for d in region.operands[k].dim), default=-1
    )


__all__ = [
    "AT",
    "BLOCK",
    "BlockSchedule",
    "YES",
    "begin_blocks",
    "blocks_refusal",
    "finish_blocks",
    "largest_load",
    "outer_index",
    "schedule_blocks",
    "write_load",
]
