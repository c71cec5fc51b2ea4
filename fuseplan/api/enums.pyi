# table
# ruff: noqa: N801
# Written by scripts/make_stubs.py from enums.json; do not edit.
from enum import Enum
from typing import Any

FRONTEND_KNOB_TYPE_BASE: int
KINDS: dict[str, Any]

def is_frontend_knob_type(knob_type: knob_type) -> bool: ...
def read_data(name: str) -> dict[str, Any]: ...

class data_type(Enum):
    """Element types of tensors and compute types of nodes."""

    NOT_SET = 0
    FLOAT = 1
    DOUBLE = 2
    HALF = 3
    INT8 = 4
    INT32 = 5
    INT8x4 = 6
    UINT8 = 7
    UINT8x4 = 8
    INT8x32 = 9
    BFLOAT16 = 10
    INT64 = 11
    BOOLEAN = 12
    FP8_E4M3 = 14
    FP8_E5M2 = 15
    FAST_FLOAT_FOR_FP8 = 16
    FP8_E8M0 = 17
    FP8_E5M3 = 18
    FP4_E2M1 = 19
    INT4 = 20

class heur_mode(Enum):
    """Which list of plans to ask for."""

    A = 0
    B = 1
    FALLBACK = 2
    OPENSOURCE = 3

class build_plan_policy(Enum):
    """Build the first plan that works, or all of them."""

    HEURISTICS_CHOICE = 0
    ALL = 1

class reduction_mode(Enum):
    """What a reduction computes over the reduced axes."""

    NOT_SET = 0
    ADD = 1
    MUL = 2
    MIN = 3
    MAX = 4
    AMAX = 5
    AVG = 6
    NORM1 = 7
    NORM2 = 8
    MUL_NO_ZEROS = 9

class numerical_note(Enum):
    """Numerical properties of a plan."""

    TENSOR_CORE = 1
    DOWN_CONVERT_INPUTS = 2
    REDUCED_PRECISION_REDUCTION = 3
    FFT = 4
    NONDETERMINISTIC = 5
    WINOGRAD = 6
    WINOGRAD_TILE_4x4 = 7
    WINOGRAD_TILE_6x6 = 8
    WINOGRAD_TILE_13x13 = 9
    STRICT_NAN_PROP = 10

class behavior_note(Enum):
    """Run-time properties of a plan."""

    RUNTIME_COMPILATION = 1
    REQUIRES_FILTER_INT8x32_REORDER = 2
    REQUIRES_BIAS_INT8x32_REORDER = 3
    SUPPORTS_CUDA_GRAPH_NATIVE_API = 4
    CUBLASLT_DEPENDENCY = 5

class knob_type(Enum):
    """Choices of an engine that a program may set; 1000 and above belong to this library's engines."""

    NOT_SET = 0
    SWIZZLE = 1
    TILE_SIZE = 2
    EDGE = 3
    MULTIPLY = 4
    SPLIT_K_BUF = 5
    TILEK = 6
    STAGES = 7
    REDUCTION_MODE = 8
    SPLIT_K_SLC = 9
    IDX_MODE = 10
    SPECFILT = 11
    KERNEL_CFG = 12
    WORKSPACE = 13
    TILE_CGA_M = 14
    TILE_CGA_N = 15
    BLOCK_SIZE = 16
    OCCUPANCY = 17
    ARRAY_SIZE_PER_THREAD = 18
    SPLIT_COLS = 19
    TILE_ROWS = 20
    TILE_COLS = 21
    LOAD_SIZE = 22
    CTA_COUNT = 23
    STREAM_K = 24
    SPLIT_P_SLC = 25
    TILE_M = 26
    TILE_N = 27
    WARP_SPEC_CFG = 28
    SWAP_AB = 29
    INPUT_TMA_ENABLE = 30
    OUTPUT_TMA_ENABLE = 31
    TILE_CGA = 32
    SCHED_POLICY = 1000
    PACK_GQA = 1001
    SPLIT_KV = 1002
    PIPELINE_ARCH = 1003
    MMA_TILE_M = 1004
    MMA_TILE_N = 1005
    MMA_TILE_K = 1006
    CTA_GROUP = 1007
    WARPS_M = 1008
    WARPS_N = 1009

