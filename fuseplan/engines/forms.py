"""Engines made of forms: a form is one kernel family in one file, an engine an ordered tuple of them.

A form looks at a region once; its schedule is what knobs, estimate, notes and source are made from.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

from fuseplan.engines.base import YES, Config, Executable, KnobSpace, Support, no
from fuseplan.ir.region import Region
from fuseplan.runtime import supply
from fuseplan.runtime.device import Device

S = TypeVar("S")
SourceT = TypeVar("SourceT")
SourceT_co = TypeVar("SourceT_co", covariant=True)
V = TypeVar("V")


class Form(Protocol[S, SourceT_co]):
    """One kernel family: the loop structure it has, which regions fit it, and their source."""

    name: str

    def match(self, region: Region, device: Device) -> S | Support:
        """The schedule of a region, or a "no" with its reason and, where one value is at fault, that value."""
        ...

    def configs(self, schedule: S) -> KnobSpace:
        """The choices for a schedule, defaults first."""
        ...

    def estimate_us(self, schedule: S, config: Config) -> float:
        """Expected time in microseconds."""
        ...

    def notes(self, schedule: S, config: Config) -> frozenset[str]:
        """Names of the numerical notes that hold (see `Engine.notes`)."""
        ...

    def emit(self, schedule: S, config: Config) -> SourceT_co:
        """The kernels as source, and what they are called with."""
        ...


class Memo(Generic[V]):
    """A bounded dict of what was made from a key; emptied when it is full."""

    def __init__(self, limit: int = 4096) -> None:
        self._limit, self._found = limit, dict[Hashable, V]()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        found = self._found.get(key)
        if found is None:
            found = make()
            if len(self._found) >= self._limit:
                self._found.clear()
            self._found[key] = found
        return found


class FormEngine(Generic[SourceT]):
    """The methods of an engine that follow from its forms; the first form that matches has the region.

    A subclass adds what `base.Engine` asks for beside them (name, ids, kinds of devices, limits), `refusal`
    and `compile`.
    """

    forms: tuple[Form[Any, SourceT], ...]

    def __init__(self) -> None:
        self._matched: Memo[tuple[Form[Any, SourceT], Any] | Support] = Memo()

    def refusal(self, region: Region, device: Device) -> str:
        """What keeps every form from this region or device (a missing tool, a type); empty if nothing."""
        raise NotImplementedError

    def compile(self, source: SourceT, region: Region, device: Device, *, aligned: bool) -> Executable:
        """The executable of a form's source (`aligned` as in `Engine.build`). Raises ToolchainError."""
        raise NotImplementedError

    def match(self, region: Region, device: Device) -> tuple[Form[Any, SourceT], Any] | Support:
        """The form that has the region and its schedule, or why there is none; looked at once."""
        key = (region.structure, device, supply.is_given())
        return self._matched.get(key, lambda: self._first_match(region, device))

    def _first_match(self, region: Region, device: Device) -> tuple[Form[Any, SourceT], Any] | Support:
        if reason := self.refusal(region, device):
            return no(reason)
        refused: list[Support] = []
        for form in self.forms:
            found = form.match(region, device)
            if not isinstance(found, Support):
                return form, found
            refused.append(Support(False, f"{form.name}: {found.reason}", found.at))
        return furthest(refused)

    def supports(self, region: Region, device: Device) -> Support:
        found = self.match(region, device)
        return found if isinstance(found, Support) else YES

    def _taken(self, region: Region, device: Device) -> tuple[Form[Any, SourceT], Any]:
        found = self.match(region, device)
        assert not isinstance(found, Support), found.reason
        return found

    def knobs(self, region: Region, device: Device) -> KnobSpace:
        form, schedule = self._taken(region, device)
        return form.configs(schedule)

    def estimate_us(self, region: Region, device: Device, config: Config) -> float:
        form, schedule = self._taken(region, device)
        return form.estimate_us(schedule, config)

    def notes(self, region: Region, device: Device, config: Config) -> frozenset[str]:
        form, schedule = self._taken(region, device)
        return form.notes(schedule, config)

    def build(self, region: Region, device: Device, config: Config, *, aligned: bool = True) -> Executable:
        form, schedule = self._taken(region, device)
        return self.compile(form.emit(schedule, config), region, device, aligned=aligned)


def furthest(refused: list[Support]) -> Support:
    """One refusal of several: all reasons, and the latest value that one of them names."""
    reasons = dict.fromkeys(r.reason for r in refused)
    return no("; ".join(reasons), at=max((r.at for r in refused), default=-1))
