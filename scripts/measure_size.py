"""Print lines, files and tokens per code line of each layer, beside its budget: what the size test checks.

Run ``python scripts/measure_size.py``, or with the folder of another checkout to compare.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.unit.structure.sizes import BUDGETS, measure_sizes  # noqa: E402 - the repository's root is needed first


def main(root: Path) -> None:
    """Print the table of one checkout."""
    report = measure_sizes(root, ("fuseplan",))
    print(f"{'layer':<28}{'lines':>7}{'budget':>8}{'kernels':>9}{'files':>7}{'tokens/line':>13}")
    for name, (budget, _) in BUDGETS.items():
        if name in report.layers:
            one = report.layers[name]
            counts = f"{one.lines:>7}{budget:>8}{one.kernel_lines:>9}{one.files:>7}{one.tokens_per_line:>13.1f}"
            print(f"{name:<28}{counts}")
    files = sum(one.files for one in report.layers.values())
    kernels = sum(one.kernel_lines for one in report.layers.values())
    print(f"{'all':<28}{report.total_lines:>7}{'':>8}{kernels:>9}{files:>7}{report.tokens_per_line:>13.1f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
