"""What the forms of attention share: which regions they take, and the holes of rows, lengths, bounds and biases."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from fuseplan.codegen import c_expr
from fuseplan.dtypes import BFLOAT16, FLOAT, HALF
from fuseplan.engines.base import YES, Support, no
from fuseplan.engines.cpu_c.estimate import work_us
from fuseplan.engines.cpu_c.source import Holes
from fuseplan.engines.forms import NOT_THIS
from fuseplan.ir.attention import Attention, attention_of
from fuseplan.ir.region import Region, Role
from fuseplan.runtime.device import Device

ROWS = 64  # of `kernels/attention.h`: queries of a task, and keys of a block
_MOST_DEPTH = 256
_LOG2_E = "1.44269504f"
_WIDEST = 16  # floats of the longest vectors
_SHARE = 0.55  # of the peak of the cores: what blocks reach
_KNOWN = frozenset(
    "q k v o do stats attn_scale bias seq_len_q seq_len_kv sink_token".split()
)
_READ = frozenset(
    "ports results attn_scale_value use_alibi_mask use_padding_mask diagonal_alignment diagonal_band_left_bound "
    "diagonal_band_right_bound generate_stats implementation unfuse_fma stats_use_log2 "
    "use_deterministic_algorithm".split()
)
_COPY = """\
*step = STEP({depth});
for (int64_t r = 0; r < count; ++r, from += {step}) {{
  float *row = buffer + r * STEP({depth});
  for (int64_t d = 0; d < {depth}; ++d) row[d] = {element};
  for (int64_t d = {depth}; d < PADDED({depth}); ++d) row[d] = 0;
}}
return buffer;"""
PLACE = ("const struct args *p", "int64_t b", "int64_t h")


def attention_refusal(a: Attention) -> Support:
    """What keeps blocks of queries and keys from an attention, or YES."""
    region, at = a.region, a.anchor
    if a.value.body is not None:
        return no("scores that are modified by a sub-graph", at=at)
    unknown = [p for p in a.arguments if p not in _KNOWN]
    unknown += [
        n for n, x in a.value.attrs if n not in _READ and x not in (None, False)
    ]
    if unknown:
        return no(f"option {unknown[0]!r} has no kernel here", at=at)
    if a.value.compute is not FLOAT:
        return no(f"attention in compute type {a.value.compute}, not FLOAT", at=at)
    for port, value in a.arguments.items():
        if a.operand(port) < 0:
            return no(f"{port} is computed in front of the attention", at=at)
        floats = (FLOAT, HALF, BFLOAT16)
        if not port.startswith("seq") and region.values[value].dtype not in floats:
            return no(f"{port} has type {region.values[value].dtype}", at=at)
    if max(a.dim("q")[3], a.dim("v")[3]) > _MOST_DEPTH:
        return no(f"heads of more than {_MOST_DEPTH} elements", at=at)
    written = {o.uid for o in region.operands if o.role.is_written}
    if any(o.uid in written for o in region.operands if not o.role.is_written):
        return no("a result takes the place of an argument", at=at)
    taken = {at, *a.arguments.values(), *a.results.values()}
    other = next((i for i in range(len(region.values)) if i not in taken), -1)
    return YES if other < 0 else no("work in front of or behind the attention", other)


def packed_heads(a: Attention) -> int:
    """How many heads of one query each share keys, and see all of them alike: they are the rows of one block."""
    has_own = {"bias", "sink_token"} & a.arguments.keys() or a.option("use_alibi_mask")
    is_cut = a.left is not None or (a.right is not None and not a.is_bottom)
    if a.rows > 1 or has_own or is_cut or a.value.op != "sdpa":
        return 1
    return gcd(a.heads // a.dim("k")[1], a.heads // a.dim("v")[1])


def visible_flops(a: Attention) -> float:
    """Operations of one product of scores, without keys that a bound hides."""
    share = 0.5 if a.right is not None and a.rows > 1 else 1.0
    if a.left is not None:
        share = min(share, a.left / a.columns)
    return 2.0 * share * a.batch * a.heads * a.rows * a.columns


@dataclass(frozen=True)
class AttentionSchedule:
    """An attention and in how many tasks it is given out."""

    attention: Attention
    num_tasks: int
    work_us: float
    expected_us: float

    @staticmethod
    def of(
        a: Attention, device: Device, num_tasks: int, flops: float
    ) -> AttentionSchedule:
        """The schedule of so many operations, on the cores that the tasks keep busy."""
        cores = max(1, min(num_tasks, device.num_threads or device.sm_count))
        peak = cores * _SHARE * device.peak_gflops / max(1, device.sm_count)
        moved = a.region.cost.read_bytes + a.region.cost.write_bytes
        us = 2.0 + flops / (1e3 * peak) + moved / (1e3 * device.memory_gbps)
        return AttentionSchedule(a, num_tasks, work_us(a.region), us)


def match_attention(region: Region, op: str) -> Attention | Support:
    """The attention of a region, why it has no kernel here, or that it is another form's."""
    if not any(region.values[i].op == op for i in region.anchors):
        return NOT_THIS
    if len(region.anchors) > 1:
        return no("an attention beside another anchor", at=region.anchors[1])
    a = attention_of(region, region.anchors[0])
    fit = attention_refusal(a)
    return a if fit.is_supported else fit


