"""Every plan of the convolution: run by index, checked, timed, listed."""

from __future__ import annotations

import math

import fuseplan
from fuseplan.cli.tour.convolution import conv_relu
from fuseplan.cli.tour.setting import Outcome, Setting, TourError, relative_error
from fuseplan.errors import ToolchainError, cudnnGraphNotSupportedError


def run(at: Setting) -> Outcome:
    g, pack, want = conv_relu(at)
    g.validate()
    g.build_operation_graph()
    g.create_execution_plans([fuseplan.heur_mode.A, fuseplan.heur_mode.B, fuseplan.heur_mode.FALLBACK])
    g.check_support()
    g.build_plans(fuseplan.build_plan_policy.ALL)
    at.say("plans", f"{g.get_execution_plan_count()} in the ranked list, checked before they are timed")

    y, worst, times = list(pack.values())[-1], 0.0, {}
    for i in range(g.get_execution_plan_count()):
        try:
            workspace = at.workspace(g.get_workspace_size_plan_at_index(i))
            y[...] = math.nan
            g.execute_plan_at_index(pack, workspace, i, at.handle)
        except (cudnnGraphNotSupportedError, ToolchainError) as no:
            at.say(f"plan {i}", f"cannot run: {str(no).splitlines()[0]}")
            continue
        at.wait()
        error = relative_error(at.host(y), want)
        if not error <= at.tolerance:
            raise TourError(f"plan {i} has error {error:.2e}, over {at.tolerance:.0e}")
        worst = max(worst, error)
        times[i] = at.time(lambda i=i, ws=workspace: g.execute_plan_at_index(pack, ws, i, at.handle))  # type: ignore[misc]
        at.say(f"plan {i}", f"{times[i]:9.3f} ms   error {error:.1e}   {g.get_plan_name_at_index(i)}")
    if not times:
        raise TourError("no plan ran")
    best = min(times, key=times.__getitem__)
    slowest = max(times.values()) / times[best]
    at.say("fastest", f"plan {best}, {times[best]:.3f} ms; the slowest takes {slowest:.1f} times as long")
    return Outcome(worst, times[best], None, f"best of {len(times)}: {g.get_plan_name_at_index(best)}")
