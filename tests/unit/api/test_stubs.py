"""The stub files of the op methods and the enumerations are what the schemas and the data file give."""

from __future__ import annotations

import importlib.util
import pickle
import re
from enum import Enum
from pathlib import Path

import pytest

from fuseplan.api import enums

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("file", "made_by"), [("methods.pyi", "stub_text"), ("enums.pyi", "enums_text")])
def test_stub_file_is_up_to_date(file: str, made_by: str) -> None:
    spec = importlib.util.spec_from_file_location("make_stubs", ROOT / "scripts" / "make_stubs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (ROOT / "fuseplan" / "api" / file).read_text(encoding="utf-8")
    assert written == getattr(module, made_by)(), "run: python scripts/make_stubs.py"


@pytest.mark.parametrize("name", list(enums.KINDS))
def test_enums_made_from_data_are_plain_enums_of_their_module(name: str) -> None:
    kind = getattr(enums, name)
    assert issubclass(kind, Enum) and (kind.__module__, kind.__qualname__) == ("fuseplan.api.enums", name)
    assert kind.__doc__.endswith(".")
    assert all(pickle.loads(pickle.dumps(member)) is member for member in kind)


def test_data_files_are_part_of_the_package() -> None:
    packed = re.search(r"^\"\*\" = (.+)$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    kinds = {path.suffix for path in (ROOT / "fuseplan" / "api").iterdir() if path.is_file()} - {".py"}
    assert packed is not None and kinds == {".json", ".pyi"}
    assert [kind for kind in kinds if f'"*{kind}"' not in packed.group(1)] == []