def padded(depth: int) -> int:
    """Floats of a row in whole vectors, however long those are."""
    return -(-depth // _WIDEST) * _WIDEST


class AttentionHoles(Holes):
    """Holes of `kernels/attention.h` while they are written."""

    def __init__(self, a: Attention) -> None:
        super().__init__(a.region)
        self.a = a
        self.macro("ACC", "float")
        self.macro("DEPTH", a.dim("q")[3])
        self.macro("DEPTH_V", a.dim("v")[3])
        self.macro(
            "HAS_BIAS", int("bias" in a.arguments or bool(a.option("use_alibi_mask")))
        )
        self.packed = packed_heads(a)
        self.macro("IS_NARROW", int(a.rows == 1))
        extents = {
            "batches": a.batch,
            "heads": a.heads // self.packed,
            "keys": a.columns,
        }
        for name, extent in {**extents, "queries": a.rows * self.packed}.items():
            self.getter("int64_t", name, extent)
        self.getter("float", "scale_of", self._scale())
        self._lengths()
        self._bounds()
        self._bias()

    def getter(self, ctype: str, name: str, value: int | str) -> None:
        """A function of the block: a number that stands in it, or a text."""
        if isinstance(value, int):
            value = self.args.number(f"n_{name}", value)
        self.function(ctype, name, PLACE[:1], f"return {value};")

    def step(self, operand: int, axis: int) -> str:
        """The stride along one of the last four axes; 0 and 1 are baked in."""
        o = self.region.operands[operand]
        stride = o.stride[axis - 4] if o.dim[axis - 4] != 1 else 0
        if stride in (0, 1):
            return str(stride)
        return self.args.number(f"{self.names[operand]}_s{axis}", stride)

    def place(self, operand: int, row: str) -> str:
        """The first element of a row of query head h, whose own head may be shared by several; see `packed_heads`."""
        heads = self.region.operands[operand].dim[-3]
        if self.packed > 1 and heads == self.a.heads:
            pack = self.args.number("packed", self.packed)
            return self._at(operand, "b", f"(h * {pack} + {row})")
        group = self.a.heads // self.packed // heads
        shared = f"h / {self.args.number(f'{self.names[operand]}_group', group)}"
        head = "h" if group == 1 else shared
        return self._at(operand, "b", head, row)

    def _at(self, operand: int, *index: str) -> str:
        """The address of a position along the first axes of an operand."""
        steps = [(i, self.step(operand, axis)) for axis, i in enumerate(index)]
        moved = [f"{i} * {step}" for i, step in steps if step != "0"]
        return " + ".join([self.pointer(operand), *moved])

    def read(self, name: str, port: str, is_copied: bool = False) -> None:
        """The hole that gives rows of an argument as floats; copied ones are whole vectors, and lie well in a cache."""
        k = self.a.operand(port)
        o, depth = self.region.operands[k], self.region.operands[k].dim[-1]
        is_packed = self.packed > 1 and o.dim[-3] == self.a.heads
        step = self.step(k, 1 if is_packed else 2)
        along = self.step(k, 3) if depth > 1 else "1"
        ctype = c_expr.STORAGE[o.dtype.name]
        start = f"const {ctype} *from = {self.place(k, 'first')};"
        if o.dtype is FLOAT and along == "1" and not is_copied:
            body = f"(void)count, (void)buffer;\n*step = {step};\nreturn from;"
        else:
            element = "from[d]" if along == "1" else f"from[d * {along}]"
            body = _COPY.format(
                step=step, depth=depth, element=c_expr.load(element, o.dtype)
            )
        more = (
            "int64_t first",
            "int64_t count",
            "float *restrict buffer",
            "int64_t *step",
        )
        self.function("const float *", name, [*PLACE, *more], f"{start}\n{body}")

    def element(self, port: str, row: str = "0") -> str:
        """One number of an argument as a float: of a row, of a head, or the only one."""
        k = self.a.operand(port)
        o = self.region.operands[k]
        if o.role is Role.SCALAR:
            text = self.host_scalar(k)
        elif o.dim[-3] == 1:
            text = f"*{self.pointer(k)}"
        else:
            text = f"*({self.place(k, row)})"
        return c_expr.load(text, o.dtype)

    def write(self, name: str, result: str, depth: int) -> None:
        """The hole that stores a row of a result."""
        lines = []
        for k in self.region.outputs_of.get(self.a.results.get(result, -1), ()):
            along = self.step(k, 3)
            at = f"({self.place(k, 'r')})[d{'' if along == '1' else f' * {along}'}]"
            text = c_expr.store("row[d]", FLOAT, self.region.operands[k].dtype)
            lines.append(f"for (int64_t d = 0; d < {depth}; ++d) {at} = {text};")
        parameters = [*PLACE, "int64_t r", "const float *restrict row"]
        self.function("void", name, parameters, "\n".join(lines))

    def _scale(self) -> str:
        given = c_expr.literal(self.a.scale, FLOAT)
        return self.element("attn_scale") if "attn_scale" in self.a.arguments else given

    def _lengths(self) -> None:
        lines = []
        for name, port in (("queries", "seq_len_q"), ("keys", "seq_len_kv")):
            text = f"{name}(p)"
            if self.a.is_padded:
                k = self.a.operand(port)
                o = self.region.operands[k]
                axis = next((i for i, d in enumerate(o.dim) if d != 1), 0)
                stride = self.args.number(f"{self.names[k]}_s", o.stride[axis])
                length = f"{self.pointer(k)}[b * {stride}]"
                if name == "queries" and self.packed > 1:
                    length += f" * {self.args.number('packed', self.packed)}"
                text = f"max_of(0, min_of({text}, {length}))"
            lines.append(f"*num_{name} = {text};")
        parameters = [*PLACE[:2], "int64_t *num_queries", "int64_t *num_keys"]
        self.function("void", "lengths_of", parameters, "\n".join(lines))

    def _bounds(self) -> None:
        for name, bound, sign in (
            ("before", self.a.left, "-"),
            ("after", self.a.right, "+"),
        ):
            text = "FAR"
            if bound is not None and self.packed == 1:
                shift = f" {sign} (keys - queries)" if self.a.is_bottom else ""
                text = self.args.number(name, bound) + shift
            parameters = ["const struct args *p", "int64_t queries", "int64_t keys"]
            self.function("int64_t", name, parameters, f"return {text};")

    def _bias(self) -> None:
        lines, terms = [], []
        if "bias" in self.a.arguments:
            k = self.a.operand("bias")
            ctype = c_expr.STORAGE[self.region.operands[k].dtype.name]
            lines.append(f"const {ctype} *from = {self._at(k, 'b', 'h', 'r', 'c')};")
            row = f"from[j * {self.step(k, 2)}]"
            terms.append(c_expr.load(row, self.region.operands[k].dtype))
        if self.a.option("use_alibi_mask"):
            n = 1 << (self.a.heads.bit_length() - 1)
            low, high = (
                f"(float)(h + 1) * {8 / n!r}f",
                f"(float)(2 * (h - {n}) + 1) * {4 / n!r}f",
            )
            lines.append(f"const float slope = exp2f(-(h < {n} ? {low} : {high}));")
            terms.append("slope * (float)(c - r - j)")
        if terms:
            count = "min_of(TASK_ROWS, queries(p) - r)"
            text = f"scores[j] += ({' + '.join(terms)}) * {_LOG2_E};"
            lines += [f"for (int64_t j = 0, n = {count}; j < n; ++j)", f"  {text}"]
        parameters = [*PLACE, "int64_t r", "int64_t c", "float *restrict scores"]
        self.function("void", "add_bias", parameters, "\n".join(lines))
