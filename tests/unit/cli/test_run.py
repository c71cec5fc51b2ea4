"""`fuseplan run`: programs that import the reference API's name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run_command(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`fuseplan ARGS` in a process of its own, from the source tree."""
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from fuseplan.cli.main import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", start, *args], cwd=cwd, capture_output=True, text=True, timeout=120)


PROGRAM = """
import sys
import helper
import cudnn
import fuseplan
from cudnn import pygraph, data_type
import cudnn.testing
from cudnn import testing as second
import fuseplan.testing
assert cudnn is fuseplan and pygraph is fuseplan.pygraph and data_type is fuseplan.data_type
assert cudnn.testing is fuseplan.testing and second is fuseplan.testing
assert fuseplan.testing.__name__ == "fuseplan.testing" and fuseplan.testing.__spec__.name == "fuseplan.testing"
import cudnn.gemm
from cudnn.wrapper import Graph
assert cudnn.gemm.__name__ == "fuseplan.gemm" and Graph is cudnn.Graph
assert not hasattr(cudnn.gemm, "swiglu_mlp")
import cudnn.ops
import cudnn.ops as operations
assert cudnn.ops is operations and not hasattr(operations, "schema") and not hasattr(operations, "causal_conv1d")
try:
    import cudnn.no_such_part
except ImportError as error:
    assert error.name == "cudnn.no_such_part" and "no_such_part" in str(error)
else:
    raise SystemExit("a missing submodule was imported")
try:
    from cudnn import no_such_name
except ImportError as error:
    assert "no_such_name" in str(error)
else:
    raise SystemExit("a missing name was imported")
assert __name__ == "__main__" and sys.modules["__main__"].helper is helper
print(helper.VALUE, sys.argv[1:])
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "helper.py").write_text("VALUE = 'from beside the program'\n")
    (folder / "prog.py").write_text(PROGRAM)
    return folder / "prog.py"


def test_run_file_resolves_every_import_form_and_passes_arguments_and_exit_code(program: Path, tmp_path: Path) -> None:
    done = run_command("run", str(program), "3", "--flag", "-m", cwd=tmp_path)
    assert done.stdout == "from beside the program ['3', '--flag', '-m']\n", done.stderr
    assert done.returncode == 3


def test_run_module_takes_it_from_the_current_folder(program: Path) -> None:
    done = run_command("run", "-m", "prog", "0", "-x", cwd=program.parent)
    assert done.stdout == "from beside the program ['0', '-x']\n", done.stderr
    assert done.returncode == 0


def test_run_program_that_raises_shows_its_traceback_and_exits_with_one(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def f():\n    raise KeyError('from the program')\nf()\n")
    done = run_command("run", "bad.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "KeyError: 'from the program'" in done.stderr and "bad.py" in done.stderr


@pytest.mark.parametrize("form", [("bad.py",), ("-m", "bad")], ids=" ".join)
def test_run_traceback_starts_in_the_program(form: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def f():\n    import cudnn.no_such_part\nf()\n")
    done = run_command("run", *form, cwd=tmp_path)
    assert done.returncode == 1
    first, frame, *_ = done.stderr.splitlines()
    assert first.startswith("Traceback") and "bad.py" in frame and "line 3" in frame, done.stderr
    assert "cli/main.py" not in done.stderr and "runpy" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: No module named 'cudnn.no_such_part': fuseplan has no 'no_such_part' yet"
    )


def test_run_program_that_does_not_compile_shows_the_line(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def f(:\n")
    done = run_command("run", "bad.py", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0].strip() == 'File "bad.py", line 1', done.stderr


def test_run_missing_file_says_so(tmp_path: Path) -> None:
    done = run_command("run", "nowhere.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "no file 'nowhere.py'" in done.stderr
