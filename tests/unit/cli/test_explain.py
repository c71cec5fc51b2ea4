"""`fuseplan explain` on graphs in files."""

from __future__ import annotations

from pathlib import Path

import pytest

import fuseplan
from fuseplan.engines.registry import engines_for
from fuseplan.plan import graph_json
from tests.unit.cli.invoke import invoke


def small_graph() -> fuseplan.pygraph:
    flt = fuseplan.data_type.FLOAT
    g = fuseplan.pygraph(name="explained", io_data_type=flt, handle=fuseplan.create_handle(device="cpu"))
    x = g.tensor(dim=[4, 8, 8], name="x")
    y = g.relu(input=g.add(a=x, b=x), name="last")
    y.set_output(True)
    return g


def saved_graph(folder: Path) -> Path:
    g = small_graph()
    g.validate()
    assert g._draft.graph is not None
    file = folder / "graph.json"
    file.write_text(graph_json.dumps(g._draft.graph))
    return file


def test_explain_graph_shows_regions_ranking_and_key(tmp_path: Path) -> None:
    done = invoke("explain", str(saved_graph(tmp_path)))
    assert done.exit_code == 0, done.output
    for piece in ("graph 'explained'", "canonical key", "ranking", "refusals", "region 0", "last"):
        assert piece in done.output


def test_explain_passes_shows_the_regions_of_each_engine_after_each_pass(tmp_path: Path) -> None:
    file = str(saved_graph(tmp_path))
    shown = invoke("explain", file, "--passes").output
    plain = invoke("explain", file).output
    assert shown.startswith(plain) and "passes of" not in plain
    sections = [part.splitlines() for part in shown[len(plain) :].split("passes of ")[1:]]
    assert [lines[0] for lines in sections] == [f"{e.name}:" for e in engines_for("cpu")]
    for heading, *lines in sections:
        passes = [line.strip() for line in lines if "region" in line or "after" in line]
        region = "region 0 2 node(s): add.0(add), last(relu)"
        assert passes[:2] == ["after partition and fuse: 1 region(s)", region]
        assert passes[2:4] == ["after offer: 1 region(s)", region]
        assert passes[4:] == [f"after assign: {heading.rstrip(':')}"]


def test_explain_takes_the_repr_of_a_graph_as_it_was_declared_or_built(tmp_path: Path) -> None:
    g = small_graph()
    (tmp_path / "declared.json").write_text(repr(g))
    g.build()
    (tmp_path / "built.json").write_text(repr(g))
    want = invoke("explain", str(saved_graph(tmp_path))).output
    for name in ("declared.json", "built.json"):
        done = invoke("explain", str(tmp_path / name))
        assert done.exit_code == 0, done.output
        assert done.output == want


def test_explain_invalid_graph_names_the_node(tmp_path: Path) -> None:
    g = fuseplan.pygraph(io_data_type=fuseplan.data_type.FLOAT, device="cpu")
    g.reduction(input=g.tensor(dim=[4, 8]), mode=fuseplan.reduction_mode.ADD, name="sum").set_output(True)
    (tmp_path / "bad.json").write_text(repr(g))
    done = invoke("explain", str(tmp_path / "bad.json"))
    assert done.exit_code == 1
    assert "node 'sum'" in done.output and "set_dim" in done.output


@pytest.mark.parametrize("text", ['{"format": "other"}', "[1, 2]", "import cudnn", "\x00"])
def test_explain_other_files_says_what_it_takes(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.txt").write_text(text)
    done = invoke("explain", str(tmp_path / "other.txt"))
    assert done.exit_code == 1
    assert "other.txt" in done.output and "repr(graph)" in done.output and "serialize()" in done.output


def test_explain_file_that_is_no_graph_says_why(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"format": "other"}')
    done = invoke("explain", str(tmp_path / "other.json"))
    assert done.exit_code == 1
    assert "other.json" in done.output


def test_explain_missing_file_says_so(tmp_path: Path) -> None:
    done = invoke("explain", str(tmp_path / "none.json"))
    assert done.exit_code == 2
    assert "no file" in done.output


def test_explain_saved_plan_shows_what_the_file_holds(tmp_path: Path) -> None:
    g = small_graph()
    g.build()
    (tmp_path / "plan.bin").write_bytes(bytes(g.serialize()))
    done = invoke("explain", str(tmp_path / "plan.bin"))
    assert done.exit_code == 0, done.output
    for piece in ("saved plan", "launch 0", "canonical key", "ranking", "region 0"):
        assert piece in done.output


def test_explain_damaged_plan_says_so(tmp_path: Path) -> None:
    g = small_graph()
    g.build()
    blob = bytearray(bytes(g.serialize()))
    blob[len(blob) // 2] ^= 0xFF
    (tmp_path / "plan.bin").write_bytes(bytes(blob))
    done = invoke("explain", str(tmp_path / "plan.bin"))
    assert done.exit_code == 1
    assert "damaged" in done.output
