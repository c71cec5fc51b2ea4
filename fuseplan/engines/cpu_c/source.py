"""The text of a generated kernel: its parameter block, its holes, and the main loop from a file of ``kernels/``."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import resources

from fuseplan.codegen.c_expr import STORAGE
from fuseplan.codegen.c_helpers import prelude
from fuseplan.codegen.writer import LineWriter, node_numbers, operand_names
from fuseplan.ir.region import Region, Role
from fuseplan.runtime.launch import Patch, PatchKind

_SCRATCH_ALIGN = 64
_END_OF_DEFAULTS = "#endif /* alone */\n"
_NAME_LATER = "#define KERNEL "
_BYTES = {
    "float": 4,
    "double": 8,
    "int8_t": 1,
    "uint8_t": 1,
    "int32_t": 4,
    "int64_t": 8,
}


@dataclass(frozen=True, slots=True)
class Source:
    """Source of one function and the block it is called with.

    Args:
        scratch_bytes, thread_bytes: private memory of all threads together, and of each one
        features: of the CPU, that the source asks for by itself
    """

    source: str
    symbol: str
    template: bytes
    patches: tuple[Patch, ...]
    scratch_bytes: int
    num_tasks: int
    work_us: float
    thread_bytes: int = 0
    features: tuple[str, ...] = ()


class Arguments:
    """Fields of the parameter block: pointers and numbers of 8 bytes, then host scalars of any size."""

    def __init__(self) -> None:
        self._pointers: dict[str, tuple[str, Patch]] = {}
        self._numbers: dict[str, int] = {}
        self._scalars: dict[str, tuple[str, Patch]] = {}
        self.scratch_bytes = self.thread_bytes = 0

    def number(self, name: str, value: int) -> str:
        """An extent or stride; its text in the kernel."""
        assert self._numbers.setdefault(name, value) == value, name
        return f"p->{name}"

    def pointer(self, name: str, ctype: str, slot: int, addend: int = 0) -> str:
        """Address of an operand's first element."""
        self._pointers.setdefault(
            name, (ctype, Patch(PatchKind.POINTER, 0, slot, addend))
        )
        return f"p->{name}"

    def scratch(self, name: str, ctype: str, num_elements: int) -> str:
        """Private memory of the kernel, 8 bytes per element."""
        self._pointers[name] = (
            ctype,
            Patch(PatchKind.SCRATCH, 0, -1, self.scratch_bytes),
        )
        size = 8 * num_elements
        self.scratch_bytes += -(-size // _SCRATCH_ALIGN) * _SCRATCH_ALIGN
        return f"p->{name}"

    def of_thread(self, name: str, ctype: str, num_elements: int) -> str:
        """Memory of the thread at hand, at most 8 bytes per element; the text of its address behind `scratch`."""
        text = f"({ctype} *)((char *)scratch + {self.number(f'{name}_at', self.thread_bytes)})"
        size = num_elements * _BYTES[ctype]
        self.thread_bytes += -(-size // _SCRATCH_ALIGN) * _SCRATCH_ALIGN
        return text

    def scalar(self, name: str, ctype: str, slot: int, size: int) -> str:
        """A host scalar; its text in the kernel."""
        self._scalars[name] = (
            f"{ctype} {name}",
            Patch(PatchKind.SCALAR, 0, slot, size=size),
        )
        return f"p->{name}"

    def struct_lines(self) -> list[str]:
        """Declaration of the block."""
        numbers = list(self._numbers)
        lines = [f"  {ctype} *{name};" for name, (ctype, _) in self._pointers.items()]
        lines += [
            f"  int64_t {', '.join(numbers[k : k + 10])};"
            for k in range(0, len(numbers), 10)
        ]
        lines += [f"  {text};" for text, _ in self._scalars.values()]
        return ["struct args {", *lines, "} __attribute__((packed));"]

    def block(self) -> tuple[bytes, tuple[Patch, ...]]:
        """The block before patching, and its patches."""
        patches = [
            Patch(p.kind, 8 * k, p.slot, p.addend)
            for k, (_, p) in enumerate(self._pointers.values())
        ]
        numbers = struct.pack(f"<{len(self._numbers)}q", *self._numbers.values())
        data = bytes(8 * len(self._pointers)) + numbers
        for _, patch in self._scalars.values():
            patches.append(Patch(patch.kind, len(data), patch.slot, size=patch.size))
            data += bytes(patch.size)
        return data, tuple(patches)


class Holes:
    """What fills the holes of a main loop while it is written: macros and functions, and the block that they read."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.args = Arguments()
        self.names = operand_names(region.operands)
        self.numbers = node_numbers(region.values)
        self.texts: list[str] = []

    def macro(self, name: str, text: str | int) -> None:
        self.texts.append(f"#define {name} {text}\n")

    def pointer(self, operand: int) -> str:
        """Address of an operand's first element."""
        o = self.region.operands[operand]
        const = "const " if o.role is Role.IN else ""
        ctype, start = const + STORAGE[o.dtype.name], o.offset * o.dtype.itemsize
        return self.args.pointer(self.names[operand], ctype, operand, start)

    def host_scalar(self, operand: int) -> str:
        """The value of an operand that is a host scalar."""
        dtype = self.region.operands[operand].dtype
        ctype = STORAGE[dtype.name]
        return self.args.scalar(self.names[operand], ctype, operand, dtype.itemsize)

    def note(self, value: int) -> str:
        """The comment that names a value's node and op."""
        number, op = self.numbers[value], self.region.values[value].op
        return f"/* node {number}: {op} */" if number >= 0 else f"/* {op} */"

    def function(
        self, result: str, name: str, parameters: Sequence[str], body: LineWriter | str
    ) -> None:
        """A function; parameters that its body does not name are marked as unused."""
        text = body if isinstance(body, str) else body.text()
        names = re.findall(r"(\w+)(?:\[.*\])?(?:,|$)", ",".join(parameters))
        unused = [f"(void){n};" for n in names if not re.search(rf"\b{n}\b", text)]
        lines = [" ".join(unused)] if unused else []
        lines += text.rstrip().split("\n") if text.strip() else []
        inside = "".join(
            [line + "\n" if line.startswith("#") else f"  {line}\n" for line in lines]
        )
        self.texts.append(f"\n{_signature(result, name, parameters)} {{\n{inside}}}\n")

    def per_anchor(
        self,
        result: str,
        name: str,
        parameters: Sequence[str],
        bodies: Sequence[LineWriter | str],
    ) -> None:
        """A function whose parameter `q` says which of the bodies, one for each anchor."""
        texts = [b if isinstance(b, str) else b.text() for b in bodies]
        if len(set(texts)) == 1:
            self.function(result, name, parameters, texts[0])
            return
        w = LineWriter()
        for q, text in enumerate(texts):
            is_last = q == len(texts) - 1
            w.open(("else " if q else "") + ("{" if is_last else f"if (q == {q}) {{"))
            for line in text.rstrip().split("\n"):
                w.margin(line) if line.startswith("#") else w.line(line)
            w.close()
        self.function(result, name, parameters, w)


def _signature(result: str, name: str, parameters: Sequence[str]) -> str:
    """A declaration of at most 120 columns a line."""
    lines = [f"INLINE {result} {name}("]
    for k, p in enumerate(parameters):
        part = p + ("," if k < len(parameters) - 1 else ")")
        if len(lines[-1]) + len(part) > 116:
            lines.append("    ")
        lines[-1] += part if lines[-1].endswith(("(", "    ")) else " " + part
    return "\n".join(lines)


@cache
def main_loop(name: str) -> tuple[str, str]:
    """The headers of a file of ``kernels/`` and its text behind the defaults of its holes."""
    folder = resources.files("fuseplan.engines.cpu_c") / "kernels"
    defaults, loop = (
        (folder / f"{name}.c").read_text(encoding="utf-8").split(_END_OF_DEFAULTS)
    )
    used = re.findall(r'^#include "(\w+\.h)"$', defaults, re.MULTILINE)
    headers = "\n".join(
        [(folder / header).read_text(encoding="utf-8") for header in used]
    )
    return re.sub(r'^#include "\w+\.h"\n', "", headers, flags=re.MULTILINE), loop


def assemble(
    kernel: str, family: str, holes: Holes, num_tasks: int, work_us: float
) -> Source:
    """Helpers, argument block, holes and main loop; the name is a hash of the text."""
    headers, loop = main_loop(kernel)
    block = "\n".join(holes.args.struct_lines())
    filled = "".join(holes.texts)
    body = "\n".join([block, "", headers, _NAME_LATER, filled + loop])
    text = f"{prelude(body)}\n{body}"
    symbol = f"fp_{family}_{sha256(text.encode()).hexdigest()[:12]}"
    template, patches = holes.args.block()
    source = text.replace(_NAME_LATER, _NAME_LATER + symbol, 1)
    memory = holes.args.scratch_bytes, holes.args.thread_bytes
    return Source(
        source, symbol, template, patches, memory[0], num_tasks, work_us, memory[1]
    )
