"""Engines made of forms: a form is one kernel family in one file, an engine an ordered tuple of them.

A form looks at a region once; its schedule is what knobs, estimate, notes and source are made from.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

from fuseplan.codegen.writer import node_numbers
from fuseplan.engines.base import YES, Config, Executable, KnobSpace, Support, no
from fuseplan.errors import cudnnGraphNotSupportedError
from fuseplan.ir.region import Region
from fuseplan.runtime import supply
from fuseplan.runtime.device import Device

S = TypeVar("S")
SourceT = TypeVar("SourceT")
SourceT_co = TypeVar("SourceT_co", covariant=True)
V = TypeVar("V")

NOT_THIS = Support(False)  # another form's business: nothing that a user wants to read


class Form(Protocol[S, SourceT_co]):
    """One kernel family: the loop structure it has, which regions fit it, and their source."""

    name: str

    def match(self, region: Region, device: Device) -> S | Support:
        """The schedule of a region, or a "no" with its reason and the value at fault; NOT_THIS for other structures."""
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

    A subclass adds what `base.Engine` asks for beside them (name, ids, kinds of devices, limits), `unavailable`,
    `refusal` and `compile`. Equal regions share a schedule and, for one config, an executable.
    """

    name: str
    forms: tuple[Form[Any, SourceT], ...]

    def __init__(self) -> None:
        self._matched: Memo[tuple[Form[Any, SourceT], Any] | Support] = Memo()
        self._built: Memo[Executable] = Memo()

    def unavailable(self, device: Device) -> str:
        """What keeps the engine from a device at the moment (its kind, a missing tool); empty if nothing."""
        raise NotImplementedError

    def refusal(self, region: Region, device: Device) -> Support:
        """What keeps every form from a region (a type, an op), or YES."""
        raise NotImplementedError

    def compile(self, source: SourceT, region: Region, device: Device, *, aligned: bool) -> Executable:
        """The executable of a form's source (`aligned` as in `Engine.build`). Raises ToolchainError."""
        raise NotImplementedError

    def match(self, region: Region, device: Device) -> tuple[Form[Any, SourceT], Any] | Support:
        """The form that has the region and its schedule, or why there is none; looked at once."""
        return self._matched.get(_key(region, device), lambda: self._first_match(region, device))

    def _first_match(self, region: Region, device: Device) -> tuple[Form[Any, SourceT], Any] | Support:
        allowed = self.refusal(region, device)
        if not allowed.is_supported:
            return allowed
        refused: list[Support] = []
        for form in self.forms:
            found = form.match(region, device)
            if not isinstance(found, Support):
                return form, found
            if found.reason:
                refused.append(Support(False, f"{form.name}: {found.reason}", found.at))
        return furthest(refused) if refused else no("no form of this engine has such a loop structure")

    def supports(self, region: Region, device: Device) -> Support:
        if reason := self.unavailable(device):
            return no(reason)
        found = self.match(region, device)
        return found if isinstance(found, Support) else YES

    def _taken(self, region: Region, device: Device) -> tuple[Form[Any, SourceT], Any]:
        found = self.match(region, device)
        if isinstance(found, Support):
            raise cudnnGraphNotSupportedError(
                f"the {self.name} engine cannot build this region: {found.reason}", fix="take another engine's plan"
            )
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
        def make() -> Executable:
            form, schedule = self._taken(region, device)
            return self.compile(form.emit(schedule, config), region, device, aligned=aligned)

        if supply.is_given():  # files of one plan: what is made from them is no other plan's
            return make()
        return self._built.get((_key(region, device), config, aligned), make)


def _key(region: Region, device: Device) -> Hashable:
    """All that a schedule may come from; the numbers of nodes stand in comments."""
    return region.structure, region.cost, node_numbers(region.values), device


def furthest(refused: list[Support]) -> Support:
    """One refusal of several: all reasons, and the latest value that one of them names."""
    reasons = dict.fromkeys(r.reason for r in refused)
    return no("; ".join(reasons), at=max((r.at for r in refused), default=-1))
