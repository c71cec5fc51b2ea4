"""Makes benchmarks/results/README.md from the JSON files beside it: ``python -m benchmarks.table``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HEADER = (
    "# Results",
    "",
    "Made by `python -m benchmarks.table` from the JSON files in this folder; each names its device, command and",
    "date. `over_best` is the time over the fastest peer of the same run, timed interleaved.",
    "",
)
RESULTS = Path(__file__).parent / "results"


def section(path: Path) -> list[str]:
    """Facts and one table of a result file."""
    data = json.loads(path.read_text())
    facts = ", ".join(f"{k} {v}" for k, v in data.items() if k != "rows" and v is not None)
    lines = [f"## {path.parent.name}: {path.stem}", "", facts + ".", ""]
    columns = list(dict.fromkeys(k for row in data["rows"] for k in row if k != "quartiles"))
    lines.append("| " + " | ".join(columns) + " |")
    lines.append("|" + "---|" * len(columns))
    lines += ["| " + " | ".join(cell(row.get(c)) for c in columns) + " |" for row in data["rows"]]
    return [*lines, ""]


def cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value).replace("|", "/").replace("\n", " ")


def main() -> None:
    lines = [*HEADER]
    for path in sorted(RESULTS.glob("*/*.json")):
        lines += section(path)
    (RESULTS / "README.md").write_text("\n".join(lines).rstrip() + "\n")
    print(f"wrote {RESULTS.name}/README.md")


if __name__ == "__main__":
    main()
