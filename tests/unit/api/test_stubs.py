"""The stub file of the op methods is what the schemas give."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_stub_file_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_stubs", ROOT / "scripts" / "make_stubs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (ROOT / "fuseplan" / "api" / "methods.pyi").read_text(encoding="utf-8")
    assert written == module.stub_text(), "run: python scripts/make_stubs.py"
