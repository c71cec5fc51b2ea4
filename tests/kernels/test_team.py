"""The team of threads: each task once, several callers, status, fixed order of sums, memory of each thread."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from fuseplan import settings
from fuseplan.errors import ArgumentError, DeviceError
from fuseplan.runtime import team
from fuseplan.runtime.dispatch.layout import QUICK_US
from fuseplan.runtime.launch import Tasks
from tests.kernels.dispatch_harness import dispatcher_of
from tests.kernels.team_harness import TeamCase, pool_threads

pytestmark = pytest.mark.usefixtures("kind")


def test_each_task_is_done_once_with_memory_of_its_own_thread() -> None:
    case = TeamCase()
    for _ in range(20):
        case.run()
        case.check()
        assert case.size() in (1, 4)  # 1: the threads were busy with another caller's launch


def test_little_work_stays_on_the_calling_thread() -> None:
    case = TeamCase(work_us=team.SERIAL_US - 1)
    case.run()
    case.check()
    assert case.size() == 1 and set(case.threads()) == {0}


@pytest.mark.parametrize(
    ("limit", "num_tasks", "work_us", "room", "size"),
    [(8, 100, 49, 0, 1), (8, 100, 50, 0, 2), (8, 100, 101, 0, 4), (8, 3, 1e6, 0, 3), (8, 100, 1e6, 2, 2),
     (2, 100, 1e6, 8, 2), (1, 100, 1e6, 0, 1), (8, 100, 1e6, 0, 8)],
)  # fmt: skip
def test_size_of_the_team(limit: int, num_tasks: int, work_us: float, room: int, size: int) -> None:
    assert team.size_of(limit, num_tasks, work_us, room) == size


def test_eight_callers_at_once() -> None:
    cases = [TeamCase(symbol, seed=k, num_threads=3) for k in range(4) for symbol in ("halve", "total")]
    failed: list[BaseException] = []
    start = threading.Barrier(len(cases))

    def call(case: TeamCase) -> None:
        try:
            start.wait()
            for _ in range(30):
                case.run()
                case.check()
        except BaseException as problem:
            failed.append(problem)

    callers = [threading.Thread(target=call, args=(case,)) for case in cases]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not failed and not any(caller.is_alive() for caller in callers)
    most = 6  # the largest team of this module asks for 7
    print(f"{pool_threads()} threads of the pool after 8 callers")
    assert pool_threads() <= most


def test_sum_has_the_same_bits_for_any_number_of_threads() -> None:
    sums = set()
    for num_threads in (1, 2, 3, 7):
        case = TeamCase("total", num_threads=num_threads)
        case.run()
        case.check()
        sums.add(case.y[:1].tobytes())
    assert len(sums) == 1


@pytest.mark.parametrize("num_threads", [1, 4])
def test_status_becomes_an_error_and_the_next_call_works(num_threads: int) -> None:
    case, failing = TeamCase(num_threads=num_threads), TeamCase(num_threads=num_threads, fails=20)
    for _ in range(5):
        with pytest.raises(DeviceError, match="launch 'halve' failed with status 7"):
            failing.run()
        case.run()
        case.check()


def test_no_memory_of_threads_beyond_the_workspace() -> None:
    case = TeamCase(num_threads=3)
    (launch,) = case.program.launches
    for tasks in (
        replace(launch.tasks, max_threads=4), replace(launch.tasks, scratch_at=-1),
        replace(launch.tasks, max_threads=0), replace(launch.tasks, thread_bytes=1 << 40), Tasks(0),
        replace(launch.tasks, thread_bytes=-64), Tasks(2, float("nan")), Tasks(2, float("inf")), Tasks(2, -1.0),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match="task|threads"):
            dispatcher_of(replace(case.program, launches=(replace(launch, tasks=tasks),)))


def test_more_threads_than_the_plan_has_memory_for_are_not_used() -> None:
    case = TeamCase(num_threads=2)
    case.dispatcher = dispatcher_of(replace(case.program, num_threads=8))
    case.run()
    case.check()
    assert case.size() in (1, 2) and case.threads().max() <= 1


def test_settings_say_how_many_where_the_plan_does_not(kind: str) -> None:
    case = TeamCase(num_threads=4)
    settings.use(replace(settings.current(), num_threads=2))
    case.dispatcher = dispatcher_of(replace(case.program, num_threads=0))
    case.run()
    case.check()
    assert case.size() in (1, 2)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises, also where the process was started with the signal ignored, as background jobs of a shell are."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_interrupt_comes_through_and_the_next_call_works(interruptible: None) -> None:
    assert threading.current_thread() is threading.main_thread()
    case = TeamCase(num_tasks=64, rounds=20_000)  # some hundred milliseconds
    threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        for _ in range(1000):
            case.run()
    quick = TeamCase()
    quick.run()
    quick.check()


def test_without_a_compiled_team_the_caller_does_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "library", lambda: None)
    case = TeamCase()
    case.run()
    case.check()
    assert case.size() == 1 and not np.any(case.threads())


def test_lock_of_the_interpreter_is_kept_for_quick_launches_only(kind: str) -> None:
    """A thread that only counts gets on during a long launch, and its launches are right in any mix with quick ones."""
    case, quick = TeamCase(rounds=20_000, num_threads=1), TeamCase(rounds=1, num_threads=1, work_us=1.0)
    (slow,), (fast,) = case.program.launches, quick.program.launches
    assert 0 < fast.tasks.work_us < QUICK_US <= slow.tasks.work_us
    mixed = dispatcher_of(replace(case.program, launches=(fast, slow, fast, fast, slow)))
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1

    counter = threading.Thread(target=count)
    counter.start()
    before = counted[0]
    case.y[:], case.who[:] = 0, 0
    mixed.execute({0: case.x, 1: case.y, 2: case.who, 3: case.sums}, case.work, 0)
    after = counted[0]
    stop.set()
    counter.join()
    assert after > before
    case.check()
