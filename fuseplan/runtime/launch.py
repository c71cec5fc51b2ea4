"""Launches as data: what the dispatcher runs. Knows no op and no graph.

A `Program` is the flat form of a plan: slots (the buffers a caller binds) and launches. A launch
has a parameter block made from `template` bytes; its patches say which bytes are overwritten at
call time with an address or with a host scalar.

Host kernels have the C signature ``int f(const void *block, const struct fp_task *task)``. They read the
block as a packed struct and draw tasks from `task`; ``team/task.h`` says how, and its text stands in
every generated kernel. A launch of several tasks may run on several threads, each of which calls the
function once. The status that comes back is 0, or a number that ends the program with an error.
CUDA kernels get one ``void *`` per parameter, pointing into the block at `param_offsets`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from fuseplan.dtypes import DType


class LaunchKind(enum.IntEnum):
    """How a launch is run."""

    HOST = 0  # call a C function with the parameter block
    CUDA = 1  # cuLaunchKernelEx
    MEMSET = 2  # fill 32-bit words on the device's stream (or with a loop on the host)
    PYTHON = 3  # call a Python function, which may allocate; a loaded plan gets it from its engine again


class PatchKind(enum.IntEnum):
    """What is written into a parameter block at call time."""

    POINTER = 0  # address of a slot's buffer, plus `addend` bytes; 8 bytes are written
    SCALAR = 1  # `size` bytes copied from the host memory of a slot
    SCRATCH = 2  # workspace address plus `addend` bytes; 8 bytes are written


@dataclass(frozen=True, slots=True)
class Patch:
    """One write into a parameter block.

    Args:
        kind: what is written
        offset: byte offset in the block
        slot: index of the slot (in an Executable: of the region's operand); -1 for SCRATCH
        addend: bytes added to the address
        size: bytes copied, for SCALAR
    """

    kind: PatchKind
    offset: int
    slot: int = -1
    addend: int = 0
    size: int = 8


@dataclass(frozen=True, slots=True)
class Artifact:
    """One compiled file, named by content.

    Args:
        kind: ``"so"`` (host shared object) or ``"cubin"``
        key: hex digest of everything that went into it (source, compiler, flags, features)
        arch: what it runs on: the CPU feature tier or ``"sm_90"``
        data: the file's bytes
    """

    kind: str
    key: str
    arch: str
    data: bytes = field(repr=False)


#: fn(addresses of the operands in order, stream, workspace address) -> None
PythonCall = Callable[[tuple[int, ...], int, int], None]


@dataclass(frozen=True, slots=True)
class Tasks:
    """How a host launch is shared out over threads.

    Args:
        count: tasks that its threads draw; one alone stays on the calling thread
        work_us: expected time on one thread; little work stays on the calling thread
        thread_bytes: memory that each thread has for itself, from the workspace
        scratch_at: where that memory begins in the workspace; composing a program sets it
        max_threads: for how many threads there is memory, 0 if they need none; composing a program sets it
    """

    count: int = 1
    work_us: float = 0.0
    thread_bytes: int = 0
    scratch_at: int = 0
    max_threads: int = 0


ALONE = Tasks()


@dataclass(frozen=True, slots=True)
class Launch:
    """One step of a program.

    Args:
        kind: how it is run
        template: parameter block before patching
        patches: what is overwritten at call time
        artifact, symbol: the compiled file and the function in it (HOST and CUDA)
        param_offsets: offset of each kernel parameter in the block (CUDA)
        grid, block, shared_bytes: launch configuration (CUDA); block counts threads
        memset_value, memset_words: 32-bit word and how many (MEMSET; its pointer is patches[0])
        call: the function (PYTHON; its operands are the patches, in order)
        label: for messages and profiles
        tasks: how it is shared out over threads (HOST)
    """

    kind: LaunchKind
    template: bytes = b""
    patches: tuple[Patch, ...] = ()
    artifact: Artifact | None = None
    symbol: str = ""
    param_offsets: tuple[int, ...] = ()
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    memset_value: int = 0
    memset_words: int = 0
    call: PythonCall | None = None
    label: str = ""
    tasks: Tasks = ALONE


@dataclass(frozen=True, slots=True)
class Slot:
    """One buffer that the caller binds.

    Args:
        uid, name: how a pack may name it (also by the facade's tensor object)
        dtype: element type
        span_bytes: bytes from the first to past the last element, from dims and strides
        place: ``"cpu"``, ``"cuda"`` or ``"host"`` (a host scalar on any device)
        device_index: ordinal when place is ``"cuda"``
        is_output: whether the program writes it
        value: value owned by the graph (tensor_scalar); such a slot is never in a pack
        alignment: bytes that the address must be a multiple of; a buffer that is not gets another
            program (see `errors.MisalignedError`), so this is a fast path and never a condition
    """

    uid: int
    name: str
    dtype: DType
    span_bytes: int
    place: str
    device_index: int = 0
    is_output: bool = False
    value: bytes | None = None
    alignment: int = 1


@dataclass(frozen=True, slots=True)
class Program:
    """What a dispatcher is made from; slots of patches index `slots`.

    Args:
        workspace_alignment: bytes that the workspace's address must be a multiple of (like Slot.alignment)
        num_threads: threads that host launches may use, 0: as many as `team.number` says
    """

    slots: tuple[Slot, ...]
    launches: tuple[Launch, ...]
    workspace_bytes: int
    device_kind: str  # "cpu" or "cuda"
    device_index: int = 0
    workspace_alignment: int = 1
    num_threads: int = 0
