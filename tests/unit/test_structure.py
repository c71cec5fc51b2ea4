"""The structure of the package: import direction, sizes, exported names, where engines are named.

Each rule is also shown a small tree that breaks it, and must see it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.structure.imports import import_cycles, import_violations
from tests.unit.structure.names import engine_name_violations, engine_names, export_violations
from tests.unit.structure.sizes import BUDGETS, count_tokens, measure_sizes

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "fuseplan"
FOLDERS = ("fuseplan", "tests", "benchmarks", "examples", "scripts")


def plant(root: Path, files: dict[str, str]) -> Path:
    """Write a small package with the layers that the files need."""
    package = root / "fuseplan"
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for folder in {p for f in package.rglob("*.py") for p in f.parents if package in (p, *p.parents)}:
        (folder / "__init__.py").touch()
    return package


def test_imports_go_one_way() -> None:
    assert import_violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("ir/graph.py", "from fuseplan.ops.schema import X\n", "ir may not import ops"),
        ("ir/graph.py", "from ..ops import schema\n", "ir may not import ops"),
        ("ir/graph.py", "def f():\n    import fuseplan.plan.plan  # import here: a reason\n", "ir may not import plan"),
        ("ir/graph.py", "if TYPE_CHECKING:\n    from fuseplan.plan.plan import P\n", "ir may not import plan"),
        ("lowering/fuse.py", "import fuseplan.codegen.writer\n", "lowering may not import codegen"),
        ("engines/one/engine.py", "from fuseplan.ops.schema import X\n", "an engine sees"),
        ("engines/one/engine.py", "from fuseplan.engines.two import emit\n", "an engine sees"),
        ("engines/one/engine.py", "from fuseplan.lowering import fuse\n", "an engine sees"),
        ("plan/plan.py", "from fuseplan.cli import main\n", "nothing imports cli"),
        ("plan/plan.py", "import fuseplan\n", "only what stands above the API"),
        ("plan/plan.py", "from fuseplan.extra import X\n", "extra has no layer"),
        ("plan/plan.py", "def f():\n    import json\n", "inside a function"),
        ("plan/plan.py", "import torch\n", "at module level"),
    ],
    ids=lambda value: value if value.endswith(".py") else "",
)
def test_imports_wrong_arrow_is_seen(tmp_path: Path, file: str, text: str, message: str) -> None:
    empty = {"ops/schema.py": "", "plan/plan.py": "", "cli/main.py": "", "engines/two/emit.py": "", "extra.py": "",
             "lowering/fuse.py": "", "codegen/writer.py": ""}  # fmt: skip
    found = import_violations(plant(tmp_path, {**empty, file: text}))
    assert len(found) == 1 and message in found[0]


def test_imports_right_arrows_pass(tmp_path: Path) -> None:
    files = {
        "ops/schema.py": "from fuseplan.ir.graph import G\nfrom fuseplan import dtypes\n",
        "ir/graph.py": "from fuseplan.errors import E\n",
        "errors.py": "", "dtypes.py": "",
        "engines/base.py": "from fuseplan.ir.graph import G\n",
        "engines/array/engine.py": "from fuseplan.ops.schema import S\nfrom fuseplan.engines.base import E\n",
        "plan/plan.py": "def f():\n    import torch\n    from triton import jit\n    import ast  # import here: slow\n",
        "cli/main.py": "import fuseplan\nfrom fuseplan.cli import run\n", "cli/run.py": "",
    }  # fmt: skip
    assert import_violations(plant(tmp_path, files)) == []


def test_imports_inside_a_folder_go_in_no_circle() -> None:
    assert import_cycles(PACKAGE) == []


TO_B = "from fuseplan.ir.b import B\n"


@pytest.mark.parametrize(
    ("files", "circle"),
    [
        ({"ir/a.py": TO_B, "ir/b.py": "from fuseplan.ir import a\n"}, "ir.a -> ir.b -> ir.a"),
        ({"ir/a.py": TO_B, "ir/b.py": "if TYPE_CHECKING:\n    from fuseplan.ir.a import A\n"}, "ir.a -> ir.b -> ir.a"),
        (
            {
                "plan/x/a.py": "import fuseplan.plan.b\n", "plan/b.py": "def f():\n    from fuseplan.plan.c import C\n",
                "plan/c.py": "from fuseplan.plan.x.a import A\n",
            },
            "plan.b -> plan.c -> plan.x.a -> plan.b",
        ),
    ],
    ids=["two", "typing", "three"],
)  # fmt: skip
def test_imports_in_a_circle_are_seen(tmp_path: Path, files: dict[str, str], circle: str) -> None:
    assert import_cycles(plant(tmp_path, files)) == [circle]


def test_imports_without_a_circle_pass(tmp_path: Path) -> None:
    files = {"ir/a.py": "from fuseplan.ir import b, c\n", "ir/b.py": "from fuseplan.ir.c import C\n", "ir/c.py": ""}
    assert import_cycles(plant(tmp_path, files)) == []


def test_sizes_are_within_limits(capsys: pytest.CaptureFixture[str]) -> None:
    report = measure_sizes(ROOT, FOLDERS)
    with capsys.disabled():
        print(f"\nfuseplan: {report.total_lines} lines; lines, kernels, budget, files, tokens a line of each layer:")
        for name, layer in report.layers.items():
            counts = f"{layer.lines:>6} {layer.kernel_lines:>5} {BUDGETS[name][0]:>6} {layer.files:>4}"
            print(f"  {name:<28} {counts} {layer.tokens_per_line:>6.2f}")
        print(f"  {report.tokens_per_line:.2f} tokens a line on average; largest:")
        for kind, (size, where) in report.largest.items():
            print(f"  {kind}: {size} ({where})")
        print(f"  exempt as tables: {len(report.exempt)}")
        for line in report.exempt:
            print(f"    {line}")
    assert report.violations == []


BODY = "".join(f"    x{i} = {i}\n" for i in range(59))
METHOD = "    def f(self): pass\n"
NINE = ", ".join("abcdefghi")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n" * 400, "file lines of 400"),
        (f"def f():\n{BODY}", "function lines of 60"),
        (f"class C:\n{METHOD * 299}", "class lines of 300"),
        (f"def f({NINE}): pass\n", "parameters of 9"),
        (f"class C:\n    def f(self, {NINE}): pass\n", "parameters of 9"),
        ("def f(a, b, c, d, e, f, *args, g=1, **rest): pass\n", "parameters of 9"),
    ],
    ids=["file", "function", "class", "parameters", "method", "starred"],
)
def test_sizes_over_the_limit_are_seen(tmp_path: Path, text: str, message: str) -> None:
    plant(tmp_path, {"ir/graph.py": text, "ir/text.py": "x = 1\n" * 50})
    found = measure_sizes(tmp_path, ("fuseplan",)).violations
    assert len(found) == 1 and message in found[0]


def test_sizes_of_a_layer_over_its_budget_by_a_tenth_are_seen(tmp_path: Path) -> None:
    plant(tmp_path, {f"plan/m{i}.py": "x = 1\n" * 390 for i in range(7)})
    assert measure_sizes(tmp_path, ("fuseplan",)).violations == []
    plant(tmp_path, {"plan/more.py": "x = 1\n" * 20})
    assert measure_sizes(tmp_path, ("fuseplan",)).violations == ["plan: 2750 lines, the budget is 2500 and a tenth"]


def test_sizes_of_dense_code_are_seen(tmp_path: Path) -> None:
    line = "x = f(a, b, c)\n"
    assert count_tokens(f'"""Doc."""\n# comment\n\n{line * 3}') == (30, 3)
    plant(tmp_path, {"plan/one.py": line * 2 + "y = f(a, b, c, d, e, g)\n"})
    (found,) = measure_sizes(tmp_path, ("fuseplan",)).violations
    assert found.startswith("12.00 tokens a line on average, at most ")


def test_sizes_of_kernel_files_have_no_limit_and_are_counted(tmp_path: Path) -> None:
    plant(tmp_path, {"engines/one/engine.py": "", "engines/array/kernels/rows.c": "int x;\n" * 800})
    (tmp_path / "fuseplan" / "engines" / "one" / "engine.py").unlink()
    (tmp_path / "fuseplan" / "engines" / "one" / "__init__.py").unlink(missing_ok=True)
    report = measure_sizes(tmp_path, ("fuseplan",))
    assert report.violations == []
    assert report.layers["engines: base, array, null"].kernel_lines == 800


def test_sizes_exempt_tables_are_counted(tmp_path: Path) -> None:
    files = {
        "ops/a.py": '"""Doc."""\n# table\n' + "x = 1\n" * 400,
        "ops/b.py": f"def f({NINE}):  # table\n{BODY}",
        "ops/c.py": f"class C:\n    def f(self, {NINE[:-3]}): pass\n",
        "ops/d.py": f"class C:  # table\n{METHOD * 299}",
    }
    plant(tmp_path, files)
    report = measure_sizes(tmp_path, ("fuseplan",))
    assert report.violations == []
    assert len(report.exempt) == 4


def test_exported_names_are_sorted_and_complete() -> None:
    assert export_violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('from fuseplan.a import x, y\n__all__ = ["y", "x"]\n', "not sorted"),
        ('from fuseplan.a import x, y\n__all__ = ["x"]\n', "leaves out y"),
        ('from fuseplan.a import x\n__all__ = ["x", "z"]\n', "names what is not there: z"),
        ("from fuseplan.a import x\n", "has no __all__"),
    ],
    ids=["order", "left-out", "absent", "none"],
)
def test_exported_names_fault_is_seen(tmp_path: Path, text: str, message: str) -> None:
    found = export_violations(plant(tmp_path, {"__init__.py": text}))
    assert len(found) == 1 and message in found[0]


def test_engines_are_named_in_the_registry_only() -> None:
    assert engine_names(PACKAGE)
    assert engine_name_violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("plan/rank.py", 'if engine.name == "one":\n    pass\n'),
        ("plan/rank.py", "from fuseplan.engines.one.engine import E\n"),
        ("plan/rank.py", "from fuseplan.engines import one\n"),
        ("plan/rank.py", 'load("fuseplan.engines.one.engine:E")\n'),
        ("engines/two/engine.py", 'AVOID = {"one"}\n'),
        ("engines/registry.py", 'FIRST = "one"\nENGINES = ("one",)\n'),
    ],
    ids=["name", "module", "package", "string", "sibling", "twice"],
)
def test_engine_named_elsewhere_is_seen(tmp_path: Path, file: str, text: str) -> None:
    right = {
        "engines/one/engine.py": 'name = "one"\n',
        "engines/two/engine.py": "",
        "engines/registry.py": 'ENGINES = ("one", "two")\n',
    }
    assert engine_name_violations(plant(tmp_path / "right", right)) == []
    found = engine_name_violations(plant(tmp_path / "wrong", {**right, file: text}))
    assert len(found) == 1 and "'one'" in found[0]


def commands_of(readme: str) -> list[str]:
    """The lines of README's first two shell blocks: the whole set-up."""
    blocks = re.findall(r"```bash\n(.*?)```", readme, flags=re.DOTALL)[:2]
    return [part.strip() for block in blocks for line in block.splitlines() for part in line.split("&&")]


def test_readme_commands_are_what_ci_runs() -> None:
    commands = commands_of((ROOT / "README.md").read_text(encoding="utf-8"))
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert len(commands) == 5
    assert [c for c in commands if c not in script] == []


def test_layout_page_names_what_is_there() -> None:
    page = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    folders = re.findall(r"\*\*`([a-z_/]+)/`", page)
    assert {"api", "ops", "ir", "plan", "lowering", "engines", "codegen", "runtime", "testing", "cli"} <= set(folders)
    assert [f for f in folders if not (PACKAGE / f).is_dir()] == []
    known = {p.name for p in PACKAGE.rglob("*") if p.is_file()}
    assert [f for f in re.findall(r"`(?:[a-z_]+/)*([a-z_]+\.(?:py|c|h))`", page) if f not in known] == []


def test_constraints_pin_exactly_and_leave_triton_out() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [p for p in pins if not re.match(r"^[\w.-]+==[\w.]+( *;.*)?$", p)] == []
    assert not any(p.lower().startswith("triton") for p in pins)
    assert "torch==2.13.0" in pins


def test_version_agrees_with_the_changelog() -> None:
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in changelog and found.group(1) in changelog
