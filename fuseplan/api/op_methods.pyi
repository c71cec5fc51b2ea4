# table
# Written by scripts/make_stubs.py from the op schemas; do not edit.
from collections.abc import Sequence
from typing import Any, TypeAlias, overload

from fuseplan.api import enums
from fuseplan.api.construct import Construction
from fuseplan.api.tensor import Tensor
from fuseplan.ops.schema import OpSchema

# A graph tensor, or an array that exports DLPack; a data_type member or a torch dtype.
TensorLike: TypeAlias = Any
TypeLike: TypeAlias = Any
OutDims: TypeAlias = Sequence[int] | dict[str, Sequence[int]]

def attach(schema: OpSchema) -> None: ...

class OpMethods(Construction):
    def abs(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """Absolute value.

        Returns:
            OUT_0
        """

    def add(
        self,
        a: TensorLike,
        b: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """a + b.

        Returns:
            OUT_0
        """

    def add_square(
        self,
        a: TensorLike,
        b: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """a + b b.

        Returns:
            OUT_0
        """

    def bias(
        self,
        input: TensorLike,
        bias: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """input + bias.

        Returns:
            OUT_0
        """

    def binary_select(
        self,
        input0: TensorLike,
        input1: TensorLike,
        mask: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """input0 where mask is not 0, else input1.

        Returns:
            OUT_0
        """

    def ceil(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """Smallest integer that is not less.

        Returns:
            OUT_0
        """

    def cmp_eq(
        self,
        input: TensorLike,
        comparison: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """1 where equal, else 0.

        Returns:
            OUT_0
        """

    def cmp_ge(
        self,
        input: TensorLike,
        comparison: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """1 where not less.

        Returns:
            OUT_0
        """

    def cmp_gt(
        self,
        input: TensorLike,
        comparison: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """1 where input is more.

        Returns:
            OUT_0
        """

    def cmp_le(
        self,
        input: TensorLike,
        comparison: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """1 where not more.

        Returns:
            OUT_0
        """

    def cmp_lt(
        self,
        input: TensorLike,
        comparison: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """1 where input is less.

        Returns:
            OUT_0
        """

    def cmp_neq(
        self,
        input: TensorLike,
        comparison: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """1 where not equal.

        Returns:
            OUT_0
        """

    @overload
    def conv_fprop(
        self,
        image: TensorLike,
        weight: TensorLike,
        padding: Sequence[int] | None = ...,
        stride: Sequence[int] | None = ...,
        dilation: Sequence[int] | None = ...,
        convolution_mode: enums.convolution_mode | None = ...,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        pre_padding: Sequence[int] | None = ...,
        post_padding: Sequence[int] | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """Convolution of image [N, C, ..] with weight [K, C / groups, ..]; groups follow from the dims.

        Returns:
            Y
        """

    @overload
    def conv_fprop(
        self,
        image: TensorLike,
        weight: TensorLike,
        padding: Sequence[int] | None = ...,
        pre_padding: Sequence[int] | None = ...,
        post_padding: Sequence[int] | None = ...,
        stride: Sequence[int] | None = ...,
        dilation: Sequence[int] | None = ...,
        convolution_mode: enums.convolution_mode | None = ...,
        *,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        out_dims: OutDims | None = ...,
    ) -> Tensor: ...
    def cos(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """Cosine of radians.

        Returns:
            OUT_0
        """

    def div(
        self,
        a: TensorLike,
        b: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """a / b; in integer arithmetic truncated towards zero.

        Returns:
            OUT_0
        """

    def elu(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """x where positive, else e^x - 1.

        Returns:
            OUT_0
        """

    def erf(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """Error function.

        Returns:
            OUT_0
        """

    def exp(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """e to the power of x.

        Returns:
            OUT_0
        """

    def floor(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """Largest integer that is not more.

        Returns:
            OUT_0
        """

    def gelu(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """x/2 (1 + erf(x / sqrt 2)).

        Returns:
            OUT_0
        """

    def gelu_approx_tanh(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).

        Returns:
            OUT_0
        """

    @overload
    def gen_index(
        self,
        input: TensorLike,
        axis: int,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """Each element's own index along an axis; input values are ignored.

        Returns:
            OUT_0
        """

    @overload
    def gen_index(
        self,
        input: TensorLike,
        axis: int,
        name: str | None = ...,
        compute_data_type: TypeLike | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor: ...
    def identity(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """Copy, and conversion to the output's type.

        Returns:
            OUT_0
        """

    @overload
    def layernorm(
        self,
        norm_forward_phase: enums.norm_forward_phase,
        input: TensorLike,
        scale: TensorLike | None = ...,
        bias: TensorLike | None = ...,
        epsilon: TensorLike | None = ...,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> list[Any]:
        """Take off the mean and divide by the standard deviation over the axes where scale is not 1.

        Returns:
            [Y, mean, inv_var]
        """

    @overload
    def layernorm(
        self,
        input: TensorLike,
        scale: TensorLike | None = ...,
        bias: TensorLike | None = ...,
        epsilon: TensorLike | None = ...,
        norm_forward_phase: enums.norm_forward_phase | None = ...,
        *,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        out_dims: OutDims | None = ...,
    ) -> list[Any]: ...
    @overload
    def leaky_relu(
        self,
        input: TensorLike,
        negative_slope: float,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """x where positive, else negative_slope x.

        Returns:
            OUT_0
        """

    @overload
    def leaky_relu(
        self,
        input: TensorLike,
        negative_slope: float,
        name: str | None = ...,
        compute_data_type: TypeLike | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor: ...
    def log(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """Natural logarithm.

        Returns:
            OUT_0
        """

    def logical_and(
        self,
        a: TensorLike,
        b: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """1 where both are not 0.

        Returns:
            OUT_0
        """

    def logical_not(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """1 where x is 0, else 0.

        Returns:
            OUT_0
        """

    def logical_or(
        self,
        a: TensorLike,
        b: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """1 where one is not 0.

        Returns:
            OUT_0
        """

    def matmul(
        self,
        A: TensorLike,
        B: TensorLike,
        compute_data_type: TypeLike | None = ...,
        padding: float | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """Matrix product of A [.., M, K] and B [.., K, N]; batch axes broadcast.

        Returns:
            C
        """

    def max(
        self,
        input0: TensorLike,
        input1: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """The larger; NaN wins.

        Returns:
            OUT_0
        """

    def min(
        self,
        input0: TensorLike,
        input1: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """The smaller; NaN wins.

        Returns:
            OUT_0
        """

    def mod(
        self,
        input0: TensorLike,
        input1: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """Remainder of input0 / input1 with the sign of input0.

        Returns:
            OUT_0
        """

    def mul(
        self,
        a: TensorLike,
        b: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """a b.

        Returns:
            OUT_0
        """

    def neg(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """Negative.

        Returns:
            OUT_0
        """

    def pow(
        self,
        input0: TensorLike,
        input1: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """input0 to the power of input1.

        Returns:
            OUT_0
        """

    def reciprocal(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """One over x.

        Returns:
            OUT_0
        """

    @overload
    def reduction(
        self,
        input: TensorLike,
        mode: enums.reduction_mode,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        group_offset: TensorLike | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """Reduce over the axes whose extent is 1 in the output; the output's dims must be set.

        Returns:
            OUT_0
        """

    @overload
    def reduction(
        self,
        input: TensorLike,
        group_offset: TensorLike | None = ...,
        mode: enums.reduction_mode | None = ...,
        *,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        out_dims: OutDims | None = ...,
    ) -> Tensor: ...
    @overload
    def relu(
        self,
        input: TensorLike,
        negative_slope: float | None = ...,
        lower_clip: float | None = ...,
        upper_clip: float | None = ...,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """x clipped from below (0 unless given) and above, with an optional slope below.

        Returns:
            OUT_0
        """

    @overload
    def relu(
        self,
        input: TensorLike,
        negative_slope: float | None = ...,
        lower_clip: float | None = ...,
        upper_clip: float | None = ...,
        name: str | None = ...,
        compute_data_type: TypeLike | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor: ...
    @overload
    def rmsnorm(
        self,
        norm_forward_phase: enums.norm_forward_phase,
        input: TensorLike,
        scale: TensorLike | None = ...,
        bias: TensorLike | None = ...,
        epsilon: TensorLike | None = ...,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> list[Any]:
        """Divide by the root mean square over the axes where scale is not 1.

        Returns:
            [Y, inv_var]
        """

    @overload
    def rmsnorm(
        self,
        input: TensorLike,
        scale: TensorLike | None = ...,
        bias: TensorLike | None = ...,
        epsilon: TensorLike | None = ...,
        norm_forward_phase: enums.norm_forward_phase | None = ...,
        *,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        out_dims: OutDims | None = ...,
    ) -> list[Any]: ...
    def rsqrt(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """One over the square root.

        Returns:
            OUT_0
        """

    def scale(
        self,
        input: TensorLike,
        scale: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """input times scale.

        Returns:
            OUT_0
        """

    def sdpa(
        self,
        q: TensorLike,
        k: TensorLike,
        v: TensorLike,
        is_inference: Any = ...,
        attn_scale: Any = ...,
        bias: TensorLike | None = ...,
        block_mask: TensorLike | None = ...,
        use_alibi_mask: bool | None = ...,
        use_padding_mask: bool | None = ...,
        seq_len_q: TensorLike | None = ...,
        seq_len_kv: TensorLike | None = ...,
        use_causal_mask: Any = ...,
        use_causal_mask_bottom_right: Any = ...,
        sliding_window_length: Any = ...,
        diagonal_alignment: enums.diagonal_alignment | None = ...,
        diagonal_band_left_bound: int | None = ...,
        diagonal_band_right_bound: int | None = ...,
        dropout: Any = ...,
        rng_dump: TensorLike | None = ...,
        paged_attention_k_table: TensorLike | None = ...,
        paged_attention_v_table: TensorLike | None = ...,
        paged_attention_max_seq_len_kv: int | None = ...,
        max_total_seq_len_q: int | None = ...,
        max_total_seq_len_kv: int | None = ...,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        score_mod: Any = ...,
        generate_stats: bool | None = ...,
        implementation: enums.attention_implementation | None = ...,
        score_max: TensorLike | None = ...,
        score_sum_exp: TensorLike | None = ...,
        sink_token: TensorLike | None = ...,
        unfuse_fma: bool | None = ...,
        cu_seq_len_q: TensorLike | None = ...,
        cu_seq_len_kv: TensorLike | None = ...,
        stats_use_log2: bool | None = ...,
        *,
        attn_scale_prefolded: Any = ...,
        kv_mask: TensorLike | None = ...,
        out_dims: OutDims | None = ...,
        softmax_precision: Any = ...,
    ) -> list[Any]:
        """Attention: softmax of scaled, biased and masked scores q k^T, times v; optionally its row statistics.

        Returns:
            [O, Stats]
        """
    scaled_dot_product_flash_attention = sdpa

    def sigmoid(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """1 / (1 + e^-x).

        Returns:
            OUT_0
        """

    def sin(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """Sine of radians.

        Returns:
            OUT_0
        """

    def softplus(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """ln(1 + e^x).

        Returns:
            OUT_0
        """

    def sqrt(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """Square root.

        Returns:
            OUT_0
        """

    def sub(
        self,
        a: TensorLike,
        b: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """a - b.

        Returns:
            OUT_0
        """

    @overload
    def swish(
        self,
        input: TensorLike,
        swish_beta: float | None = ...,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """x sigmoid(beta x); beta is 1 unless given.

        Returns:
            OUT_0
        """

    @overload
    def swish(
        self,
        input: TensorLike,
        swish_beta: float | None = ...,
        name: str | None = ...,
        compute_data_type: TypeLike | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor: ...
    def tan(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """Tangent of radians.

        Returns:
            OUT_0
        """

    def tanh(
        self,
        input: TensorLike,
        compute_data_type: TypeLike | None = ...,
        name: str | None = ...,
        *,
        out_dims: OutDims | None = ...,
    ) -> Tensor:
        """Hyperbolic tangent.

        Returns:
            OUT_0
        """
