"""What all forms of this engine have in common: there is one way to compute a schedule, and it rounds as it says."""

from __future__ import annotations

from typing import Protocol

from fuseplan.engines.base import Config, KnobSpace


class Timed(Protocol):
    """A schedule that knows its expected time in microseconds."""

    @property
    def expected_us(self) -> float: ...


class OneWayForm:
    """A form without choices and numerical notes; a subclass has the rest of `engines.forms.Form`."""

    def configs(self, schedule: Timed) -> KnobSpace:
        return KnobSpace()

    def estimate_us(self, schedule: Timed, config: Config) -> float:
        return schedule.expected_us

    def notes(self, schedule: Timed, config: Config) -> frozenset[str]:
        return frozenset()
