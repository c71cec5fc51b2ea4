"""Which argument is which: keywords by name, positionals by order and type, values as nodes store them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from numbers import Real
from typing import Any

import numpy as np

from fuseplan.api import enums
from fuseplan.api.datatypes import is_data_type, to_enum, to_int, to_ints
from fuseplan.api.tensor import Tensor
from fuseplan.errors import ArgumentError
from fuseplan.ir.graph import AttrValue
from fuseplan.ops.array_facts import is_array
from fuseplan.ops.schema import Attr, OpSchema

Convert = Callable[[object], AttrValue]
Matches = Callable[[object], bool]


def is_number(value: object) -> bool:
    """Whether an argument is a plain number, which no bool is."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor) or is_array(value)


def _is_operand(value: object) -> bool:
    return _is_tensor(value) or is_number(value)


def _is_anything(value: object) -> bool:
    return True


def _is_ints(value: object) -> bool:
    return not isinstance(value, (str, bytes, Tensor)) and hasattr(value, "__iter__") and not is_array(value)


_ONE_PADDING = {"padding", "pre_padding"}  # types do not tell these forms apart, but no call gives both

_MATCHES: dict[str, Matches] = {
    "float": is_number,
    "int": lambda v: hasattr(v, "__index__") and not isinstance(v, bool),
    "bool": lambda v: isinstance(v, (bool, np.bool_)),
    "ints": _is_ints,
}


@dataclass(frozen=True)
class CallForm:
    """What the method of one op accepts, worked out once from its schema; all names are the API's.

    Args:
        ports: tensor arguments
        required: tensor arguments and attributes that a node needs
        results: output ports that the method makes and returns, with the labels of their default names
        optional_results: those of them that a call may leave out
        given_results: output ports whose tensors are passed as arguments
        converts: stored attributes with the conversion of their values
        defaults: stored attributes as they are when left out
        orders: positional orders to try, newest first
        certain: how many leading parameters the orders have in common
        matches: type test by parameter
    """

    schema: OpSchema
    ports: tuple[str, ...]
    required: frozenset[str]
    results: tuple[tuple[str, str], ...]
    optional_results: frozenset[str]
    given_results: tuple[str, ...]
    converts: dict[str, Convert]
    defaults: dict[str, AttrValue]
    orders: tuple[tuple[str, ...], ...]
    certain: int
    matches: dict[str, Matches]


def call_form(schema: OpSchema) -> CallForm:
    """Work out the call form of an op."""
    call, named = schema.call, schema.call.name
    parameters = {*call.positional, *call.classic}
    results = [named(p.name) for p in schema.outputs]
    given = tuple(name for name in results if name in parameters)
    ports = tuple(named(p.name) for p in schema.inputs)
    attrs = {named(a.name): a for a in schema.attrs}
    matches: dict[str, Matches] = {**dict.fromkeys(ports, _is_operand), **dict.fromkeys(given, _is_tensor)}
    matches.update(dict.fromkeys(call.arguments, _is_anything))
    matches.update({name: _matcher(a) for name, a in attrs.items() if name not in call.hidden})
    matches.update(name=lambda v: isinstance(v, str), compute_data_type=is_data_type)
    matches["out_dims"] = lambda v: isinstance(v, dict) or _is_ints(v)
    required = {named(p.name) for p in schema.inputs if not p.is_optional}
    required |= {name for name, a in attrs.items() if a.is_required}
    orders = tuple(dict.fromkeys((call.positional, call.classic, _split_padding(call.classic))))
    certain = 0
    while all(len(o) > certain for o in orders) and len({o[certain] for o in orders}) == 1:
        certain += 1
    return CallForm(
        schema=schema,
        ports=ports,
        required=frozenset(required),
        results=tuple(
            (named(p.name), call.labels.get(p.name, named(p.name)))
            for p in schema.outputs
            if named(p.name) not in given
        ),
        optional_results=frozenset(named(p.name) for p in schema.outputs if p.is_optional),
        given_results=given,
        converts={name: _converter(a, f"{schema.name}(): {name}") for name, a in attrs.items()},
        defaults={name: a.default for name, a in attrs.items()},
        orders=orders,
        certain=certain,
        matches=matches,
    )


