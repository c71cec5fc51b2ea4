"""Device functions that expressions of values and main loops call (`codegen.triton_expr` writes the calls)."""

import triton  # import here: kernel files are read as text, or run alone
import triton.language as tl  # import here: as above
from triton.language.extra import libdevice  # import here: as above


@triton.jit
def saturate_float(
    x, WORK: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, LOW_F: tl.constexpr, HIGH_F: tl.constexpr
):
    """Round to the nearest integer, ties to even; clip to the type; NaN gives 0."""
    r = libdevice.rint(x)
    n = tl.where((r > LOW_F) & (r < HIGH_F), r, 0.0).to(WORK)
    n = tl.where(r <= LOW_F, tl.full((), LOW, WORK), n)
    return tl.where(r >= HIGH_F, tl.full((), HIGH, WORK), n)


@triton.jit
def clip(x, LIMIT: tl.constexpr):
    """Saturate to the largest finite value of a type; NaN stays."""
    return tl.where(x > LIMIT, LIMIT, tl.where(x < -LIMIT, -LIMIT, x))


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def larger(a, b):
    """The larger number; NaN if either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def smaller(a, b):
    """The smaller number; NaN if either is."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def fold_max(x, axis: tl.constexpr):
    """Largest element along an axis (None: of both), kept as an axis; NaN if there is one."""
    if axis is None:
        y = tl.reduce(tl.reduce(x, 1, larger, keep_dims=True), 0, larger, keep_dims=True)
    else:
        y = tl.reduce(x, axis, larger, keep_dims=True)
    return y


@triton.jit
def fold_min(x, axis: tl.constexpr):
    """Smallest element along an axis (None: of both), kept as an axis; NaN if there is one."""
    if axis is None:
        y = tl.reduce(tl.reduce(x, 1, smaller, keep_dims=True), 0, smaller, keep_dims=True)
    else:
        y = tl.reduce(x, axis, smaller, keep_dims=True)
    return y


@triton.jit
def factors_of_quotient(x):
    """Two factors whose product is 1 / x; the first, a power of two, keeps the second out of the subnormal numbers."""
    first = tl.where(tl.abs(x) < 5.421010862427522e-20, 18446744073709551616.0, 1.0)
    first = tl.where(tl.abs(x) > 18446744073709551616.0, 5.421010862427522e-20, first)
    return first, tl.div_rn(1.0, x * first)


@triton.jit
def exp2_near(x):
    """2**x within 2 ulp; results below 2**-126 are 0."""
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)


@triton.jit
def reciprocal_near(x):
    """1 / x within 1 ulp; where it is below 2**-126, 0."""
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)


@triton.jit
def exp_of_rounded(x):
    """e**x of an x that was rounded: as right as such an x allows. The half of x keeps small results from being 0."""
    root = exp2_near(x * 0.7213475204444817)
    return root * root


@triton.jit
def rounded_pairs(x):
    """float32 as bfloat16, two numbers at a time: alone, the conversion runs at a quarter of the rate."""
    if x.numel % 2 == 0:
        y = tl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], tl.bfloat16, True, 2)
    else:
        y = x.to(tl.bfloat16)
    return y


@triton.jit
def float_tanh(x):
    """tanh(x) within 3 ulp: a polynomial up to 0.55, beyond it 1 - 2 / (e**2x + 1); the sign is put back in the end."""
    a = tl.abs(x)
    s = a * a
    p = tl.fma(
        s, tl.fma(s, tl.fma(s, 0.016437504696363195, -0.05267177279194738), 0.13320724401950013), -0.3333294660647371
    )
    near = tl.fma(a * s, p, a)
    far = tl.fma(reciprocal_near(exp2_near(a * 2.8853900817779268) + 1.0), -2.0, 1.0)
    bits = tl.where(a < 0.55, near, far).to(tl.int32, bitcast=True)
    return (bits | (x.to(tl.int32, bitcast=True) & -2147483648)).to(tl.float32, bitcast=True)


