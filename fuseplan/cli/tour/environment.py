"""What the tour runs on."""

from __future__ import annotations

import platform

import numpy as np

import fuseplan
from fuseplan.cli.tour.setting import Outcome, Setting
from fuseplan.errors import ToolchainError
from fuseplan.runtime.toolchain import find_compiler


def run(at: Setting) -> Outcome:
    info = at.handle.device
    at.say("device", f"{at.device}: {info.device_name or 'unnamed'}")
    at.say("Python", f"{platform.python_version()}, NumPy {np.__version__}")
    at.say("PyTorch", str(at.torch.__version__) if at.torch is not None else "not installed, not needed")
    at.say("backend version", str(fuseplan.backend_version()))
    try:
        at.say("C compiler", find_compiler().version)
    except ToolchainError as missing:
        at.say("C compiler", f"none, so the generated C engine is out: {missing.wrong}")
    return Outcome(note=f"{at.device}, {at.io.name}")
