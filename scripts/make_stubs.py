"""Write the stub file of the op methods from the registered schemas.

Run ``python scripts/make_stubs.py`` after a schema changes; a test compares the file with `stub_text`.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from fuseplan.api.binding import CallForm, call_form
from fuseplan.api.methods import document, signature
from fuseplan.ops.schema import OpSchema, all_schemas

STUB = Path(__file__).parents[1] / "fuseplan" / "api" / "op_methods.pyi"
WIDTH = 120
HEADER = """# table
# Written by scripts/make_stubs.py from the op schemas; do not edit.
from collections.abc import Sequence
from typing import Any, TypeAlias, overload

from fuseplan.api import enums
from fuseplan.api.construct import Construction
from fuseplan.api.tensor import Tensor
from fuseplan.ops.schema import OpSchema

# A graph tensor, or an array that exports DLPack; a data_type member or a torch dtype.
TensorLike: TypeAlias = Any
TypeLike: TypeAlias = Any
OutDims: TypeAlias = Sequence[int] | dict[str, Sequence[int]]

def attach(schema: OpSchema) -> None: ...

class OpMethods(Construction):
"""
TYPES = {
    "float": "float",
    "int": "int",
    "bool": "bool",
    "ints": "Sequence[int]",
    "any": "Any",
    "name": "str",
    "compute_data_type": "TypeLike",
    "out_dims": "OutDims",
}


def stub_text() -> str:
    """The stub file for the ops that are registered now."""
    return (HEADER + "\n".join(_method(schema) for schema in all_schemas())).rstrip() + "\n"


def _method(schema: OpSchema) -> str:
    """Stub of one method: one form, or two overloads where the newest order is not the start of the classic one."""
    form = call_form(schema)
    orders = [None] if schema.classic[: len(schema.positional)] == schema.positional else [None, schema.positional]
    result = "list[Tensor | None]" if schema.returns_list else "Tensor"
    if schema.returns_list and not any(name in form.optional_results for name, _ in form.results):
        result = "list[Tensor]"
    elif schema.returns_list:
        result = "list[Any]"  # absent results are None; which ones depends on the arguments
    heads = [_head(form, order, result) for order in orders]
    doc = document(form).rstrip().replace("\n", "\n        ").replace("        \n", "\n")
    body = f'\n        """{doc}\n        """\n'
    aliases = "".join(f"    {alias} = {schema.name}\n" for alias in schema.aliases)
    if len(heads) == 1:
        return heads[0] + body + aliases
    shown = "\n".join(f"    @overload\n{head}{body if i == 0 else ' ...'}" for i, head in enumerate(heads))
    return f"{shown}\n{aliases}" if aliases else shown


def _head(form: CallForm, order: tuple[str, ...] | None, result: str) -> str:
    parts, starred = ["self"], False
    for p in list(signature(form, order).parameters.values())[1:]:
        if p.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        has_default = p.default is not inspect.Parameter.empty
        kind = _type(form, p.name)
        parts.append(
            f"{p.name}: {kind} | None = ..." if has_default and kind != "Any" else _plain(p.name, kind, has_default)
        )
    line = f"    def {form.schema.name}({', '.join(parts)}) -> {result}:"
    if len(line) <= WIDTH - 4:
        return line
    inner = "".join(f"        {part},\n" for part in parts)
    return f"    def {form.schema.name}(\n{inner}    ) -> {result}:"


def _plain(name: str, kind: str, has_default: bool) -> str:
    return f"{name}: {kind} = ..." if has_default else f"{name}: {kind}"


def _type(form: CallForm, name: str) -> str:
    for attr in form.schema.attrs:
        if attr.name == name:
            return f"enums.{attr.kind[5:]}" if attr.kind.startswith("enum:") else TYPES[attr.kind]
    return TYPES.get(name, "TensorLike")


if __name__ == "__main__":
    STUB.write_text(stub_text(), encoding="utf-8")
    print(f"wrote {STUB} with {len(all_schemas())} methods")
