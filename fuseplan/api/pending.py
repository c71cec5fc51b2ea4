"""Names of the API that are not there yet, and what to use instead.

`hasattr` sees them as missing, and using one says so by name; other unknown names are plain AttributeErrors.
"""

# table
from __future__ import annotations

from typing import Any

from fuseplan.errors import NotYetAvailableError

#: Methods of a graph that the API has; those that a graph does not have (yet) are pending.
GRAPH_NAMES = frozenset(
    """
    abs adalayernorm adalayernorm_backward add add_square batchnorm batchnorm_backward batchnorm_inference bias
    binary_select block_scale_dequantize block_scale_quantize ceil cmp_eq cmp_ge cmp_gt cmp_le cmp_lt cmp_neq
    concatenate conv_dgrad conv_fprop conv_wgrad cos div elu elu_backward erf exp floor gdn gdn2 gdn2_bwd
    gdn2_summary gdn2_summary_bwd gdn_bwd gdn_summary gdn_summary_bwd gdp gdp_bwd gdp_summary gdp_summary_bwd
    gelu gelu_approx_tanh gelu_approx_tanh_backward gelu_backward gen_index genstats identity instancenorm
    instancenorm_backward kda kda_bwd kda_summary kda_summary_bwd layernorm layernorm_backward leaky_relu
    leaky_relu_backward log logical_and logical_not logical_or mamba2 mamba2_bwd mamba2_summary
    mamba2_summary_bwd matmul max min mod moe_grouped_matmul moe_grouped_matmul_bwd mul neg populate_cuda_graph
    pow reciprocal reduction relu relu_backward reshape rmsnorm rmsnorm_backward rope rope_backward rsqrt scale
    scaled_dot_product_flash_attention scaled_dot_product_flash_attention_backward sdpa sdpa_backward sdpa_fp8
    sdpa_fp8_backward sdpa_mxfp8 sdpa_mxfp8_backward sigmoid sigmoid_backward sin slice softplus
    softplus_backward sqrt sub swish swish_backward tan tanh tanh_backward transpose update_cuda_graph
    """.split()
)

