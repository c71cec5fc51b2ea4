"""Repeats one random graph and shrinks it if it fails: ``python -m fuseplan.testing.fuzz exact 17``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from fuseplan.codegen.text import print_graph
from fuseplan.engines.registry import engines_for
from fuseplan.ir.graph import Graph
from fuseplan.plan.graph_json import dumps
from fuseplan.testing.random_graphs import exact_graph, smooth_graph, wide_graph
from fuseplan.testing.run import judge_engines
from fuseplan.testing.shrink import shrink

KINDS: dict[str, Callable[[int], Graph]] = {"exact": exact_graph, "smooth": smooth_graph, "wide": wide_graph}
#: Share of elements that may be undecided; wide graphs hold ill-conditioned operations on purpose.
MAX_UNDECIDED = {"exact": 0.0, "smooth": 0.05, "wide": 0.5}


def repeat_command(kind: str, seed: int, engine: str) -> str:
    """The command that repeats one case."""
    return f"python -m fuseplan.testing.fuzz {kind} {seed} --engine {engine}"


def main(argv: list[str] | None = None) -> int:
    """Run one case; on failure print the shrunk graph as text and JSON and return 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("seed", type=int)
    parser.add_argument("--engine", default=engines_for("cpu")[0].name)
    args = parser.parse_args(argv)
    graph = KINDS[args.kind](args.seed)
    verdict = judge_engines(graph, [args.engine], args.seed)[args.engine]
    print(verdict)
    if verdict.is_right:
        return 0
    small = shrink(graph, lambda g: not judge_engines(g, [args.engine], args.seed)[args.engine].is_right)
    print(print_graph(small))
    print(dumps(small))
    return 1


if __name__ == "__main__":
    sys.exit(main())