@triton.jit
def one_plus_tanh(x):
    """1 + tanh(x) = 1 / (e**-2x / 2 + 1/2), without the cancellation of the sum."""
    return reciprocal_near(tl.fma(exp2_near(x * -2.8853900817779268), 0.5, 0.5))


@triton.jit
def one_plus_erf(x):
    """1 + erf(x) within 3 ulp of 1: with a = |x|, 1 - erf(a) is 2 to the power of a polynomial in a."""
    a = tl.abs(x)
    p = tl.fma(a, tl.fma(a, -4.535848209347272e-05, 0.0004455065333094009), -0.0014894376124408562)
    p = tl.fma(a, tl.fma(a, tl.fma(a, p, -0.0007746367574352081), 0.028253687646767684), -0.14848161819518457)
    rest = exp2_near(tl.fma(a, tl.fma(a, p, -0.9184163925699524), -1.6279085931138793) * a)
    return tl.where(x < 0.0, rest, 2.0 - rest)


@triton.jit
def order_bits(x):
    """Integers that order as floats do; NaN above all."""
    b = tl.where(x != x, float("nan"), x).to(tl.int32, bitcast=True)
    b = tl.where(b < 0, b ^ 0x7FFFFFFF, b)
    return tl.where(x != x, 0x7FFFFFFF, b)


@triton.jit
def float_of_order(b):
    """The float that `order_bits` made; the two extreme integers stand for NaN."""
    x = tl.where(b < 0, b ^ 0x7FFFFFFF, b).to(tl.float32, bitcast=True)
    return tl.where((b == 0x7FFFFFFF) | (b == -2147483648), float("nan"), x)


@triton.jit
def columns_part(x, PART: tl.constexpr, PARTS: tl.constexpr):
    """One of 1 or 2 equal parts of a tile's columns."""
    if PARTS == 1:
        part = x
    else:
        part = columns_half(x, PART)
    return part


@triton.jit
def columns_half(x, HALF: tl.constexpr):
    """The left (0) or the right (1) half of a tile's columns."""
    left, right = tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))
    return left if HALF == 0 else right


@triton.jit
def bfloat16_parts(x):
    """Three bfloat16 numbers whose sum is a float32 number: 8 of its 24 bits each; NaN and infinities are in the first.

    Exact above 2**-109; smaller numbers lose what lies below 2**-133.
    """
    first = (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    first = tl.where(x == x, first, x)
    rest = x - first
    rest = tl.where(rest == rest, rest, 0.0)
    second = (rest.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    return first.to(tl.bfloat16), second.to(tl.bfloat16), (rest - second).to(tl.bfloat16)


@triton.jit
def dot_of_parts(a, b):
    """a b for float32 tiles, on matrix units for bfloat16.

    Left out are products of parts below 2**-23 of the whole. Small parts are added up first and apart: matrix units
    cut off what an addition cannot hold. An infinity times a part that is 0 is NaN there, and rightly infinite in
    the product of the first parts.
    """
    a1, a2, a3 = bfloat16_parts(a)
    b1, b2, b3 = bfloat16_parts(b)
    small = tl.dot(a3, b1)
    small = tl.dot(a1, b3, small)
    small = tl.dot(a2, b2, small)
    small = tl.dot(a2, b1, small)
    small = tl.dot(a1, b2, small)
    return tl.dot(a1, b1) + tl.where(small == small, small, 0.0)


@triton.jit
def again(x, found):
    """x, but for the compiler something made from `found`: what follows from it is computed again, and after that."""
    zero = (found > 0).to(tl.int32) & tl.program_id(1)
    if x.dtype.primitive_bitwidth == 16:
        y = tl.inline_asm_elementwise("add.u32 $0, $1, $2;", "=r,r,r,r", [x, zero], x.dtype, True, 2)
    elif x.dtype.primitive_bitwidth == 32:
        y = tl.inline_asm_elementwise("add.u32 $0, $1, $2;", "=r,r,r", [x, zero], x.dtype, True, 1)
    else:
        y = x
    return y
