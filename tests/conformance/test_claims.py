"""Every claim in claims.json holds; an engine that loses a claimed graph fails here instead of being skipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuseplan.testing.conformance import Claim, reached_rung, read_claims, read_graph

FOLDER = Path(__file__).parent
CLAIMS = read_claims(FOLDER)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: f"{c.graph}-{c.engine}")
def test_engine_reaches_exactly_the_claimed_rung(claim: Claim) -> None:
    graph = read_graph(FOLDER, claim.graph)
    assert reached_rung(graph, claim.engine, is_alone=claim.is_alone) == claim.rung


def test_every_graph_file_has_a_claim_of_the_general_engine() -> None:
    claimed = {c.graph for c in CLAIMS if c.engine == "array" and c.rung == "correct"}
    assert claimed == {p.stem for p in FOLDER.glob("*.json")} - {"claims"}


def test_claim_about_a_missing_graph_is_refused(tmp_path: Path) -> None:
    bad = [{"graph": "nothing", "engine": "array", "rung": "correct"}]
    (tmp_path / "claims.json").write_text(json.dumps(bad))
    with pytest.raises(ValueError, match=r"nothing\.json"):
        read_claims(tmp_path)
