"""Graph methods made from op schemas: one per registered op, in both call orders."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fuseplan.api.binding import CallForm, bind, call_form
from fuseplan.api.construct import Construction
from fuseplan.ops.schema import OpSchema


def make_method(schema: OpSchema) -> Callable[..., Any]:
    """The method of an op."""
    form = call_form(schema)

    def method(self: Construction, *args: object, **kwargs: Any) -> Any:
        return self.add_node(form, bind(form, args, kwargs))

    method.__name__ = schema.name
    method.__qualname__ = f"pygraph.{schema.name}"
    method.__doc__ = document(form)
    method.__signature__ = signature(form)  # type: ignore[attr-defined]
    return method


def document(form: CallForm) -> str:
    """Docstring of an op's method."""
    schema = form.schema
    names = [name for name, _ in form.results]
    result = f"[{', '.join(names)}]" if schema.call.returns_list else names[0]
    return f"{(schema.call.doc or schema.name).rstrip()}\n\nReturns:\n    {result}\n"


def signature(form: CallForm, listed: tuple[str, ...] | None = None) -> inspect.Signature:
    """Signature with the listed parameters first; the others follow by keyword only.

    Args:
        listed: positional order; None is the classic one, which has all parameters
    """
    if listed is None:
        listed = tuple(dict.fromkeys((*form.schema.call.classic, *form.schema.call.positional)))
    made = inspect.Parameter
    parameters = [made("self", made.POSITIONAL_OR_KEYWORD)]
    is_open = True  # no default so far, so a required parameter may still come without one
    for name in listed:
        is_open = is_open and name in form.required
        default = made.empty if is_open else form.defaults.get(name)
        parameters.append(made(name, made.POSITIONAL_OR_KEYWORD, default=default))
    for name in sorted(set(form.matches) - set(listed)):
        default = made.empty if name in form.required else form.defaults.get(name)
        parameters.append(made(name, made.KEYWORD_ONLY, default=default))
    return inspect.Signature(parameters)
