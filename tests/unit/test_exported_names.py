"""The names of the package: those of the API are there or pending, sorted, with the API's values."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import fuseplan
from fuseplan.api import enums, pending
from fuseplan.errors import NotYetAvailableError

API: dict[str, Any] = json.loads((Path(__file__).parent / "api" / "api_names.json").read_text(encoding="utf-8"))


def is_there(owner: object, name: str) -> bool:
    return hasattr(owner, name)


def test_module_names_are_sorted_and_there() -> None:
    assert list(fuseplan.__all__) == sorted(fuseplan.__all__)
    assert [n for n in fuseplan.__all__ if not is_there(fuseplan, n)] == []


def test_module_shows_all_its_public_names() -> None:
    assert sorted(set(fuseplan.__all__) - set(dir(fuseplan))) == []
    assert {"Graph", "handle", "wrapper", "ops"} <= set(fuseplan.__all__)


#: What a graph has besides the API's names; README describes them.
ADDITIONS = {"autotune", "bind", "canonical_key", "device", "explain", "handle", "name"}


def test_graph_shows_the_names_of_the_api_and_the_documented_additions() -> None:
    shown = {n for n in dir(fuseplan.pygraph(device="cpu")) if not n.startswith("_")}
    api = {*API["graph_ops"], *API["graph_methods"], *API["graph_properties"]}
    assert shown - api == ADDITIONS
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert [n for n in sorted(ADDITIONS) if f"`{n}" not in readme] == []


def test_graph_is_one_class_over_one_base() -> None:
    bases = [one for one in fuseplan.pygraph.__mro__ if one.__module__.startswith("fuseplan")]
    assert len(bases) == 2


def test_module_ops_is_that_of_the_api() -> None:
    assert [n for n in dir(fuseplan.ops) if n in ("schema", "attention", "infer", "matmul")] == []
    for name in sorted(pending.OPS_NAMES):
        with pytest.raises(NotYetAvailableError, match=f"fuseplan.ops.{name}"):
            getattr(fuseplan.ops, name)


def test_module_names_of_the_api_are_there_or_pending() -> None:
    names = {*API["module"], *API["optional"]}
    there = {n for n in names if is_there(fuseplan, n)}
    assert sorted(names - there - pending.MODULE_NAMES) == []
    assert sorted(there & pending.MODULE_NAMES) == []
    assert len(there) >= 47


def test_graph_names_of_the_api_are_there_or_pending() -> None:
    graph = fuseplan.pygraph(device="cpu")
    names = [*API["graph_ops"], *API["graph_methods"], *API["graph_properties"]]
    missing = [n for n in names if not is_there(graph, n)]
    assert [n for n in missing if n not in pending.GRAPH_NAMES] == []
    for name in missing:
        with pytest.raises(NotYetAvailableError, match=name):
            getattr(graph, name)
    assert [n for n in API["graph_methods"] if n in missing] == ["populate_cuda_graph", "update_cuda_graph"]


def test_tensor_names_of_the_api_are_there() -> None:
    tensor = fuseplan.pygraph(device="cpu").tensor([1])
    assert [n for n in (*API["tensor_methods"], *API["tensor_attributes"]) if not is_there(tensor, n)] == []


@pytest.mark.parametrize("name", sorted(API["enums"]))
def test_enum_members_have_the_values_of_the_api(name: str) -> None:
    assert {m.name: m.value for m in getattr(enums, name)} == API["enums"][name]


def test_constructor_parameters_are_those_of_the_api_in_order() -> None:
    names = list(inspect.signature(fuseplan.pygraph.__init__).parameters)[1:]
    assert names[: len(API["graph_constructor"])] == API["graph_constructor"]


@pytest.mark.parametrize("method", sorted(API["method_parameters"]))
def test_method_parameters_are_those_of_the_api_in_order(method: str) -> None:
    found = getattr(fuseplan.pygraph, method, None)
    if found is None:
        assert method in pending.GRAPH_NAMES
        return
    names = list(inspect.signature(found).parameters)[1:]
    wanted = API["method_parameters"][method]
    assert names[: len(wanted)] == wanted


@pytest.mark.parametrize("name", sorted(pending.MODULE_NAMES)[:5] + ["sdpa_torch", "moe_ep"])
def test_pending_module_name_raises_by_name_and_is_missing(name: str) -> None:
    assert not hasattr(fuseplan, name)
    with pytest.raises(NotYetAvailableError, match=name):
        getattr(fuseplan, name)
    with pytest.raises(fuseplan.cudnnGraphNotSupportedError):
        getattr(fuseplan, name)


@pytest.mark.parametrize("owner", [fuseplan, fuseplan.pygraph(device="cpu")], ids=["module", "graph"])
def test_unknown_name_raises_plain_attribute_error(owner: object) -> None:
    with pytest.raises(AttributeError, match="no_such_name") as caught:
        owner.no_such_name  # type: ignore[attr-defined]  # noqa: B018
    assert not isinstance(caught.value, NotYetAvailableError)


def test_pending_graph_name_says_what_to_use_instead() -> None:
    with pytest.raises(NotYetAvailableError, match="strides of the view"):
        fuseplan.pygraph(device="cpu").slice  # noqa: B018
