# table
# Written by scripts/make_stubs.py from the op schemas; do not edit.
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, overload

from fuseplan.api import enums
from fuseplan.api.binding import CallForm
from fuseplan.api.draft import GraphDraft
from fuseplan.api.tensor import Tensor
from fuseplan.ops.schema import OpSchema

# A graph tensor, or an array that exports DLPack; a data_type member or a torch dtype. None where optional.
Operand: TypeAlias = Any
TypeLike: TypeAlias = Any
Name: TypeAlias = str | None
Dims: TypeAlias = Sequence[int] | dict[str, Sequence[int]] | None

def attach(schema: OpSchema) -> None: ...
def make_method(schema: OpSchema) -> Callable[..., Any]: ...
def document(form: CallForm) -> str: ...
def signature(form: CallForm, listed: tuple[str, ...] | None = None) -> inspect.Signature: ...

class OfInput(Protocol):
    def __call__(
        self, input: Operand, compute_data_type: TypeLike = ..., name: Name = ..., *, out_dims: Dims = ...
    ) -> Tensor: ...

class OfAB(Protocol):
    def __call__(
        self, a: Operand, b: Operand, compute_data_type: TypeLike = ..., name: Name = ..., *, out_dims: Dims = ...
    ) -> Tensor: ...

class OfInputComparison(Protocol):
    def __call__(
        self,
        input: Operand,
        comparison: Operand,
        compute_data_type: TypeLike = ...,
        name: Name = ...,
        *,
        out_dims: Dims = ...,
    ) -> Tensor: ...

class OfInputEpsilon(Protocol):
    @overload
    def __call__(
        self,
        norm_forward_phase: enums.norm_forward_phase,
        input: Operand,
        scale: Operand = ...,
        bias: Operand = ...,
        epsilon: Operand = ...,
        compute_data_type: TypeLike = ...,
        name: Name = ...,
        *,
        out_dims: Dims = ...,
    ) -> list[Any]: ...
    @overload
    def __call__(
        self,
        input: Operand,
        scale: Operand = ...,
        bias: Operand = ...,
        epsilon: Operand = ...,
        norm_forward_phase: enums.norm_forward_phase | None = ...,
        *,
        compute_data_type: TypeLike = ...,
        name: Name = ...,
        out_dims: Dims = ...,
    ) -> list[Any]: ...

class OfInput0Input1(Protocol):
    def __call__(
        self,
        input0: Operand,
        input1: Operand,
        compute_data_type: TypeLike = ...,
        name: Name = ...,
        *,
        out_dims: Dims = ...,
    ) -> Tensor: ...

