"""Installs packages with an engine for a test."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fuseplan.engines import registry
from fuseplan.ir.graph import Graph
from fuseplan.testing.random_graphs import GraphMaker

Install = Callable[[str, str], None]


def forget() -> None:
    """Look for installed packages again at the next call."""
    registry._installed.cache_clear()
    registry.engines_for.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package of one module that holds an engine; it is gone after the test."""

    made = []

    def make(module: str, source: str) -> None:
        made.append(module)
        monkeypatch.syspath_prepend(str(tmp_path / module))
        (tmp_path / module / f"{module}-1.0.dist-info").mkdir(parents=True)
        (tmp_path / module / f"{module}.py").write_text(source, encoding="utf-8")
        info = tmp_path / module / f"{module}-1.0.dist-info"
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{module}_point = {module}:ENGINE\n")
        forget()

    yield make
    monkeypatch.undo()
    for module in made:
        sys.modules.pop(module, None)
    forget()


def chain(*ops: str) -> Graph:
    m = GraphMaker(random.Random(0))
    x = m.input((4, 8), stride=(8, 1))
    for op in ops:
        (x,) = m.node(op, {"input": x})
    return m.finish()
