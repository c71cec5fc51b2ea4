"""Write the stub files of the op methods, from the registered schemas, and of the enumerations, from their data file.

Run ``python scripts/make_stubs.py`` after a schema or the data changes; a test compares the files with the texts.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from fuseplan.api import enums
from fuseplan.api.binding import CallForm, call_form
from fuseplan.api.methods import document, signature
from fuseplan.ops.schema import OpSchema, all_schemas

FOLDER = Path(__file__).parents[1] / "fuseplan" / "api"
WIDTH = 120
HEADER = """# table
# Written by scripts/make_stubs.py from the op schemas; do not edit.
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, overload

from fuseplan.api import enums
from fuseplan.api.binding import CallForm
from fuseplan.api.draft import GraphDraft
from fuseplan.api.tensor import Tensor
from fuseplan.ops.schema import OpSchema

# A graph tensor, or an array that exports DLPack; a data_type member or a torch dtype. None where optional.
Operand: TypeAlias = Any
TypeLike: TypeAlias = Any
Name: TypeAlias = str | None
Dims: TypeAlias = Sequence[int] | dict[str, Sequence[int]] | None

def attach(schema: OpSchema) -> None: ...
def make_method(schema: OpSchema) -> Callable[..., Any]: ...
def document(form: CallForm) -> str: ...
def signature(form: CallForm, listed: tuple[str, ...] | None = None) -> inspect.Signature: ...

"""
ENUMS_HEADER = """# table
# ruff: noqa: N801
# Written by scripts/make_stubs.py from enums.json; do not edit.
from enum import Enum
from typing import Any

FRONTEND_KNOB_TYPE_BASE: int
KINDS: dict[str, Any]

def is_frontend_knob_type(knob_type: knob_type) -> bool: ...
def read_data(name: str) -> dict[str, Any]: ...
"""
TYPES = {
    "float": "float",
    "int": "int",
    "bool": "bool",
    "ints": "Sequence[int]",
    "name": "Name",
    "compute_data_type": "TypeLike",
    "out_dims": "Dims",
}
HOLDS_NONE = ("Any", "Name", "Operand", "TypeLike", "Dims")


def stub_text() -> str:
    """The stub file for the ops that are registered now.

    Ops of one signature share a protocol; each has its docstring. Other ops are methods.
    """
    shared: dict[tuple[str, ...], list[OpSchema]] = {}
    for schema in all_schemas():
        shared.setdefault(_heads(schema, "__call__"), []).append(schema)
    names = {s.name: _protocol_name(group[0]) for group in shared.values() if len(group) > 1 for s in group}
    protocols = [
        f"class {_protocol_name(group[0])}(Protocol):\n" + "\n".join(f"{head} ..." for head in heads) + "\n"
        for heads, group in shared.items()
        if len(group) > 1
    ]
    members = [
        f"    {s.name}: {names[s.name]}\n{_document(s, 4)}" if s.name in names else _method(s) for s in all_schemas()
    ]
    return (
        HEADER
        + "\n".join((*protocols, "class OpMethods:\n    _draft: GraphDraft\n" + "".join(members))).rstrip()
        + "\n"
    )


def enums_text() -> str:
    """The stub file of the enumerations, so that type checkers and editors know their members."""
    text = ENUMS_HEADER
    for name, kind in enums.KINDS.items():
        members = "".join(f"    {member} = {value}\n" for member, value in kind["members"].items())
        text += f'\nclass {name}(Enum):\n    """{kind["doc"]}"""\n\n{members}'
    return text


def _protocol_name(schema: OpSchema) -> str:
    """For instance OfInputScale: named by the tensors that an op must have."""
    words = [word for p in schema.inputs if not p.is_optional for word in schema.call.name(p.name).split("_")]
    return "Of" + "".join(word.capitalize() for word in words)


def _document(schema: OpSchema, indent: int) -> str:
    """The docstring; results are listed where there may be several."""
    doc = document(call_form(schema)) if schema.call.returns_list else schema.call.doc
    end = "\n" if "\n" in doc else ""
    lines = f'"""{doc.rstrip()}{end}"""'.splitlines()
    return "".join(f"{' ' * indent}{line}\n" if line else "\n" for line in lines)


def _method(schema: OpSchema) -> str:
    """Stub of one method."""
    heads = _heads(schema, schema.name)
    first, *others = heads
    parts = [f"{first}\n{_document(schema, 8)}", *(f"{head} ...\n" for head in others)]
    return "".join(parts) + "".join(f"    {alias} = {schema.name}\n" for alias in schema.call.aliases)


def _heads(schema: OpSchema, name: str) -> tuple[str, ...]:
    """One form, or two overloads where the newest order is not the start of the classic one."""
    form, call = call_form(schema), schema.call
    orders = [None] if call.classic[: len(call.positional)] == call.positional else [None, call.positional]
    result = "Tensor"
    if call.returns_list:  # absent results are None; which ones depends on the arguments
        is_certain = not any(port in form.optional_results for port, _ in form.results)
        result = "list[Tensor]" if is_certain else "list[Any]"
    mark = "    @overload\n" if len(orders) > 1 else ""
    return tuple(f"{mark}{_head(form, name, order, result)}" for order in orders)


def _head(form: CallForm, name: str, order: tuple[str, ...] | None, result: str) -> str:
    parts, starred = ["self"], False
    for p in list(signature(form, order).parameters.values())[1:]:
        if p.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        kind = _type(form, p.name)
        if p.default is not inspect.Parameter.empty:
            kind = f"{kind} = ..." if kind in HOLDS_NONE else f"{kind} | None = ..."
        parts.append(f"{p.name}: {kind}")
    listed = ", ".join(parts)
    line = f"    def {name}({listed}) -> {result}:"
    if len(line) <= WIDTH - 4:
        return line
    inner = f"        {listed}\n" if len(listed) <= WIDTH - 8 else "".join(f"        {part},\n" for part in parts)
    return f"    def {name}(\n{inner}    ) -> {result}:"


def _type(form: CallForm, name: str) -> str:
    if name in form.schema.call.arguments:
        return "Any"
    for attr in form.schema.attrs:
        if form.schema.call.name(attr.name) == name:
            return f"enums.{attr.kind[5:]}" if attr.kind.startswith("enum:") else TYPES[attr.kind]
    return TYPES.get(name, "Operand")


if __name__ == "__main__":
    for file, text in (("methods.pyi", stub_text()), ("enums.pyi", enums_text())):
        (FOLDER / file).write_text(text, encoding="utf-8")
        print(f"wrote {FOLDER / file}")
