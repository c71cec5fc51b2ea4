"""Runs a built plan: finds the dispatcher and binds; no validation of its own, no choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fuseplan.dtypes import BOOLEAN
from fuseplan.errors import BindError, MisalignedError
from fuseplan.plan.in_place import Reads
from fuseplan.plan.packed_bits import BoundBits, PackedBits
from fuseplan.plan.plan import BuiltPlan
from fuseplan.plan.writes import Writes
from fuseplan.runtime.buffers import run_length
from fuseplan.runtime.dispatch import make_dispatcher
from fuseplan.runtime.dispatch.binding import Binder, Normalise
from fuseplan.runtime.launch import Program


class Runner:
    """A plan ready to be called with packs.

    Args:
        plan: the built plan
        keys: uid -> what a pack may call that tensor (tensor object, uid, name)
        defaults: uid -> buffer used when a pack has no entry for it
        normalise: makes a dict by uid of any other form of pack; raises what is wrong with it
        general: makes the plan without promises on addresses, for buffers that miss an alignment
        inner_keys: what names a tensor that no buffer can be given for; `normalise` judges such a pack
    """

    def __init__(self, plan: BuiltPlan, keys: Mapping[int, tuple[object, ...]], defaults: Mapping[int, object],
                 normalise: Normalise, general: Callable[[BuiltPlan], BuiltPlan] | None = None,
                 inner_keys: Iterable[object] = ()) -> None:  # fmt: skip
        self.plan, self._inner_keys = plan, inner_keys
        self._keys, self._defaults, self._normalise, self._general = keys, defaults, normalise, general
        self._dispatcher = self._make(plan.program)
        self._unaligned: Any = None

    def _make(self, program: Program) -> Any:
        return make_dispatcher(program, *self._binding(program))

    def _binding(self, program: Program) -> tuple[Any, ...]:
        keys = [self._keys.get(s.uid, (s.uid,)) for s in program.slots]
        defaults = [self._defaults.get(s.uid) for s in program.slots]
        specs = [self.plan.graph.tensors.get(s.uid) for s in program.slots]
        runs = [run_length(t.dim, t.stride) * t.dtype.bits // 8 if t is not None else 0 for t in specs]
        layouts = [None if t is None else (t.dim, t.stride) for t in specs]
        writes = Writes(program.slots, layouts, Reads([a.region for a, _ in self.plan.parts]))
        return keys, defaults, self._normalise, runs, self._inner_keys, writes

    def execute(self, pack: Any, workspace: Any, stream: int) -> None:
        """Check type, device and byte span of each buffer, then run.

        Raises:
            BindError: a buffer is missing or does not fit; nothing was written
        """
        try:
            self._dispatcher.execute(pack, workspace, stream)
        except BindError as problem:
            bits = self._packed_bits(pack, stream, is_bound=False)
            if bits:
                bits.run(lambda: self.execute(bits.pack, workspace, stream))
            elif isinstance(problem, MisalignedError):
                self._any_alignment().execute(pack, workspace, stream)
            else:
                raise

    def bind(self, pack: Any, workspace: Any, stream: int) -> Any:
        """A callable that runs the plan on these buffers without any check. Raises like `execute`."""
        try:
            return self._dispatcher.bind(pack, workspace, stream)
        except BindError as problem:
            bits = self._packed_bits(pack, stream, is_bound=True)
            if bits:
                return BoundBits(bits, self.bind(bits.pack, workspace, stream), pack)
            if not isinstance(problem, MisalignedError):
                raise
            return self._any_alignment().bind(pack, workspace, stream)

    def _packed_bits(self, pack: Any, stream: int, *, is_bound: bool) -> PackedBits | None:
        """The BOOLEAN buffers of a refused pack that hold eight elements a byte; None where no tensor is BOOLEAN."""
        if not any(slot.dtype is BOOLEAN for slot in self.plan.program.slots):
            return None
        binder = Binder(self.plan.program, *self._binding(self.plan.program))
        return PackedBits(binder, binder.collect(pack), stream, is_bound=is_bound)

    def _any_alignment(self) -> Any:
        if self._unaligned is None:
            if self._general is None:
                raise MisalignedError(
                    f"plan {self.plan.name!r} was saved for aligned buffers, and one is not",
                    fix="pass buffers whose addresses are multiples of 16, or build the graph here",
                )
            self._unaligned = self._make(self._general(self.plan).program)
        return self._unaligned
