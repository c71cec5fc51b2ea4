"""Uniform registers that a cubin reads before it writes them: an assembler's mistake that shows as wrong values."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import triton

_LINE = re.compile(r"\s*/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+ )?([\w.]+)\s*(.*?);")
_READ = re.compile(r"(g?desc\[)?\bUR(\d+)\b(\.64)?")
_WRITERS = ("U", "R2UR", "S2UR", "VOTEU", "REDUX")


def read_before_written(cubin: bytes, folder: Path) -> list[str]:
    """Instructions that read a uniform register which nothing before them, in the order of the listing, has written."""
    path = folder / "uniform.cubin"
    path.write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    text = subprocess.run([tool, "-c", path], check=True, capture_output=True, text=True).stdout
    written, found = set[int](), []
    for line in text.splitlines():
        parts = _LINE.match(line)
        if parts is None:
            continue
        address, name, arguments = parts.groups()
        reads, writes = _read_and_written(name, arguments)
        if reads - written:
            found.append(f"{address}: {name} {arguments}")
        written |= reads | writes
    return found


def _read_and_written(name: str, arguments: str) -> tuple[set[int], set[int]]:
    is_writer, is_wide = name.startswith(_WRITERS), ".64" in name or "WIDE" in name
    sides, writes = [a.strip() for a in arguments.split(",")], set[int]()
    if is_writer:
        first = next((i for i, a in enumerate(sides) if not re.fullmatch(r"UP\w+", a)), 0)
        target = re.fullmatch(r"UR(\d+)", sides[first])
        if target:
            start = int(target[1])
            writes = set(range(start, start + (2 if is_wide else 1)))
            del sides[first]
    reads = set[int]()
    for kind, number, pair in _READ.findall(",".join(sides)):
        start = int(number) + (2 if kind == "gdesc[" else 0)  # of four, products read a descriptor from the last two
        reads |= {start, start + 1} if kind or pair or (is_writer and is_wide) else {start}
    return reads, writes