#: Names of the module that are not there yet.
MODULE_NAMES = frozenset(
    """
    AlignedHCABackward BSA BlockScaledTensor CSA CSACompressorBackward CSACompressorForward
    CausalConv3dWithCacheSm100 CompactGqaBackward Conv3dBiasResidualPadSm100 Conv3dRawSm100
    Conv3dRmsNormSiluPadSm100 Conv3dRmsNormSiluSm100 DSA DiscreteGroupedGemmDswigluSm100
    DiscreteGroupedGemmSwigluSm100 EngramGateSavedBackward EngramGateSavedForward FlexAttentionBwd
    FlexAttentionFwd GatedAttentionBlockBwd GatedAttentionBlockFwd GemmAmaxSm100 GemmDsreluSm100
    GemmProjRopeMxfp8Bf16InSm100 GemmProjRopeMxfp8Mxfp8InSm100 GemmSreluSm100 GemmSwigluSm100
    GroupedGemmDgluSm100 GroupedGemmDsreluSm100 GroupedGemmDswigluSm100 GroupedGemmGluHadamardQuantSm100
    GroupedGemmGluHadamardSm100 GroupedGemmGluSm100 GroupedGemmQuantSm100 GroupedGemmSm100 GroupedGemmSreluSm100
    GroupedGemmSwigluSm100 GroupedGemmWgradSm100 MhcProjectionBackward MoeEp MoeEpAutotuneCandidateResult
    MoeEpAutotuneResult MoeEpBackwardWeightStaging MoeEpBackwardWeights MoeEpConfig MoeEpDataPathConfig
    MoeEpFc1WeightLayout MoeEpForwardWeightStaging MoeEpForwardWeights MoeEpModelConfig
    MoeEpNativeBackwardWeights MoeEpNativeDiscreteBackwardWeights MoeEpNativeDiscreteForwardWeights
    MoeEpNativeDiscreteWeight MoeEpNativeForwardWeights MoeEpNativeWeight MoeEpNativeWeightLayout
    MoeEpNativeWeightStorageMode MoeEpParallelConfig MoeEpTrainingBackwardOutputs MoeEpTrainingForwardOutputs
    MoeEpTrainingWgradOperands MoeEpTuningConfig MoeFormat MoeTensor NSA Nvfp4AttentionQatBackward
    RmsNormRhtAmaxSm100 RmsNormSiluPadSm100 RopeQDQInplace TailRoPEForward TriangleAttentionFwd
    TriangleMultiplicativeUpdateFwd VisionRoPEBackward aligned_hca_backward_wrapper b2b_causal_conv1d_backward
    b2b_causal_conv1d_forward block_sparse_attention_backward block_sparse_attention_forward
    block_sparse_attention_fp8_forward causal_conv1d_backward causal_conv1d_forward causal_conv1d_nwh_backward
    causal_conv1d_nwh_forward causal_conv3d_with_cache_wrapper_sm100 compact_gqa_backward
    conv3d_bias_residual_pad_wrapper_sm100 conv3d_raw_wrapper_sm100 conv3d_rmsnorm_silu_pad_wrapper_sm100
    conv3d_rmsnorm_silu_wrapper_sm100 create_mask_plan csa_compressor_backward_wrapper
    csa_compressor_forward_wrapper discrete_grouped_gemm discrete_grouped_gemm_dswiglu_jax_sm100
    discrete_grouped_gemm_dswiglu_wrapper_sm100 discrete_grouped_gemm_swiglu_jax_sm100
    discrete_grouped_gemm_swiglu_wrapper_sm100 engram_gate_saved_backward engram_gate_saved_forward experimental
    fft_causal_conv1d_backward fft_causal_conv1d_forward fla flex_attn_func gated_attention_block
    gated_attention_block_backward gated_attention_block_forward gemm_amax_jax_sm100 gemm_amax_wrapper_sm100
    gemm_dsrelu_jax_sm100 gemm_dsrelu_wrapper_sm100 gemm_proj_rope_mxfp8_jax_sm100
    gemm_proj_rope_mxfp8_wrapper_sm100 gemm_srelu_jax_sm100 gemm_srelu_wrapper_sm100 gemm_swiglu_jax_sm100
    gemm_swiglu_wrapper_sm100 get_grouped_gemm_wgrad_workspace_size_sm100 gnn gnn_agg_simple_backward
    gnn_agg_simple_forward gnn_mha_gat_backward gnn_mha_gat_forward gnn_mha_gat_v2_backward
    gnn_mha_gat_v2_forward grouped_gemm grouped_gemm_dglu_jax_sm100 grouped_gemm_dglu_wrapper_sm100
    grouped_gemm_dsrelu_jax_sm100 grouped_gemm_dsrelu_wrapper_sm100 grouped_gemm_dswiglu_wrapper_sm100
    grouped_gemm_glu_hadamard_jax_forward grouped_gemm_glu_hadamard_quant_jax_forward
    grouped_gemm_glu_hadamard_quant_wrapper_sm100 grouped_gemm_glu_hadamard_wrapper_sm100
    grouped_gemm_glu_jax_sm100 grouped_gemm_glu_wrapper_sm100 grouped_gemm_jax_sm100
    grouped_gemm_quant_jax_forward grouped_gemm_quant_wrapper_sm100 grouped_gemm_srelu_jax_forward
    grouped_gemm_srelu_wrapper_sm100 grouped_gemm_swiglu_wrapper_sm100 grouped_gemm_wgrad_jax_sm100
    grouped_gemm_wgrad_wrapper_sm100 grouped_gemm_wrapper_sm100 hstu_attention_backward hstu_attention_forward
    hstu_lmsd_backward hstu_lmsd_forward jax long_fft_causal_conv1d_backward long_fft_causal_conv1d_forward
    long_fft_causal_conv1d_get_buffer_sizes mask_to_kv_lengths mhc_projection_backward moe_ep
    nvfp4_attention_qat_backward pack_backward_weights pack_causal_conv3d_weight_sm100 pack_conv3d_weight_sm100
    pack_forward_weights prefix_mask_to_kv_lengths rmsnorm_rht_amax_wrapper_sm100 rmsnorm_silu_pad_wrapper_sm100
    rope_qdq_inplace sdpa_torch tail_rope torch triangle_attention triangle_multiplicative_update
    vision_rope_backward_wrapper
    """.split()
)

