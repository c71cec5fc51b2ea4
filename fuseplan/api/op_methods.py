"""The class that carries the op methods; its types stand in the stub file beside it (scripts/make_stubs.py)."""

from __future__ import annotations

import fuseplan.ops  # noqa: F401 - registers the ops
from fuseplan.api.construct import Construction
from fuseplan.api.methods import make_method
from fuseplan.ops.schema import OpSchema, all_schemas


class OpMethods(Construction):
    """Building methods of a graph, one for each registered op."""


def attach(schema: OpSchema) -> None:
    """Give graphs the method of an op, under each of its names."""
    method = make_method(schema)
    for name in (schema.name, *schema.call.aliases):
        setattr(OpMethods, name, method)


for _schema in all_schemas():
    attach(_schema)
