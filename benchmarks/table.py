"""Makes benchmarks/results/README.md and README's tables from the JSON files there: ``python -m benchmarks.table``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HEADER = (
    "# Results",
    "",
    "Made by `python -m benchmarks.table` from the JSON files in this folder; each names its device, command and",
    "date. `over_best` is the time over the fastest peer of the same run, timed interleaved. `eager/default` and the",
    "like are a peer's time over that of fuseplan's default (or tuned) plan: above 1, fuseplan is faster. `of limit`",
    "is the time that the machine's limit (FMA peak, read or copy rate, measured in turn) allows over fuseplan's.",
    "",
)
RESULTS = Path(__file__).parent / "results"
README = RESULTS.parents[1] / "README.md"
BEGIN, END = "<!-- made by python -m benchmarks.table -->", "<!-- end of table -->"
# table: results that README shows -> ratios, by default and by tuned plan
SHOWN = {
    "cpu-2-cores/avx2.json": ("eager", "compile", "of limit, "),
    "cpu-2-cores/attention-avx2.json": ("eager", "compile", "of limit, "),
    "h200-cpu/avx512.json": ("eager", "of limit, "),
    "h200/attention.json": ("eager", "frontend tuned", "eager/default cool", "frontend tuned/default cool"),
    "h200/gpu.json": ("eager", "torch.compile", "frontend tuned", "of limit, "),
}  # fmt: skip
NAMES = {
    "eager": "PyTorch",
    "compile": "torch.compile",
    "frontend tuned": "NVIDIA's frontend",
    "of limit, ": "of limit",
    "eager/default cool": "PyTorch, rested",
    "frontend tuned/default cool": "NVIDIA's frontend, rested",
}


def section(path: Path) -> list[str]:
    """Facts and one table of a result file."""
    data = json.loads(path.read_text())
    facts = ", ".join(f"{k} {v}" for k, v in data.items() if k != "rows" and v is not None)
    lines = [f"## {path.parent.name}: {path.stem}", "", facts + ".", ""]
    columns = list(dict.fromkeys(k for row in data["rows"] for k in row if not k.endswith("quartiles")))
    lines.append("| " + " | ".join(columns) + " |")
    lines.append("|" + "---|" * len(columns))
    lines += ["| " + " | ".join(cell(row.get(c)) for c in columns) + " |" for row in data["rows"]]
    return [*lines, ""]


def cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value).replace("|", "/").replace("\n", " ")


def short_table(path: Path, ratios: tuple[str, ...]) -> list[str]:
    """Rows with the ratios of the default and, in brackets where it differs, of the tuned plan."""
    data = json.loads(path.read_text())
    lines = [f"{data['device']}, `{data['command']}`, {data['date']}:", ""]
    lines.append("| | us | " + " | ".join(NAMES.get(r, r) for r in ratios) + " |")
    lines.append("|---|---|" + "---|" * len(ratios))
    for row in data["rows"]:
        if "default" in row:
            cells = [f"{row['row']} {row['type']}".strip(), _pair(row.get("default"), row.get("tuned"))]
            for r in ratios:
                keys = [r + own if r.endswith(" ") else f"{r}/{own}" for own in ("default", "tuned")]
                keys = [r, ""] if "/" in r else keys
                cells.append(_pair(*(row.get(k) for k in keys)))
            lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _pair(default: Any, tuned: Any) -> str:
    if not isinstance(default, (int, float)):
        return ""
    return f"{default:g}" + (f" ({tuned:g})" if isinstance(tuned, (int, float)) and tuned != default else "")


def main() -> None:
    lines = [*HEADER]
    for path in sorted(RESULTS.glob("*/*.json")):
        lines += section(path)
    (RESULTS / "README.md").write_text("\n".join(lines).rstrip() + "\n")
    shown = [line for name, ratios in SHOWN.items() if (RESULTS / name).is_file()
             for line in short_table(RESULTS / name, ratios)]  # fmt: skip
    text = README.read_text(encoding="utf-8")
    if shown and BEGIN in text:
        before, rest = text.split(BEGIN)
        after = rest.split(END)[1]
        README.write_text(f"{before}{BEGIN}\n\n" + "\n".join(shown) + f"\n{END}{after}", encoding="utf-8")
    print(f"wrote {RESULTS.name}/README.md")


if __name__ == "__main__":
    main()