#: Steps that `Graph` takes itself.
BLOCKED_ON_WRAPPER = frozenset(
    """
    build build_operation_graph build_plan_at_index build_plans check_support create_execution_plan
    create_execution_plans deselect_behavior_notes deselect_engines deselect_numeric_notes
    deselect_workspace_greater_than execute execute_plan_at_index get_behavior_notes
    get_behavior_notes_for_plan_at_index get_engine_count get_execution_plan_count get_knobs_for_engine
    get_plan_name_at_index key populate_cuda_graph select_behavior_notes select_numeric_notes update_cuda_graph
    validate
    """.split()
)

#: Functions of the module `gemm`.
GEMM_NAMES = frozenset(
    "MhcProjectionBackward mhc_projection_backward moe_grouped_matmul situ_mlp swiglu_mlp swiglu_moe".split()
)

#: Functions of the module `ops`.
OPS_NAMES = frozenset(
    """
    Nvfp4BlockScaleDequantizer Nvfp4BlockScaleQuantizer b2b_causal_conv1d block_sparse_attention_backward
    block_sparse_attention_backward_jax block_sparse_attention_forward block_sparse_attention_forward_jax
    block_sparse_attention_fp8_forward causal_conv1d causal_conv1d_nwh causal_conv1d_update
    fft_causal_conv1d kimi_delta_attention_backward_jax kimi_delta_attention_forward_jax
    nvfp4_block_scale_dequantize nvfp4_block_scale_quantize qsa_backward qsa_forward qsa_indexed_backward
    qsa_indexed_forward qsa_select_decode_forward qsa_select_decode_paged_forward qsa_select_forward
    """.split()
)

#: Beginning of a name -> what to use instead; the first that fits counts.
INSTEAD: tuple[tuple[str, str], ...] = (
    ("sdpa_fp8", "sdpa on HALF or BFLOAT16 tensors"),
    ("sdpa_mxfp8", "sdpa on HALF or BFLOAT16 tensors"),
    ("scaled_dot_product_flash_attention", "sdpa"),
    ("sdpa", "matmul, scale, reduction, sub, exp and div"),
    ("adalayernorm", "layernorm, then mul and add"),
    ("batchnorm_inference", "sub and mul with per-channel tensors, then scale and bias"),
    ("batchnorm", "reduction, sub, mul and add with per-channel tensors"),
    ("instancenorm", "reduction, sub, mul and add over the spatial axes"),
    ("genstats", "reduction with mode ADD on the tensor and on its square"),
    ("block_scale", "mul with a scale tensor of the same dims"),
    ("rope", "mul, add and sub on strided views of the tensor"),
    ("moe_", "one matmul for each expert"),
    ("swiglu_mlp", "a graph of matmul, swish and mul, then one of matmul"),
    ("situ_mlp", "a graph of matmul, tanh, sigmoid and mul, then one of matmul"),
    ("concatenate", "outputs that are strided views of one buffer"),
    ("slice", "a tensor() with the strides of the view, bound to the address of its first element"),
    ("transpose", "a tensor() with permuted dims and strides, bound to the same buffer"),
    ("reshape", "a tensor() with other dims, bound to the same buffer"),
    ("populate_cuda_graph", "execute or bind inside a stream capture, for instance torch.cuda.graph"),
    ("update_cuda_graph", "a new stream capture of execute"),
    ("convolution_mode", "fuseplan.api.enums.convolution_mode"),
)
_NO_HINT = "a graph of the operations that are there, or pin the library that has it"


#: What a name belongs to -> the API's names in it that may be pending.
_OWNERS = {
    "pygraph": GRAPH_NAMES, "fuseplan": MODULE_NAMES, "fuseplan.gemm": GEMM_NAMES, "fuseplan.ops": OPS_NAMES,
}  # fmt: skip


def missing(owner: str, name: str) -> AttributeError:
    """The error for an attribute that a graph, or a module of the API, does not have."""
    if name not in _OWNERS[owner]:
        kind = f"module {owner!r}" if owner.startswith("fuseplan") else f"{owner!r} object"
        return AttributeError(f"{kind} has no attribute {name!r}")
    hint: Any = next((text for start, text in INSTEAD if name.startswith(start)), _NO_HINT)
    return NotYetAvailableError(
        f"{owner}.{name} is part of the API, but fuseplan does not have it yet", fix=f"use {hint}"
    )


def get_module_name(name: str) -> Any:
    """`__getattr__` of the package. Raises NotYetAvailableError for a name of the API, else AttributeError."""
    raise missing("fuseplan", name)
