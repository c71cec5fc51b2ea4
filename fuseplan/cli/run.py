"""`fuseplan run`: run a program written for the reference API against this package."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import runpy
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

import fuseplan

ALIAS, PACKAGE = "cudnn", "fuseplan"


class _AliasLoader(Loader):
    """Gives the real module under its second name, and leaves the module's own spec alone."""

    def __init__(self, real: ModuleType) -> None:
        self._real, self._spec = real, real.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._real

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class AliasFinder(MetaPathFinder):
    """Finds ``cudnn`` and ``cudnn.<name>`` as the same module objects as ``fuseplan`` and ``fuseplan.<name>``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of an alias; None for other modules.

        Raises:
            ModuleNotFoundError: this package has no such submodule
        """
        head, _, rest = fullname.partition(".")
        if head != ALIAS:
            return None
        module = _real_module(rest)
        if module is None:
            raise ModuleNotFoundError(f"No module named {fullname!r}: {PACKAGE} has no {rest!r} yet", name=fullname)
        return ModuleSpec(fullname, _AliasLoader(module), is_package=hasattr(module, "__path__"))


def _real_module(name: str) -> ModuleType | None:
    """The attribute of this name that is a module, or the submodule of this name."""
    found = getattr(fuseplan, name, None)  # `ops` is the API's module here, not the package of that name
    if isinstance(found, ModuleType):
        return found
    real = f"{PACKAGE}.{name}" if name else PACKAGE
    return importlib.import_module(real) if importlib.util.find_spec(real) is not None else None


def install_alias() -> None:
    """Make ``import cudnn`` give this package, in every form, whatever else is installed under that name."""
    for name in [n for n in sys.modules if n == ALIAS or n.startswith(ALIAS + ".")]:
        del sys.modules[name]
    if not any(isinstance(f, AliasFinder) for f in sys.meta_path):
        sys.meta_path.insert(0, AliasFinder())
    sys.modules[ALIAS] = fuseplan


def _run_file(file: Path) -> None:
    """Run a file as ``__main__``, its folder first on the path, as Python itself does."""
    source = file.read_bytes()
    code: CodeType = compile(source, str(file), "exec", dont_inherit=True)
    main = ModuleType("__main__")
    main.__file__ = str(file)
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    sys.path.insert(0, str(file.resolve().parent))
    exec(code, main.__dict__)  # running the user's program is the command


def _is_of_runpy(trace: TracebackType) -> bool:
    return bool(trace.tb_frame.f_globals.get("__name__") == "runpy")


def _show_program_only(kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
    """An excepthook without the frames that led to the program: the command's own and those of runpy."""
    rest = trace
    while rest is not None and rest.tb_frame.f_code.co_filename != __file__:
        rest = rest.tb_next
    while rest is not None and (rest.tb_frame.f_code.co_filename == __file__ or _is_of_runpy(rest)):
        rest = rest.tb_next
    sys.__excepthook__(kind, problem.with_traceback(rest), rest)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", dest="is_module", action="store_true", help="FILE_OR_MODULE is the name of a module")
    parser.add_argument("program", metavar="FILE_OR_MODULE", help="a Python file, or with -m a module")
    parser.add_argument("args", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the program")


def run(args: argparse.Namespace) -> int:
    """Run a program that says `import cudnn` against fuseplan."""
    file = Path(args.program)
    if not args.is_module and not file.is_file():
        print(f"fuseplan run: no file {args.program!r}; for a module, put -m before its name", file=sys.stderr)
        return 2
    install_alias()
    sys.excepthook = _show_program_only
    sys.argv = [args.program, *args.args]
    if args.is_module:
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(args.program, run_name="__main__", alter_sys=True)
    else:
        _run_file(file)
    return 0
