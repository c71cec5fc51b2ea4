"""Changes to a copy of the repository, what they touched, and programs that run in the copy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("fuseplan", "tests", "scripts", "docs", "CHANGELOG.md", "pyproject.toml")


class Copy:
    """A copy of the repository in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
            else:
                shutil.copy(source, folder / part)
        self._before = self._contents()

    def _contents(self) -> dict[str, bytes]:
        files = [p for p in self.folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        return {str(p.relative_to(self.folder)): p.read_bytes() for p in files}

    def insert(self, file: str, before: str, text: str) -> None:
        """Put text in front of the only place where `before` stands in a file."""
        path = self.folder / file
        old = path.read_text(encoding="utf-8")
        assert old.count(before) == 1, f"{file} holds {before!r} {old.count(before)} times"
        path.write_text(old.replace(before, text + before), encoding="utf-8")

    def write(self, file: str, text: str) -> None:
        """A new file."""
        path = self.folder / file
        assert not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def touched(self) -> dict[str, int]:
        """File -> lines more than before, for every file that is new or differs."""
        now = self._contents()
        assert not self._before.keys() - now.keys()
        return {
            file: len(data.splitlines()) - len(self._before.get(file, b"").splitlines())
            for file, data in now.items()
            if data != self._before.get(file)
        }

    def run(self, *arguments: str) -> str:
        """What Python prints in the copy, with the copy first on its path; it must end well."""
        start = f"import sys; sys.path.insert(0, {str(self.folder)!r}); sys.dont_write_bytecode = True; "
        start += "import runpy; sys.argv = sys.argv[1:]; "
        start += "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
        command = [sys.executable, "-c", start, *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout

    def pytest(self, *arguments: str) -> None:
        """Run tests of the copy; they must pass, and there must be some."""
        said = self.run("pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(self.folder), *arguments)
        assert " passed" in said, said


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path / "copy")
