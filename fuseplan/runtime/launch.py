"""Launches as data: what the dispatcher runs. Knows no op and no graph.

A `Program` is the flat form of a plan: slots (the buffers a caller binds) and launches. A launch
has a parameter block made from `template` bytes; its patches say which bytes are overwritten at
call time with an address or with a host scalar.

Host kernels have the C signature ``int f(const void *block, const struct fp_task *task)``. They read the
block as a packed struct and draw tasks from `task`; ``team/task.h`` says how, and its text stands in
every generated kernel. A launch of several tasks may run on several threads, each of which calls the
function once. The status that comes back is 0, or a number that ends the program with an error.
A library is called through ``int f(const void *block, void *stream)``, once, on the calling thread: a few
lines of C that unpack the block. CUDA kernels get one ``void *`` per parameter, pointing into the
block at `param_offsets`.
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
    PYTHON = 3  # call a Python function, which may allocate
    LIBRARY = 4  # call a C function with the parameter block and the stream


class PatchKind(enum.IntEnum):
    """What is written into a parameter block at call time."""

    POINTER = 0  # address of a slot's buffer, plus `addend` bytes; 8 bytes are written
    SCALAR = 1  # `size` bytes copied from the host memory of a slot
    SCRATCH = 2  # workspace address plus `addend` bytes; 8 bytes are written
    TENSOR_MAP = 3  # a CUtensorMap of a slot's buffer (of the workspace where slot is -1); 128 bytes are written


class Attribute(enum.IntEnum):
    """What a kernel may be launched with; the numbers are those of CUlaunchAttributeID."""

    COOPERATIVE = 2  # 1: all blocks are on the device at once and may wait for each other
    CLUSTER = 4  # blocks of a cluster along x, y and z
    PROGRAMMATIC_SERIALIZATION = 6  # 1: may start before the kernel in front of it has ended, for which it waits itself


@dataclass(frozen=True, slots=True)
class TensorMap:
    """How a CUDA kernel sees a buffer through its copy engine: a CUtensorMap without its address.

    With `second` the outermost axis has two entries, one in each of two buffers: the map begins at the lower one
    and the stride of that axis is the distance between them.

    Args:
        dtype: element type
        dims: extents, innermost first; one to five
        strides: bytes between neighbours along each axis but the innermost; with `second` the last one is left out
        box: elements of one copy along each axis
        steps: element strides of a box, or () where all are 1
        interleave, swizzle, promotion, fill: numbers of the driver's enumerations
        second: slot (-1: the workspace) and addend of the other buffer
        swap_offset: where in the block an int32 says whether `second` is the lower one, -1 for nowhere
    """

    dtype: DType
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...] = ()
    interleave: int = 0
    swizzle: int = 0
    promotion: int = 0
    fill: int = 0
    second: tuple[int, int] | None = None
    swap_offset: int = -1


@dataclass(frozen=True, slots=True)
class Patch:
    """One write into a parameter block.

    Args:
        kind: what is written
        offset: byte offset in the block
        slot: index of the slot (in an Executable: of the region's operand); -1 for SCRATCH
        addend: bytes added to the address
        size: bytes copied, for SCALAR
        map: for TENSOR_MAP
    """

    kind: PatchKind
    offset: int
    slot: int = -1
    addend: int = 0
    size: int = 8
    map: TensorMap | None = None


@dataclass(frozen=True, slots=True)
class Artifact:
    """One compiled file, named by content.

    Args:
        kind: ``"so"`` (host shared object) or ``"cubin"``
        key: hex digest of everything that went into it (source, compiler, flags, features)
        arch: what it runs on: the CPU feature tier or ``"sm_90"``
        data: the file's bytes
        origin: digest of what it was compiled from, without tools and machine (see `supply`)
        facts: what its engine noted when it was compiled, as text
    """

    kind: str
    key: str
    arch: str
    data: bytes = field(repr=False)
    origin: str = ""
    facts: str = ""


#: fn(addresses of the operands in order, stream, workspace address) -> None
PythonCall = Callable[[tuple[int, ...], int, int], None]
#: fn(status) -> what a library says about it
StatusText = Callable[[int], str]


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
        artifact, symbol: the compiled file and the function in it (HOST, CUDA, and LIBRARY without `function`)
        param_offsets: offset of each kernel parameter in the block (CUDA)
        grid, block, shared_bytes: launch configuration (CUDA); block counts threads
        memset_value, memset_words: 32-bit word and how many (MEMSET; its pointer is patches[0])
        call: the function (PYTHON; its operands are the patches, in order)
        label: for messages and profiles
        tasks: how it is shared out over threads (HOST)
        attributes: what a kernel is launched with, and up to three numbers of each (CUDA)
        function: address of the function (LIBRARY)
        status_text: what a status other than 0 means (LIBRARY)
        tables: (offset in the block, data): the address of memory on the device that holds the data stands there (CUDA)
        owner: an object that lives as long as what was made from this launch: a library, its handle or plan
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
    attributes: tuple[tuple[Attribute, tuple[int, ...]], ...] = ()
    function: int = 0
    status_text: StatusText | None = None
    tables: tuple[tuple[int, bytes], ...] = field(default=(), repr=False)
    owner: object = field(default=None, repr=False)


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
        workspace_slack: bytes at the start of the workspace that may be skipped to reach its alignment
    """

    slots: tuple[Slot, ...]
    launches: tuple[Launch, ...]
    workspace_bytes: int
    device_kind: str  # "cpu" or "cuda"
    device_index: int = 0
    workspace_alignment: int = 1
    num_threads: int = 0
    workspace_slack: int = 0
