"""`python -m fuseplan.cli` is the command `fuseplan`."""

from __future__ import annotations

import sys

from fuseplan.cli.main import main

sys.exit(main())
