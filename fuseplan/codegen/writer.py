"""An indented line writer, and the canonical names that generated text uses instead of the user's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fuseplan.ir.region import Operand, Region, Role, Value

_PREFIX = {
    Role.IN: "x",
    Role.SCALAR: "c",
    Role.OUT: "y",
    Role.INOUT: "y",
    Role.SCRATCH: "s",
}


class LineWriter:
    """Collects lines at the current depth; languages with braces use `open` and `close`, others `indent`."""

    def __init__(self, unit: str = "  ") -> None:
        self._unit = unit
        self._pad = ""
        self._lines: list[str] = []

    def line(self, text: str = "") -> None:
        """One line at the current depth; an empty one carries no blanks."""
        self._lines.append(self._pad + text if text else "")

    def margin(self, text: str) -> None:
        """One line at depth 0, for preprocessor lines."""
        self._lines.append(text)

    def open(self, text: str) -> None:
        """A line after which the depth is one more."""
        self._lines.append(self._pad + text)
        self._pad += self._unit

    def close(self, text: str = "}") -> None:
        """A line before which the depth is one less; without text only the depth changes."""
        self._pad = self._pad[len(self._unit) :]
        if text:
            self._lines.append(self._pad + text)

    @contextmanager
    def indent(self, text: str) -> Iterator[None]:
        """A line, and one more level of depth for what is written inside."""
        self.open(text)
        yield
        self.close("")

    def text(self) -> str:
        """Everything written so far, ending in a newline."""
        return "\n".join(self._lines) + "\n"


def operand_names(operands: Sequence[Operand]) -> tuple[str, ...]:
    """In launch order: x0, ... for inputs, c0, ... for host scalars, y0, ... for outputs, s0, ... for scratch."""
    counts = dict.fromkeys(_PREFIX.values(), 0)
    names = []
    for operand in operands:
        prefix = _PREFIX[operand.role]
        names.append(f"{prefix}{counts[prefix]}")
        counts[prefix] += 1
    return tuple(names)


def node_numbers(values: Sequence[Value]) -> tuple[int, ...]:
    """For each value the number of its node inside the region, counted from 0 in order; -1 for none.

    Numbers of the source graph would make equal kernels differ.
    """
    seen: dict[int, int] = {-1: -1}
    return tuple([seen.setdefault(v.node, len(seen) - 1) for v in values])


def region_summary(region: Region) -> list[str]:
    """The region in canonical names, one line per operand and value, for the header of shown source."""
    names = operand_names(region.operands)
    lines = [
        f"{name}: {_shown(o, names)}"
        for name, o in zip(names, region.operands, strict=True)
    ]
    numbers = node_numbers(region.values)
    for i, v in enumerate(region.values):
        args = [f"v{a}" for a in v.args] + [f"{key}={value}" for key, value in v.attrs]
        if i in region.operand_of:
            args.append(names[region.operand_of[i]])
        where = f"  (node {numbers[i]})" if numbers[i] >= 0 else ""
        lines.append(
            f"v{i} = {v.op}({', '.join(args)}): {v.dtype} {list(v.dim)}{where}"
        )
        if v.body is not None:
            lines += ["  " + line for line in region_summary(v.body)]
    lines += [f"{names[operand]} = v{value}" for value, operand in region.stores]
    return lines


def _shown(o: Operand, names: Sequence[str]) -> str:
    text = f"{o.role.value} {o.dtype} dim {list(o.dim)} stride {list(o.stride)}"
    if o.offset:
        text += f" from element {o.offset}"
    if o.rows is not None:
        text += f" sequences from {names[o.rows[0]]} times {o.rows[1]}"
    if o.init is not None:
        text += f" starting at {o.init}"
    return text + (f", stores joined by {o.combine}" if o.combine else "")
