"""The examples run, and README shows the first of them as it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs(file: Path) -> None:
    start = f"import sys, runpy; sys.path.insert(0, {str(ROOT)!r}); runpy.run_path({str(file)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-W", "error", "-c", start], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    errors = [float(e) for e in re.findall(r"(?:error|gelu) (\d[\d.e+-]*)", done.stdout)]
    assert errors and max(errors) < 2e-3, done.stdout


def test_readme_shows_the_quickstart() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks[0] == (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8")