class tensor_reordering(Enum):
    """Memory order of quantised operands and scales."""

    NONE = 0
    INT8x32 = 1
    F16x16 = 2
    F8_128x4 = 3

class norm_forward_phase(Enum):
    """Whether a normalisation returns statistics."""

    NOT_SET = 0
    INFERENCE = 1
    TRAINING = 2

class diagonal_alignment(Enum):
    """Corner that the attention band is anchored to."""

    TOP_LEFT = 0
    BOTTOM_RIGHT = 1

class attention_implementation(Enum):
    """Which form of attention to plan."""

    AUTO = 0
    COMPOSITE = 1
    UNIFIED = 2

class moe_grouped_matmul_mode(Enum):
    """How rows are routed around a grouped matmul."""

    NONE = 1
    GATHER = 2
    SCATTER = 3
    COMBINE = 4

class reshape_mode(Enum):
    """Whether a reshape must be a view."""

    VIEW_ONLY = 1
    LOGICAL = 2

class scalar_type(Enum):
    """Whether a scalar is patched at execution or baked into the plan."""

    RUNTIME_PARAM = 0
    COMPILE_TIME_CONST = 1

class cuda_graph_retention(Enum):
    """Whether native CUDA graph objects are kept with a plan."""

    PER_GRAPH = 0
    NONE = 1

class gnn_agg_op(Enum):
    """Aggregation over neighbours."""

    SUM = 0
    MEAN = 1
    MAX = 2
    MIN = 3

class gnn_activation_op(Enum):
    """Activation of a graph-network layer."""

    LINEAR = 0
    RELU = 1
    SIGMOID = 2
    TANH = 3
    ELU = 4
    SCALAR = 5
    LEAKY_RELU = 6

class convolution_mode(Enum):
    """Whether a convolution flips its filter."""

    CONVOLUTION = 1
    CROSS_CORRELATION = 2

class NodeType(Enum):
    """Kinds of graph nodes."""

    COMPOSITE = 1
    CONV_FPROP = 2
    CONV_DGRAD = 3
    CONV_WGRAD = 4
    GENSTATS = 5
    RESHAPE = 6
    SLICE = 7
    CONCATENATE = 8
    TRANSPOSE = 9
    ROPE = 10
    ROPE_BWD = 11
    MOE_GROUPED_MATMUL_BWD = 12
    MATMUL = 13
    MATMUL_FP8 = 14
    POINTWISE = 15
    REDUCTION = 16
    RMSNORM = 17
    RMSNORM_BWD = 18
    LAYERNORM = 19
    LAYERNORM_BWD = 20
    ADALAYERNORM = 21
    ADALAYERNORM_BWD = 22
    INSTANCENORM = 23
    INSTANCENORM_BWD = 24
    BATCHNORM = 25
    BATCHNORM_INFERENCE = 26
    BATCHNORM_BWD = 27
    SDPA = 28
    SDPA_BWD = 29
    SDPA_FP8 = 30
    SDPA_FP8_BWD = 31
    SDPA_MXFP8 = 32
    SDPA_MXFP8_BWD = 33
    GDN = 34
    GDN_BWD = 35
    KDA = 36
    KDA_BWD = 37
    GDN2 = 38
    GDN2_BWD = 39
    MOE_GROUPED_MATMUL = 40
    BLOCK_SCALE_QUANTIZE = 41
    BLOCK_SCALE_DEQUANTIZE = 42
    GDP = 43
    GDP_BWD = 44
    GDN_SUMMARY = 45
    KDA_SUMMARY = 46
    GDN2_SUMMARY = 47
    GDP_SUMMARY = 48
    GDN_SUMMARY_BWD = 49
    KDA_SUMMARY_BWD = 50
    GDN2_SUMMARY_BWD = 51
    GDP_SUMMARY_BWD = 52
    MAMBA2 = 53
    MAMBA2_BWD = 54
    MAMBA2_SUMMARY = 55
    MAMBA2_SUMMARY_BWD = 56
