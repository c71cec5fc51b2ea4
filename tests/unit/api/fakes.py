"""A list of plans that builds nothing, for tests of choosing."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from fuseplan.errors import ToolchainError, cudnnGraphNotSupportedError


@dataclass
class FakeEntry:
    """An entry; `outcome` is what building it raises, or its workspace in bytes."""

    name: str
    engine_id: int
    outcome: Any = 0
    knobs: dict[str, int] = field(default_factory=dict)
    behavior_notes: tuple[str, ...] = ()
    numeric_notes: tuple[str, ...] = ()
    barred: str = ""


class FakePlans:
    """Stands in for a PlanList and counts what was built."""

    def __init__(self, entries: list[FakeEntry], modes: tuple[str, ...] = ()) -> None:
        self.entries, self.modes = entries, modes
        self.refusals = ["cpu: too small", "gpu: absent"]
        self.built: list[int] = []

    def append(self, engine_id: int, knobs: dict[str, int]) -> int:
        if engine_id < 0:
            raise cudnnGraphNotSupportedError(f"no engine has id {engine_id}")
        self.entries.append(FakeEntry("appended", engine_id, knobs=knobs))
        return len(self.entries) - 1

    def build(self, index: int) -> Any:
        entry = self.entries[index]
        if isinstance(entry.outcome, Exception):
            raise entry.outcome
        self.built.append(index)
        return SimpleNamespace(name=entry.name, engine_name=entry.name.split("[")[0], workspace_bytes=entry.outcome)

    def again(self, plan: Any) -> list[int]:
        return sorted(range(len(self.entries)), key=lambda k: (self.entries[k].name != plan.name, k))

    def explain(self) -> str:
        return "fake ranking"


def entries() -> list[FakeEntry]:
    """Six plans: one that declines, one whose tool-chain fails, four that build."""
    return [
        FakeEntry("fast[TILE_M=64]", 20100, cudnnGraphNotSupportedError("needs a GPU"), {"TILE_M": 64}),
        FakeEntry("quick[TILE_M=64, own=2]", 20200, 4096, {"TILE_M": 64, "own": 2}, ("RUNTIME_COMPILATION",)),
        FakeEntry("quick[TILE_M=128, own=1]", 20200, 64, {"TILE_M": 128, "own": 1}, (), ("TENSOR_CORE",)),
        FakeEntry("broken", 20300, ToolchainError("no compiler")),
        FakeEntry("library", 7, 0, {}, (), ("TENSOR_CORE", "NONDETERMINISTIC")),
        FakeEntry("general", 20000, 0),
    ]
