"""The kernels of an attention under one config."""

from __future__ import annotations

from fuseplan.engines.triton.attention.holes import Holes
from fuseplan.engines.triton.kernel import Emitted, Kernel
from fuseplan.engines.triton.source import Arguments, Entry, KernelText, kernel_text

_RIGHT, _LEFT, _KEYS, _QUERIES = 1, 2, 4, 8  # CUTS of `kernels/attention.py`


class AttentionEmitter(Holes):
    """One kernel from the loads to the stores."""

    def emit(self) -> Emitted:
        attention, knobs, params = self.attention, self.knobs, self.params
        before = [self.lengths(), *map(self.load, "qkv"), self.started()]
        factor, scores, finish = self.factor(), self.scores(), self.finish()
        extents = (("n_q", attention.rows), ("n_kv", attention.columns), ("n_h", attention.heads))
        arguments: Arguments = [*(f.params.names for f in before), scores.params.names, finish.params.names]
        arguments += [params.number(name, extent) for name, extent in extents]
        bounds = (("right", attention.right), ("left", attention.left))
        arguments.append(tuple(params.number(f"n_{name}", bound or 0) for name, bound in bounds))
        widths = zip(("BLOCK_D", "BLOCK_E"), self.schedule.widths, strict=True)
        constants = [*((name, knobs[name]) for name in ("BLOCK_M", "BLOCK_N")), *widths]
        constants += [("GROUP", self.group), ("CUTS", self.cuts)]
        functions = [*before, factor, scores, *self.products(), finish]
        text = kernel_text(Entry("attention", "tile_of_attention", arguments, constants), functions, params)
        tiles, packs = -(-attention.rows * self.group // knobs["BLOCK_M"]), attention.heads // self.group
        return Emitted((self._kernel("attention", text, attention.batch * packs * tiles),))

    def _kernel(self, name: str, text: KernelText, programs: int) -> Kernel:
        knobs = self.knobs
        return Kernel(name, text.source, text.params, text.constants, programs, knobs["num_warps"], knobs["num_stages"])

    @property
    def cuts(self) -> int:
        """What may cut a block of keys."""
        attention = self.attention
        found = _RIGHT * (attention.right is not None) + _LEFT * (attention.left is not None)
        if attention.is_padded:
            return found | _KEYS | _QUERIES
        return found | _KEYS * (self.is_dynamic or attention.columns % self.knobs["BLOCK_N"] > 0)
