"""Regions whose stores follow from reductions over different axes: a kernel for each set of axes, one after the other.

What no single kernel holds (the gradients of a norm over rows that are too long for a program, or at any extents) is
computed from memory once for each set. Everything that has the extent of an input is stored last, so that an output in
an input's place is written when nobody reads that any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fuseplan.engines.base import Config, KnobSpace, Support
from fuseplan.engines.forms import NOT_THIS, Form
from fuseplan.engines.triton.body import needed_for
from fuseplan.engines.triton.forms.pointwise import PointwiseForm
from fuseplan.engines.triton.forms.rows import RowsForm
from fuseplan.engines.triton.kernel import Emitted, Fill, Kernel, ParamKind
from fuseplan.engines.triton.layout import reduced_axes
from fuseplan.ir.region import Region
from fuseplan.runtime.device import Device

Part = tuple[Form[Any, Emitted], Any]
Store = tuple[int, int]


@dataclass(frozen=True)
class ApartSchedule:
    """A form and its schedule for each part, in the order in which they run."""

    parts: tuple[Part, ...]


class ApartForm:
    """A kernel, or two, for each set of reduced axes."""

    name = "apart"

    def match(self, region: Region, device: Device) -> ApartSchedule | Support:
        if region.anchors or not region.reductions:
            return NOT_THIS
        groups = _groups(region)
        if len(groups) < 2 or _may_overwrite(region, groups):
            return NOT_THIS
        parts: list[Part] = []
        for stores in groups:
            part = restricted(region, stores)
            for form in (PointwiseForm(), RowsForm()):
                found: Any = form.match(part, device)
                if not isinstance(found, Support):
                    parts.append((form, found))
                    break
            else:
                return NOT_THIS
        return ApartSchedule(tuple(parts))

    def configs(self, schedule: ApartSchedule) -> KnobSpace:
        return KnobSpace({}, ((),))

    def estimate_us(self, schedule: ApartSchedule, config: Config) -> float:
        return sum(form.estimate_us(part, ()) for form, part in schedule.parts)

    def notes(self, schedule: ApartSchedule, config: Config) -> frozenset[str]:
        return frozenset().union(*(form.notes(part, ()) for form, part in schedule.parts))

    def emit(self, schedule: ApartSchedule, config: Config) -> Emitted:
        steps: list[Kernel | Fill] = []
        used = 0
        for form, part in schedule.parts:
            made = form.emit(part, form.configs(part).default)
            steps += [_moved(step, used) for step in made.steps]
            used += -(-made.scratch_bytes // 16) * 16
        return Emitted(tuple(steps), used)


def restricted(region: Region, stores: Sequence[Store]) -> Region:
    """The region with these stores alone, and the values that they need; operands keep their numbers."""
    needed = needed_for(region, [v for v, _ in stores])
    needed = sorted({*needed, *(a for i in needed for a in region.values[i].args)})  # a count's argument has the dims
    moved = {old: new for new, old in enumerate(needed)}
    values = tuple(replace(region.values[i], args=tuple(moved[a] for a in region.values[i].args)) for i in needed)
    loads = tuple((moved[v], k) for v, k in region.loads if v in moved)
    return replace(region, values=values, loads=loads, stores=tuple((moved[v], k) for v, k in stores))


def _groups(region: Region) -> list[list[Store]]:
    """Stores by the axes of the reductions that they need; those of the largest results last."""
    found: dict[frozenset[frozenset[int]], list[Store]] = {}
    for value, operand in region.stores:
        needed = set(needed_for(region, [value])).intersection(region.reductions)
        axes = frozenset(reduced_axes(region, i) for i in needed)
        found.setdefault(axes, []).append((value, operand))
    return sorted(found.values(), key=lambda stores: max(_size(region, v) for v, _ in stores))


def _size(region: Region, value: int) -> int:
    return sum(d > 1 for d in region.values[value].dim)


def _may_overwrite(region: Region, groups: Sequence[Sequence[Store]]) -> bool:
    """Whether an output may lie in the place of an input that a later part reads."""
    for k, stores in enumerate(groups[:-1]):
        written = {o.stride for o in (region.operands[k] for _, k in stores) if o.dim == region.domain}
        later = needed_for(region, [v for group in groups[k + 1 :] for v, _ in group])
        read = [region.operands[region.operand_of[v]] for v in later if region.values[v].op == "load"]
        if any(o.dim == region.domain and o.stride in written for o in read):
            return True
    return False


def _moved(step: Kernel | Fill, by: int) -> Kernel | Fill:
    """A step whose scratch starts further on."""
    if isinstance(step, Fill):
        return replace(step, offset_bytes=step.offset_bytes + by) if step.operand < 0 else step
    params = tuple(replace(p, value=p.value + by) if p.kind is ParamKind.SCRATCH else p for p in step.params)
    return replace(step, params=params)
