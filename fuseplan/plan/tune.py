"""Autotuning: each candidate is compared with the judge before it is timed; a wrong one is never chosen."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fuseplan.errors import BindError, FuseplanError, MisalignedError
from fuseplan.ir.graph import TensorSpec
from fuseplan.ops.arrays import ArrayNamespace, numpy_dtype, numpy_namespace, torch_namespace
from fuseplan.ops.evaluate import run_declared, run_judge
from fuseplan.ops.judge import is_right_by_norm
from fuseplan.ops.memory import view_cuda, view_host
from fuseplan.plan.bench import time_us
from fuseplan.plan.execute import Runner
from fuseplan.plan.plan import BuiltPlan
from fuseplan.plan.planner import PlanList
from fuseplan.plan.rank import Entry
from fuseplan.runtime.buffers import view_of


@dataclass(frozen=True)
class TuneRow:
    """One candidate: `us` is set if it was right and timed; `outcome` says what happened otherwise.

    `index` is -1 for a plan that the search tried and did not keep.
    """

    index: int
    name: str
    outcome: str
    us: float | None = None
    workspace_bytes: int = 0


@dataclass
class TuneReport:
    """The table of a tuning run; printed by `str`.

    Args:
        best: index of the fastest right plan, or None if none was timed
        is_complete: False if the time budget or Ctrl-C ended it early
    """

    rows: list[TuneRow] = field(default_factory=list)
    best: int | None = None
    is_complete: bool = True

    def __str__(self) -> str:
        lines = [f"{'plan':>4}  {'name':<56} {'us':>10}  {'workspace':>10}  outcome"]
        for r in sorted(self.rows, key=lambda r: (r.us is None, r.us or 0.0, r.index)):
            shown = "" if r.us is None else f"{r.us:.2f}"
            mark = "*" if r.index == self.best else " "
            index = r.index if r.index >= 0 else ""
            lines.append(f"{index:>4}{mark} {r.name:<56} {shown:>10}  {r.workspace_bytes:>10}  {r.outcome}")
        if not self.is_complete:
            lines.append("(stopped early: plans not listed were not tried)")
        return "\n".join(lines)


HOPELESS = 4.0
MakeRunner = Callable[[BuiltPlan], Runner]
Progress = Callable[[TuneRow, int, int], None]
Bar = Callable[[Entry], str]


def autotune(plans: PlanList, make_runner: MakeRunner, pack: Mapping[int, Any], workspace: Any, stream: int,
             budget_s: float = 30.0, progress: Progress | None = None,
             bar: Bar | None = None) -> TuneReport:  # fmt: skip
    """Try every plan that no filter bars, then search beyond the list; compare with the judge, then time.

    Args:
        make_runner: runner of a built plan
        pack: uid -> buffer, complete; outputs are written by the chosen plan at the end, by no other
        workspace: used for the final run if it is large enough for the chosen plan
        budget_s: no candidate is started after this time
        progress: called after each candidate
        bar: why a built plan may not be used, empty if it may
    Returns:
        The table. After Ctrl-C it holds what was measured until then. If the search found the best plan, it is added
        to the list.
    Raises:
        BindError: a buffer is missing or does not fit; nothing was timed
    """
    bench = _Bench(plans, make_runner, pack, stream)
    report = TuneReport()
    worth = worth_trying(plans.entries)
    plans.compile_ahead(worth, bench.start + budget_s / 2)
    found: list[Entry] = []
    try:
        for entry in _tries(plans, worth, report, found):
            if report.rows and time.monotonic() > bench.start + budget_s:
                report.is_complete = False
                break
            row = bench.try_plan(entry, bar)
            report.rows.append(row)
            if progress is not None:
                progress(row, len(report.rows), max(len(report.rows), len(worth)))
    except KeyboardInterrupt:
        report.is_complete = False
    _choose(plans, report, found)
    if report.best is not None:
        built = plans.build(report.best)
        make_runner(built).execute(dict(pack), bench.workspace(built, workspace), stream)
        bench.synchronise()
    return report


def worth_trying(entries: Sequence[Entry]) -> list[Entry]:
    """Those that no filter bars and that are not expected to be `HOPELESS` times as slow as another of their engine."""
    allowed = [e for e in entries if not e.barred]
    least: dict[str, float] = {}
    for e in allowed:
        least[e.engine_name] = min(e.estimate_us, least.get(e.engine_name, e.estimate_us))
    return [e for e in allowed if e.estimate_us <= HOPELESS * least[e.engine_name]]


def show(row: TuneRow, done: int, total: int) -> None:
    """Print a row of progress to standard error."""
    print(
        f"autotune {done}/{total}: {row.name}: {row.outcome if row.us is None else f'{row.us:.2f} us'}", file=sys.stderr
    )


def _tries(plans: PlanList, worth: Sequence[Entry], report: TuneReport, found: list[Entry]) -> Iterator[Entry]:
    """The listed plans, then those of searches from each engine's best one, which are put into `found`."""
    yield from worth
    starts: dict[str, int] = {}
    for row in sorted((r for r in report.rows if r.us is not None), key=lambda r: r.us or 0.0):
        starts.setdefault(plans.entries[row.index].engine_name, row.index)
    for start in starts.values():
        if not plans.entries[start].assignments:
            return  # a loaded plan has no choices
        beyond = plans.search(start, {r.name: r.us for r in report.rows})
        entry = next(beyond, None)
        while entry is not None:
            found.append(entry)
            yield entry
            entry = _sent(beyond, report.rows[-1].us)


