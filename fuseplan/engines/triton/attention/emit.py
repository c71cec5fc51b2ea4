"""The kernels of an attention under one config."""

from __future__ import annotations

from fuseplan.engines.triton.attention.holes import Holes
from fuseplan.engines.triton.kernel import Emitted, Kernel, ParamList
from fuseplan.engines.triton.source import Arguments, Entry, kernel_text

_JOIN_ELEMENTS = 8192  # of all parts that a program of the second kernel holds
_RIGHT, _LEFT, _KEYS, _QUERIES = 1, 2, 4, 8  # CUTS of `kernels/attention.py`


class AttentionEmitter(Holes):
    """One kernel from the loads to the stores, or one for parts of the keys and one that joins them."""

    def emit(self) -> Emitted:
        knobs, params, parts = self.knobs, self.params, self.knobs["SPLIT"]
        before = [self.lengths(), *map(self.load, "qkv"), self.started()]
        functions = [*before, self.factor(), self.scores(), *self.products()]
        last = self.finish() if parts == 1 else self.parts("keep")
        passed = [(), last.params.names] if parts == 1 else [last.params.names, ()]
        arguments: Arguments = [
            *(f.params.names for f in before),
            functions[6].params.names,
            *passed,
        ]
        bounds = (("right", self.attention.right), ("left", self.attention.left))
        arguments += [
            *self._extents(),
            tuple(params.number(f"n_{name}", bound or 0) for name, bound in bounds),
        ]
        widths = zip(("BLOCK_D", "BLOCK_E"), self.schedule.widths, strict=True)
        constants = [*((name, knobs[name]) for name in ("BLOCK_M", "BLOCK_N")), *widths]
        constants += [("GROUP", self.group), ("CUTS", self.cuts), ("PARTS", parts)]
        entry = Entry("attention", "tile_of_attention", arguments, constants)
        text = kernel_text(entry, [*functions, last], params)
        programs = self._tiles(knobs["BLOCK_M"]) * parts
        kernel = Kernel(
            "attention",
            text.source,
            text.params,
            text.constants,
            programs,
            knobs["num_warps"],
            knobs["num_stages"],
        )
        return (
            Emitted((kernel,))
            if parts == 1
            else Emitted((kernel, self._join()), sum(self.part_bytes()))
        )

    def _join(self) -> Kernel:
        """The second kernel, with parameters of its own."""
        self.params = ParamList(self.region)
        parts, width = self.knobs["SPLIT"], self.schedule.widths[1]
        lengths, load, finish = self.lengths(), self.parts("load_parts"), self.finish()
        arguments: Arguments = [
            *(f.params.names for f in (lengths, load, finish)),
            *self._extents(),
        ]
        block = max(1, min(16, _JOIN_ELEMENTS // (parts * width)))
        constants = (
            ("BLOCK_M", block),
            ("BLOCK_E", width),
            ("GROUP", self.group),
            ("PARTS", parts),
        )
        entry = Entry(
            "attention_join", "joined_attention", arguments, constants, base="attention"
        )
        text = kernel_text(entry, [lengths, load, finish], self.params)
        return Kernel(
            "attention_join",
            text.source,
            text.params,
            text.constants,
            self._tiles(block),
            4,
            1,
        )

    def _extents(self) -> list[str]:
        attention = self.attention
        extents = (
            ("n_q", attention.rows),
            ("n_kv", attention.columns),
            ("n_h", attention.heads),
        )
        return [self.params.number(name, extent) for name, extent in extents]

    def _tiles(self, block_m: int) -> int:
        """Tiles of so many rows."""
        attention = self.attention
        return (
            attention.batch
            * (attention.heads // self.group)
            * -(-attention.rows * self.group // block_m)
        )

    @property
    def cuts(self) -> int:
        """What may cut a block of keys."""
        attention = self.attention
        found = _RIGHT * (attention.right is not None) + _LEFT * (
            attention.left is not None
        )
        if attention.is_padded:
            return found | _KEYS | _QUERIES
        return found | _KEYS * (
            self.is_dynamic or attention.columns % self.knobs["BLOCK_N"] > 0
        )
