"""What a call costs the host, in this tree and in another, interleaved: bound and through `execute`.

    python -m benchmarks.bound_call --before FOLDER [--device cpu|cuda] [--out FILE.json]

FOLDER holds the other tree (made by `git archive COMMIT | tar -x -C FOLDER`, say). Each round times both trees in
processes of their own; the least and the median of the rounds are shown. The graph is relu of 8x8 floats.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

CALLS = 20_000
PROGRAM = """
import json, sys, time
import numpy as np
import fuseplan as cudnn
device, calls = sys.argv[1], int(sys.argv[2])
g = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, handle=cudnn.create_handle(device=device))
x = g.tensor(dim=[8, 8])
y = g.relu(input=x).set_output(True)
g.build()
if device == "cuda":
    import torch
    make, wait = lambda: torch.ones(8, 8, device="cuda"), torch.cuda.synchronize
else:
    make, wait = lambda: np.ones((8, 8), np.float32), lambda: None
pack, workspace = {x: make(), y: make()}, np.empty(max(1, g.get_workspace_size()), np.uint8)
if device == "cuda":
    workspace = torch.empty(max(1, g.get_workspace_size()), dtype=torch.uint8, device="cuda")
bound = g.bind(pack, workspace)
def us(call):
    for _ in range(200): call()
    wait()
    start = time.perf_counter()
    for _ in range(calls): call()
    taken = time.perf_counter() - start
    wait()
    return taken / calls * 1e6
best = lambda call: min(us(call) for _ in range(5))
print(json.dumps({"bound": best(bound), "execute": best(lambda: g.execute(pack, workspace))}))
"""


def measure(tree: Path, device: str) -> dict[str, float]:
    """One round in a process that imports this tree: microseconds a call."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, device, str(CALLS)], cwd=tree, env={**os.environ, "PYTHONPATH": path_of(tree)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def path_of(tree: Path) -> str:
    return os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    trees = {"before": given.before.resolve(), "now": Path(__file__).resolve().parents[1]}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for _ in range(given.rounds):
        for name, tree in trees.items():
            rounds[name].append(measure(tree, given.device))
    rows = [
        {
            "call": call, "tree": name, "least_us": min(r[call] for r in found),
            "median_us": statistics.median(r[call] for r in found),
        }
        for call in ("bound", "execute")
        for name, found in rounds.items()
    ]  # fmt: skip
    for row in rows:
        print(f"{row['call']:<8} {row['tree']:<7} least {row['least_us']:.3f} us, median {row['median_us']:.3f} us")
    if given.out is not None:
        facts = {
            "command": f"python -m benchmarks.bound_call --before 6b730c2 --device {given.device}",
            "date": datetime.date.today().isoformat(), "python": sys.version.split()[0],
        }  # fmt: skip
        given.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
