"""Every claim in claims.json holds; an engine that loses a claimed graph fails here instead of being skipped."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from fuseplan.ir.limits import everything
from fuseplan.lowering.pipeline import lower
from fuseplan.lowering.verify import verify_region
from fuseplan.testing.conformance import Claim, reached_rung, read_claims, read_graph

FOLDER = Path(__file__).parent
CLAIMS = read_claims(FOLDER)
GRAPHS = {p.stem for p in FOLDER.glob("*.json")} - {"claims"}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: f"{c.graph}-{c.engine}")
def test_engine_reaches_exactly_the_claimed_rung(claim: Claim) -> None:
    graph = read_graph(FOLDER, claim.graph)
    if claim.arch and importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    assert reached_rung(graph, claim.engine, is_alone=claim.is_alone, device=claim.device) == claim.rung


def test_every_graph_file_has_a_claim_of_the_general_engine() -> None:
    claimed = {c.graph for c in CLAIMS if c.engine == "array" and c.rung == "correct"}
    assert claimed == GRAPHS


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_every_graph_is_one_region_where_everything_fuses(name: str) -> None:
    graph = read_graph(FOLDER, name)
    (piece,) = lower(graph, everything())
    assert [n.name for n in piece.region.graph.nodes] == [n.name for n in graph.nodes]
    verify_region(piece.region)


def test_claim_about_a_missing_graph_is_refused(tmp_path: Path) -> None:
    bad = [{"graph": "nothing", "engine": "array", "rung": "correct"}]
    (tmp_path / "claims.json").write_text(json.dumps(bad))
    with pytest.raises(ValueError, match=r"nothing\.json"):
        read_claims(tmp_path)