def bind(form: CallForm, args: tuple[object, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name, without those that are None. Raises ArgumentError."""
    bound = {name: value for name, value in kwargs.items() if value is not None}
    for name in bound:
        if name not in form.matches:
            near = get_close_matches(name, form.matches, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ArgumentError(
                f"{form.schema.name}() has no argument {name!r}", fix=f"{hint}it takes {', '.join(form.matches)}"
            )
    if not args:
        return bound
    for name, value in zip(_order(form, args), args, strict=False):
        if value is None:
            continue
        if name in bound:
            raise ArgumentError(f"{form.schema.name}(): {name!r} is given twice", fix="pass it once")
        bound[name] = value
    return bound


def _order(form: CallForm, args: tuple[object, ...]) -> tuple[str, ...]:
    """The positional order that the arguments' types fit; the classic one if none fits."""
    if len(args) <= form.certain:
        return form.orders[0]
    for order in form.orders:
        if len(args) <= len(order) and _fits(form, order, args):
            return order
    longest = max(form.orders, key=len)
    if len(args) > len(longest):
        raise ArgumentError(
            f"{form.schema.name}() takes at most {len(longest)} positional arguments, not {len(args)}",
            fix=f"the order is {', '.join(longest)}",
        )
    wrong = next(n for n, v in zip(longest, args, strict=False) if v is not None and not form.matches[n](v))
    raise ArgumentError(
        f"{form.schema.name}(): the positional arguments fit no order of parameters; {wrong!r} has the wrong type",
        asked=f"{form.schema.name}({', '.join(_short(v) for v in args)})",
        fix="pass by keyword, or in one of the orders: " + "; ".join(", ".join(o) for o in form.orders),
    )


def _fits(form: CallForm, order: tuple[str, ...], args: tuple[object, ...]) -> bool:
    """Whether the arguments have the types of this order, and it gives padding in one form only."""
    given = {name: v for name, v in zip(order, args, strict=False) if v is not None}
    return not given.keys() >= _ONE_PADDING and all(form.matches[name](v) for name, v in given.items())


def _split_padding(order: tuple[str, ...]) -> tuple[str, ...]:
    """The second classic form of convolutions: padding before and after instead of one padding."""
    if not {"padding", "pre_padding", "post_padding"} <= set(order):
        return order
    rest = [name for name in order if name not in ("pre_padding", "post_padding")]
    at = rest.index("padding")
    return (*rest[:at], "pre_padding", "post_padding", *rest[at + 1 :])


def _short(value: object) -> str:
    return repr(value) if isinstance(value, (int, float, str, bool)) else type(value).__name__


def _matcher(attr: Attr) -> Matches:
    if attr.kind.startswith("enum:"):
        kind = getattr(enums, attr.kind[5:])
        return lambda v: isinstance(v, kind)
    return _MATCHES[attr.kind]


def _converter(attr: Attr, what: str) -> Convert:
    if attr.kind.startswith("enum:"):
        return partial(to_enum, kind=getattr(enums, attr.kind[5:]), what=what)
    if attr.kind == "ints":
        return partial(to_ints, what=what)
    return partial({"float": _to_float, "int": to_int, "bool": _to_bool}[attr.kind], what=what)


def _to_float(value: object, what: str) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__") or isinstance(value, Tensor):
        raise ArgumentError(f"{what} must be a float, not {value!r}", fix="pass a number")
    return float(value)


def _to_bool(value: object, what: str) -> bool:
    if isinstance(value, (bool, np.bool_)) or (hasattr(value, "__index__") and value in (0, 1)):
        return bool(value)
    raise ArgumentError(f"{what} must be True or False, not {value!r}", fix="pass a bool")