def _sent(beyond: Generator[Entry, float | None, None], us: float | None) -> Entry | None:
    """The next entry of a search that is told the last one's time; None at its end."""
    try:
        return beyond.send(us)
    except StopIteration:
        return None


def _choose(plans: PlanList, report: TuneReport, found: Sequence[Entry]) -> None:
    """Set the best row; a plan that the search found is listed if it is the best."""
    timed = [r for r in report.rows if r.us is not None]
    if not timed:
        return
    best = min(timed, key=lambda r: r.us or 0.0)
    if best.index < 0:
        kept = next(e for e in found if e.name == best.name)
        report.rows[report.rows.index(best)] = best = replace(best, index=plans.keep(kept))
    report.best = best.index


class _Bench:
    """Inputs, judge and private outputs of one tuning run."""

    def __init__(self, plans: PlanList, make_runner: MakeRunner, pack: Mapping[int, Any], stream: int) -> None:
        self.plans, self.make_runner, self.stream = plans, make_runner, stream
        self.graph, self.device = plans.graph, plans.device
        self.is_cuda = plans.device.kind == "cuda"
        self.xp: ArrayNamespace = torch_namespace() if self.is_cuda else numpy_namespace()
        self.inputs = {
            uid: self._view(uid, pack) for uid in self.graph.input_uids if self.graph.tensors[uid].value is None
        }
        self.given, self.private = dict(pack), dict(pack)
        self.outputs: dict[int, Any] = {}
        for uid in self.graph.output_uids:
            self.private[uid], self.outputs[uid] = self._private_output(self.graph.tensors[uid])
        with np.errstate(all="ignore"):
            self.exact = run_judge(self.graph, self.inputs, self.xp)
            self.declared = run_declared(self.graph, self.inputs, self.xp)
        self.start = time.monotonic()

    def _view(self, uid: int, pack: Mapping[int, Any]) -> Any:
        """A private copy of an input, so that nothing a candidate does can change it."""
        spec = self.graph.tensors[uid]
        if pack.get(uid) is None:
            raise BindError(f"tensor {spec.name!r} (uid {uid}) is not in the pack", fix="pass a buffer for it")
        buffer = pack[uid]
        if spec.is_pass_by_value and isinstance(buffer, (float, bool, np.generic)):
            value = np.full(spec.dim, buffer).astype(numpy_dtype(spec.dtype))
        else:
            view = view_of(buffer)
            if view.nbytes is not None and view.nbytes < spec.span_bytes:
                raise BindError(
                    f"the buffer of tensor {spec.name!r} has {view.nbytes} bytes, its dims and strides reach "
                    f"{spec.span_bytes}",
                    fix="pass a larger buffer or declare the dims it has",
                )
            if self.is_cuda and not spec.is_pass_by_value:
                return view_cuda(view.address, spec.dim, spec.stride, spec.dtype, self.device.index).clone()
            value = view_host(view.address, spec.dim, spec.stride, spec.dtype).copy()
        if not self.is_cuda:
            return value
        import torch

        scalar = torch.full(spec.dim, value.astype(np.float64).item(0), device=f"cuda:{self.device.index}")
        return scalar.to(self.xp.dtype(spec.dtype))

    def _private_output(self, spec: TensorSpec) -> tuple[Any, Any]:
        """A buffer of the output's span, filled with bytes that read as NaN, and its strided view."""
        if self.is_cuda:
            import torch

            held = torch.full((spec.span_bytes,), 255, dtype=torch.uint8, device=f"cuda:{self.device.index}")
            view = view_cuda(held.data_ptr(), spec.dim, spec.stride, spec.dtype, self.device.index)
            return held.view(self.xp.dtype(spec.dtype)), view
        raw = np.full(spec.span_bytes, 255, dtype=np.uint8)
        address = raw.ctypes.data
        return raw.view(self.xp.dtype(spec.dtype)), view_host(address, spec.dim, spec.stride, spec.dtype)

    def workspace(self, plan: BuiltPlan, offered: Any = None) -> Any:
        """The offered workspace if it can be used as it is, else a private one."""
        if plan.workspace_bytes == 0:
            return None
        if offered is not None:
            size = getattr(offered, "nbytes", None)
            if isinstance(size, int) and size >= plan.workspace_bytes:
                return offered
        if self.is_cuda:
            import torch

            return torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=f"cuda:{self.device.index}")
        return np.empty(plan.workspace_bytes, dtype=np.uint8)

    def synchronise(self) -> None:
        if self.is_cuda:
            import torch

            torch.cuda.synchronize(self.device.index)

    def try_plan(self, entry: Entry, bar: Bar | None) -> TuneRow:
        index = next((k for k, e in enumerate(self.plans.entries) if e is entry), -1)
        try:
            built = self.plans.build_entry(entry)
            reason = bar(entry) if bar is not None else ""
            if reason:
                return TuneRow(index, entry.name, f"barred: {reason}")
            runner = self.make_runner(built)
            workspace = self.workspace(built)
            runner.bind(self.given, workspace, self.stream)  # what is wrong with the user's buffers comes up first
            for _ in range(2):  # the second run meets dirty outputs
                runner.execute(self.private, workspace, self.stream)
            self.synchronise()
            wrong = self._wrong_output()
            if wrong:
                return TuneRow(index, entry.name, f"wrong: output {wrong!r} differs from the judge")
            bound = runner.bind(self.private, workspace, self.stream)
            us = time_us(bound, self.synchronise)
            return TuneRow(index, entry.name, "right", us, built.workspace_bytes)
        except FuseplanError as e:
            if isinstance(e, BindError) and not isinstance(e, MisalignedError):
                raise  # the pack's fault, not the candidate's
            return TuneRow(index, entry.name, f"{type(e).__name__}: {str(e).splitlines()[0]}")

    def _wrong_output(self) -> str:
        with np.errstate(all="ignore"):
            for uid, view in self.outputs.items():
                spec = self.graph.tensors[uid]
                if not is_right_by_norm(self.xp, self.exact[uid], self.declared[uid], view, spec.dtype):
                    return spec.name
        return ""
