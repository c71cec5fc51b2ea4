"""What the programs of the tour share: buffers of a device, graphs on it, comparison with the judge, timing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.console import Console

import fuseplan
from fuseplan.ops.evaluate import run_judge

#: Largest error allowed, relative to the largest value of the result.
TOLERANCE = {"FLOAT": 1e-5, "BFLOAT16": 1e-2}
SECONDS_PER_TIMING = 0.25


class TourError(Exception):
    """A program's result is not what it should be."""


@dataclass
class Outcome:
    """What a program found, for the summary; times in milliseconds."""

    error: float | None = None
    ms: float | None = None
    torch_ms: float | None = None
    note: str = ""


@dataclass
class Setting:
    """Device and sizes of one tour.

    Args:
        device: ``"cpu"`` (NumPy, float32) or ``"cuda"`` (PyTorch, bfloat16)
        size: ``"tiny"``, ``"small"`` or ``"tutorial"``
        torch: PyTorch or None
    """

    device: str
    size: str
    console: Console
    torch: Any = None
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def __post_init__(self) -> None:
        self.handle = fuseplan.create_handle(device=self.device)
        self.is_cuda = self.device == "cuda"
        self.io = fuseplan.data_type.BFLOAT16 if self.is_cuda else fuseplan.data_type.FLOAT
        self.tolerance = TOLERANCE[self.io.name]

    def say(self, label: str, text: str) -> None:
        """One line of a program."""
        self.console.print(f"  {label:<22} {text}", highlight=False, markup=False, soft_wrap=True)

    def normal(self, *dim: int, scale: float = 1.0, channels_last: bool = False) -> Any:
        """Normal random values on the device, in the io type."""
        return self._put((self.rng.standard_normal(dim) * scale).astype(np.float32), channels_last)

    def empty(self, *dim: int, channels_last: bool = False, dtype: str = "bfloat16") -> Any:
        """An output buffer, filled with NaN, so that what is not written shows; `dtype` is its PyTorch type."""
        return self._put(np.full(dim, np.nan, dtype=np.float32), channels_last, dtype)

    def _put(self, array: Any, channels_last: bool, dtype: str = "bfloat16") -> Any:
        if channels_last:  # the same values with axis 1 innermost in memory
            array = np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        return self.torch.from_numpy(array).to("cuda", getattr(self.torch, dtype)) if self.is_cuda else array

    def workspace(self, num_bytes: int) -> Any:
        """A workspace of at least one byte."""
        if self.is_cuda:
            return self.torch.empty(max(num_bytes, 1), device="cuda", dtype=self.torch.uint8)
        return np.empty(max(num_bytes, 1), dtype=np.uint8)

    def host(self, buffer: Any) -> Any:
        """A buffer's values as a NumPy array, float32 for bfloat16 (which it holds exactly)."""
        return buffer if isinstance(buffer, np.ndarray) else buffer.float().cpu().numpy()

    def as_torch(self, buffer: Any) -> Any:
        """A buffer as a PyTorch tensor over the same memory."""
        return self.torch.from_numpy(buffer) if isinstance(buffer, np.ndarray) else buffer

    def graph(self, name: str, **options: Any) -> Any:
        """An empty graph with this tour's types and device."""
        flt = fuseplan.data_type.FLOAT
        return fuseplan.pygraph(
            name=name, io_data_type=self.io, intermediate_data_type=flt, compute_data_type=flt,
            handle=self.handle, **options,
        )  # fmt: skip

    def run(self, graph: Any, pack: Mapping[Any, Any]) -> None:
        """Run a built graph once and wait for it."""
        graph.execute(pack, self.workspace(graph.get_workspace_size()), handle=self.handle)
        self.wait()

    def compare(self, graph: Any, pack: Mapping[Any, Any], result: Any, formula: Any) -> float:
        """Error of a result against the judge and against a formula of the tour's own, both printed.

        Returns: the larger of the two, relative to the largest value
        Raises:
            TourError: it is over the tolerance, or not a number
        """
        got = np.asarray(self.host(pack[result]), dtype=np.float64)
        exact = run_judge(graph._draft.graph, {t.get_uid(): self.host(b) for t, b in pack.items()})[result.get_uid()]
        by_judge, by_formula = relative_error(got, exact), relative_error(got, formula)
        allowed = f"(allowed {self.tolerance:.0e})"
        self.say("error", f"{by_judge:.1e} against the judge, {by_formula:.1e} against the formula {allowed}")
        error = max(by_judge, by_formula)
        if not error <= self.tolerance:
            raise TourError(f"{result.get_name()}: error {error:.2e} is over {self.tolerance:.0e}")
        return error

    def time(self, call: Callable[[], object]) -> float:
        """Median time of a call in milliseconds, after a warm-up, within a fixed budget (a slow call: one time)."""
        warm = self._once(call)
        least = 1 if warm > SECONDS_PER_TIMING else 3
        taken: list[float] = []
        start = time.perf_counter()
        while len(taken) < least or (time.perf_counter() - start < SECONDS_PER_TIMING and len(taken) < 200):
            taken.append(self._once(call))
        return statistics.median(taken) * 1e3

    def _once(self, call: Callable[[], object]) -> float:
        """Seconds of one call, waiting for the device before and after."""
        self.wait()
        before = time.perf_counter()
        call()
        self.wait()
        return time.perf_counter() - before

    def wait(self) -> None:
        """Wait for the device."""
        if self.is_cuda:
            self.torch.cuda.synchronize()

    def measure(self, graph: Any, pack: Mapping[Any, Any], wanted: Mapping[Any, Any],
                make_torch: Callable[[Any], Callable[[], object]]) -> Outcome:  # fmt: skip
        """Run a built graph, compare its results, time it, and print the time beside PyTorch's.

        Args:
            wanted: results as the program's own formula gives them
            make_torch: the same work as a call, made with PyTorch
        """
        name = graph.inspect()["selected_plan"]
        self.say("plan", name)
        self.run(graph, pack)
        error = max(self.compare(graph, pack, result, formula) for result, formula in wanted.items())
        workspace, torch_ms = self.workspace(graph.get_workspace_size()), None
        ms = self.time(lambda: graph.execute(pack, workspace, handle=self.handle))
        self.say("time", f"{ms:.3f} ms")
        if self.torch is None:
            self.say("PyTorch", "not installed")
        else:
            with self.torch.inference_mode():
                torch_ms = self.time(make_torch(self.torch))
            self.say("PyTorch", f"{torch_ms:.3f} ms, {torch_ms / ms:.2f} times as long")
        return Outcome(error, ms, torch_ms, name)


def relative_error(got: Any, want: Any) -> float:
    """Largest difference, relative to the largest value."""
    return float(np.max(np.abs(got - want)) / max(float(np.max(np.abs(want))), 1e-30))
