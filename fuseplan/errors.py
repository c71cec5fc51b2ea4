"""All exceptions of fuseplan.

The tree (standard classes in brackets are additional bases, so that programs written for the
reference API catch what they expect)::

    FuseplanError
    |- InvalidGraphError      [ValueError, RuntimeError]   a graph, node or tensor contradicts itself
    |- GraphStateError        [RuntimeError]               a step was called in an impossible state
    |- ArgumentError          [TypeError]                  a call has arguments of the wrong kind
    |- BindError              [ValueError]                 a variant pack or a buffer does not fit
    |  |- UnknownNameError    [KeyError]                   a pack names a tensor that does not exist
    |  `- MisalignedError                                  internal: take the program for any alignment
    |- PlanIndexError         [IndexError, RuntimeError]   a plan index is out of range
    |- PlanFileError          [ValueError]                 a plan file is damaged or not one of ours
    |- ToolchainError         [RuntimeError]               the C compiler failed; its source is kept
    |- DeviceError            [RuntimeError]               a device, driver or handle call failed
    |- EngineError            [RuntimeError]               an engine of another package cannot be used
    `- cudnnGraphNotSupportedError                         well formed, but nothing here can run it
       `- NotYetAvailableError [AttributeError]            a name of the API that is not there yet
"""

from __future__ import annotations


class FuseplanError(Exception):
    """Base of all errors; says what is wrong, what was asked and how to fix it.

    Args:
        wrong: what is wrong, naming the node or tensor
        asked: what was asked for, in the user's terms
        fix: what to do about it
    """

    def __init__(self, wrong: str, *, asked: str = "", fix: str = "") -> None:
        self.wrong, self.asked, self.fix = wrong, asked, fix
        lines = [wrong]
        if asked:
            lines.append(f"  asked: {asked}")
        if fix:
            lines.append(f"  fix:   {fix}")
        super().__init__("\n".join(lines))

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class InvalidGraphError(FuseplanError, ValueError, RuntimeError):
    """A graph, node or tensor contradicts itself."""


class GraphStateError(FuseplanError, RuntimeError):
    """A step was called in an impossible state, or a frozen graph was changed."""


class ArgumentError(FuseplanError, TypeError):
    """A call has arguments of the wrong kind."""


class BindError(FuseplanError, ValueError):
    """A variant pack, a buffer or a workspace does not fit the plan."""


class UnknownNameError(BindError, KeyError):
    """A pack names a tensor that the graph does not have."""


class MisalignedError(BindError):
    """An address misses the alignment of a fast path; the caller takes the general program instead."""


class PlanIndexError(FuseplanError, IndexError, RuntimeError):
    """A plan index is out of range."""


class PlanFileError(FuseplanError, ValueError):
    """A plan file is damaged, incomplete or not a plan file."""


class ToolchainError(FuseplanError, RuntimeError):
    """The C compiler is missing or failed; the message has the path of the kept source."""


class DeviceError(FuseplanError, RuntimeError):
    """A device, driver or handle call failed."""


class EngineError(FuseplanError, RuntimeError):
    """An engine of another package cannot be imported, is incomplete, or takes a name or id that is in use."""


class cudnnGraphNotSupportedError(FuseplanError):  # noqa: N801 - the API's own name
    """A well-formed request that nothing here can run."""


class NotYetAvailableError(cudnnGraphNotSupportedError, AttributeError):
    """A name of the API that is not there yet; ``hasattr`` sees it as missing."""