class OpMethods:
    _draft: GraphDraft
    abs: OfInput
    """Absolute value."""
    add: OfAB
    """a + b."""
    add_square: OfAB
    """a + b b."""
    def bias(
        self,
        input: Operand,
        bias: Operand,
        compute_data_type: TypeLike = ...,
        name: Name = ...,
        *,
        out_dims: Dims = ...,
    ) -> Tensor:
        """input + bias."""
    def binary_select(
        self,
        input0: Operand,
        input1: Operand,
        mask: Operand,
        compute_data_type: TypeLike = ...,
        name: Name = ...,
        *,
        out_dims: Dims = ...,
    ) -> Tensor:
        """input0 where mask is not 0, else input1."""
    ceil: OfInput
    """Smallest integer that is not less."""
    cmp_eq: OfInputComparison
    """1 where equal, else 0."""
    cmp_ge: OfInputComparison
    """1 where not less."""
    cmp_gt: OfInputComparison
    """1 where input is more."""
    cmp_le: OfInputComparison
    """1 where not more."""
    cmp_lt: OfInputComparison
    """1 where input is less."""
    cmp_neq: OfInputComparison
    """1 where not equal."""
    @overload
    def conv_fprop(
        self,
        image: Operand,
        weight: Operand,
        padding: Sequence[int] | None = ...,
        stride: Sequence[int] | None = ...,
        dilation: Sequence[int] | None = ...,
        convolution_mode: enums.convolution_mode | None = ...,
        compute_data_type: TypeLike = ...,
        name: Name = ...,
        pre_padding: Sequence[int] | None = ...,
        post_padding: Sequence[int] | None = ...,
        *,
        out_dims: Dims = ...,
    ) -> Tensor:
        """Convolution of image [N, C, ..] with weight [K, C / groups, ..]; groups follow from the dims.

        Dims are in this order whatever the memory is: channels-last is a matter of strides.

        Args:
            padding: zeros on both sides of each spatial axis, or pre_padding and post_padding; must be given
            stride, dilation: one number per spatial axis; must be given
        """
    @overload
    def conv_fprop(
        self,
        image: Operand,
        weight: Operand,
        padding: Sequence[int] | None = ...,
        pre_padding: Sequence[int] | None = ...,
        post_padding: Sequence[int] | None = ...,
        stride: Sequence[int] | None = ...,
        dilation: Sequence[int] | None = ...,
        convolution_mode: enums.convolution_mode | None = ...,
        *,
        compute_data_type: TypeLike = ...,
        name: Name = ...,
        out_dims: Dims = ...,
    ) -> Tensor: ...
    cos: OfInput
    """Cosine of radians."""
    div: OfAB
    """a / b; in integer arithmetic truncated towards zero."""
    elu: OfInput
    """x where positive, else e^x - 1."""
    erf: OfInput
    """Error function."""
    exp: OfInput
    """e to the power of x."""
    floor: OfInput
    """Largest integer that is not more."""
    gelu: OfInput
    """x/2 (1 + erf(x / sqrt 2))."""
    gelu_approx_tanh: OfInput
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    @overload
    def gen_index(
        self, input: Operand, axis: int, compute_data_type: TypeLike = ..., name: Name = ..., *, out_dims: Dims = ...
    ) -> Tensor:
        """Each element's own index along an axis; input values are ignored."""
    @overload
    def gen_index(
        self, input: Operand, axis: int, name: Name = ..., compute_data_type: TypeLike = ..., *, out_dims: Dims = ...
    ) -> Tensor: ...
    identity: OfInput
    """Copy, and conversion to the output's type."""
    layernorm: OfInputEpsilon
    """Take off the mean and divide by the standard deviation over the axes where scale is not 1.

    Shapes:
        scale, bias: the input's rank, 1 on every axis that is not normalised
        statistics: the input's dims, 1 on every normalised axis
    Args:
        norm_forward_phase: TRAINING gives the statistics, INFERENCE gives None in their place
        epsilon: tensor of one element, added to the mean square before the root; must be given

    Returns:
        [Y, mean, inv_var]
    """
    def layernorm_backward(
        self,
        grad: Operand,
        input: Operand,
        scale: Operand = ...,
        mean: Operand = ...,
        inv_variance: Operand = ...,
        compute_data_type: TypeLike = ...,
        name: Name = ...,
        *,
        out_dims: Dims = ...,
    ) -> list[Any]:
        """Gradients of layer norm by its input, scale and bias, from the statistics of its forward call.

        Shapes:
            grad, DX: the input's dims
            scale, DScale, DBias: the input's rank, 1 on every axis that is not normalised
            statistics: the input's dims, 1 on every normalised axis; without scale they say which axes are normalised

        Returns:
            [DX, DScale, DBias]
        """
    @overload
    def leaky_relu(
        self,
        input: Operand,
        negative_slope: float,
        compute_data_type: TypeLike = ...,
        name: Name = ...,
        *,
        out_dims: Dims = ...,
    ) -> Tensor:
        """x where positive, else negative_slope x."""
    @overload
    def leaky_relu(
        self,
        input: Operand,
        negative_slope: float,
        name: Name = ...,
        compute_data_type: TypeLike = ...,
        *,
        out_dims: Dims = ...,
    ) -> Tensor: ...
    log: OfInput
    """Natural logarithm."""
    logical_and: OfAB
    """1 where both are not 0."""
    logical_not: OfInput
    """1 where x is 0, else 0."""
    logical_or: OfAB
    """1 where one is not 0."""
    def matmul(
        self,
        A: Operand,
        B: Operand,
        compute_data_type: TypeLike = ...,
        padding: float | None = ...,
        name: Name = ...,
        *,
        out_dims: Dims = ...,
    ) -> Tensor:
        """Matrix product of A [.., M, K] and B [.., K, N]; batch axes broadcast."""
    max: OfInput0Input1
    """The larger; NaN wins."""
    min: OfInput0Input1
    """The smaller; NaN wins."""
    mod: OfInput0Input1
    """Remainder of input0 / input1 with the sign of input0."""
    mul: OfAB
    """a b."""
    neg: OfInput
    """Negative."""
    pow: OfInput0Input1
    """input0 to the power of input1."""
    reciprocal: OfInput
    """One over x."""
    @overload
    def reduction(
        self,
        input: Operand,
        mode: enums.reduction_mode,
        compute_data_type: TypeLike = ...,
        name: Name = ...,
        group_offset: Operand = ...,
        *,
        out_dims: Dims = ...,
    ) -> Tensor:
        """Reduce over the axes whose extent is 1 in the output; the output's dims must be set."""
    @overload
    def reduction(
        self,
        input: Operand,
        group_offset: Operand = ...,
        mode: enums.reduction_mode | None = ...,
        *,
        compute_data_type: TypeLike = ...,
        name: Name = ...,
        out_dims: Dims = ...,
    ) -> Tensor: ...
    @overload
    def relu(
        self,
        input: Operand,
        negative_slope: float | None = ...,
        lower_clip: float | None = ...,
        upper_clip: float | None = ...,
        compute_data_type: TypeLike = ...,
        name: Name = ...,
        *,
        out_dims: Dims = ...,
    ) -> Tensor:
        """x clipped from below (0 unless given) and above, with an optional slope below."""
    @overload
    def relu(
        self,
        input: Operand,
        negative_slope: float | None = ...,
        lower_clip: float | None = ...,
        upper_clip: float | None = ...,
        name: Name = ...,
        compute_data_type: TypeLike = ...,
        *,
        out_dims: Dims = ...,
    ) -> Tensor: ...
    rmsnorm: OfInputEpsilon
    """Divide by the root mean square over the axes where scale is not 1.

    Shapes:
        scale, bias: the input's rank, 1 on every axis that is not normalised
        statistics: the input's dims, 1 on every normalised axis
    Args:
        norm_forward_phase: TRAINING gives the statistics, INFERENCE gives None in their place
        epsilon: tensor of one element, added to the mean square before the root; must be given

    Returns:
        [Y, inv_var]
    """
    def rmsnorm_backward(
        self,
        grad: Operand,
        input: Operand,
        scale: Operand = ...,
        inv_variance: Operand = ...,
        has_dbias: bool | None = ...,
        compute_data_type: TypeLike = ...,
        name: Name = ...,
        *,
        out_dims: Dims = ...,
    ) -> list[Any]:
        """Gradients of RMS norm by its input, scale and bias, from the statistic of its forward call.

        Shapes:
            grad, DX: the input's dims
            scale, DScale, DBias: the input's rank, 1 on every axis that is not normalised
            statistics: the input's dims, 1 on every normalised axis; without scale they say which axes are normalised
        Args:
            has_dbias: whether the gradient of a bias is made as well; must be given

        Returns:
            [DX, DScale, DBias]
        """
    rsqrt: OfInput
    """One over the square root."""
    def scale(
        self,
        input: Operand,
        scale: Operand,
        compute_data_type: TypeLike = ...,
        name: Name = ...,
        *,
        out_dims: Dims = ...,
    ) -> Tensor:
        """input times scale."""
    def sdpa(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        is_inference: Any = ...,
        attn_scale: Any = ...,
        bias: Operand = ...,
        block_mask: Operand = ...,
        use_alibi_mask: bool | None = ...,
        use_padding_mask: bool | None = ...,
        seq_len_q: Operand = ...,
        seq_len_kv: Operand = ...,
        use_causal_mask: Any = ...,
        use_causal_mask_bottom_right: Any = ...,
        sliding_window_length: Any = ...,
        diagonal_alignment: enums.diagonal_alignment | None = ...,
        diagonal_band_left_bound: int | None = ...,
        diagonal_band_right_bound: int | None = ...,
        dropout: Any = ...,
        rng_dump: Operand = ...,
        paged_attention_k_table: Operand = ...,
        paged_attention_v_table: Operand = ...,
        paged_attention_max_seq_len_kv: int | None = ...,
        max_total_seq_len_q: int | None = ...,
        max_total_seq_len_kv: int | None = ...,
        compute_data_type: TypeLike = ...,
        name: Name = ...,
        score_mod: Any = ...,
        generate_stats: bool | None = ...,
        implementation: enums.attention_implementation | None = ...,
        score_max: Operand = ...,
        score_sum_exp: Operand = ...,
        sink_token: Operand = ...,
        unfuse_fma: bool | None = ...,
        cu_seq_len_q: Operand = ...,
        cu_seq_len_kv: Operand = ...,
        stats_use_log2: bool | None = ...,
        *,
        attn_scale_prefolded: Any = ...,
        kv_mask: Operand = ...,
        out_dims: Dims = ...,
        softmax_precision: Any = ...,
    ) -> list[Any]:
        """Attention: softmax of scaled, biased and masked scores q k^T, times v; optionally its row statistics.

        Shapes:
            q: [B, H, S_q, D_qk]; k: [B, H_k, S_kv, D_qk]; v: [B, H_v, S_kv, D_v]; H is a multiple of H_k and of H_v
            O: [B, H, S_q, D_v]; Stats: [B, H, S_q, 1], logarithm of the sum of exp over each row's scores
        Args:
            generate_stats: must be given, True or False; without statistics Stats is None
            is_inference: the older form, not generate_stats
            attn_scale: factor of q k^T, a number or a tensor of one element; 1 if left out
            bias: added to the scaled scores, broadcasts to [B, H, S_q, S_kv]
            use_causal_mask: row i sees columns 0 to i; use_causal_mask_bottom_right: counted from the last ones
            diagonal_band_left_bound, diagonal_band_right_bound: row i sees columns above i - left, and up to i + right
            use_padding_mask: rows and columns past seq_len_q and seq_len_kv, INT32 [B, 1, 1, 1], are left out

        Returns:
            [O, Stats]
        """
    scaled_dot_product_flash_attention = sdpa
    def sdpa_backward(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        o: Operand,
        dO: Operand,
        stats: Operand,
        attn_scale: Any = ...,
        bias: Operand = ...,
        dBias: Operand = ...,
        use_alibi_mask: bool | None = ...,
        use_padding_mask: bool | None = ...,
        seq_len_q: Operand = ...,
        seq_len_kv: Operand = ...,
        max_total_seq_len_q: int | None = ...,
        max_total_seq_len_kv: int | None = ...,
        use_causal_mask: Any = ...,
        use_causal_mask_bottom_right: Any = ...,
        sliding_window_length: Any = ...,
        diagonal_alignment: enums.diagonal_alignment | None = ...,
        diagonal_band_left_bound: int | None = ...,
        diagonal_band_right_bound: int | None = ...,
        dropout: Any = ...,
        rng_dump: Operand = ...,
        use_deterministic_algorithm: bool | None = ...,
        compute_data_type: TypeLike = ...,
        name: Name = ...,
        score_mod: Any = ...,
        score_mod_bprop: Any = ...,
        sink_token: Operand = ...,
        dSink_token: Operand = ...,
        *,
        out_dims: Dims = ...,
    ) -> list[Tensor]:
        """Gradients of attention by q, k and v, from its output and the logarithms of its sums.

        Shapes:
            q, k, v and options: as in the forward call; o, dO: [B, H, S_q, D_v]; stats: [B, H, S_q, 1], FLOAT, natural
            dQ, dK, dV: as q, k, v; heads of k and v that several of q share get the sum
        Args:
            dBias: tensor for the gradient of bias, summed over the axes that bias repeats
            dSink_token: tensor for the gradient of sink_token
            use_deterministic_algorithm: only plans that add up in one order

        Returns:
            [dQ, dK, dV]
        """
    scaled_dot_product_flash_attention_backward = sdpa_backward
    sigmoid: OfInput
    """1 / (1 + e^-x)."""
    sin: OfInput
    """Sine of radians."""
    softplus: OfInput
    """ln(1 + e^x)."""
    sqrt: OfInput
    """Square root."""
    sub: OfAB
    """a - b."""
    @overload
    def swish(
        self,
        input: Operand,
        swish_beta: float | None = ...,
        compute_data_type: TypeLike = ...,
        name: Name = ...,
        *,
        out_dims: Dims = ...,
    ) -> Tensor:
        """x sigmoid(beta x); beta is 1 unless given."""
    @overload
    def swish(
        self,
        input: Operand,
        swish_beta: float | None = ...,
        name: Name = ...,
        compute_data_type: TypeLike = ...,
        *,
        out_dims: Dims = ...,
    ) -> Tensor: ...
    tan: OfInput
    """Tangent of radians."""
    tanh: OfInput
    """Hyperbolic tangent."""
