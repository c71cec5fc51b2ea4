"""Decoding with keys and values that grow: one plan for all steps, bound to one cache, told the length at each step."""

import torch
import torch.nn.functional as F

import fuseplan as cudnn

BATCH, HEADS, KV_HEADS, WIDTH, MOST = 2, 8, 2, 64, 96
torch.manual_seed(0)

g = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, compute_data_type=cudnn.data_type.FLOAT)
query = torch.randn(BATCH, HEADS, 1, WIDTH)
keys = torch.full((BATCH, KV_HEADS, MOST, WIDTH), float("nan"))  # what lies past a length does not matter
values = torch.full_like(keys, float("nan"))
rows, columns = (torch.ones(BATCH, 1, 1, 1, dtype=torch.int32) for _ in range(2))
Q, K, V, R, C = (g.tensor_like(t) for t in (query, keys, values, rows, columns))
y, _ = g.sdpa(Q, K, V, generate_stats=False, attn_scale=WIDTH**-0.5, use_padding_mask=True, seq_len_q=R, seq_len_kv=C)
y.set_output(True)
g.build([cudnn.heur_mode.A])

out = torch.empty_like(query)
workspace = torch.empty(g.get_workspace_size(), dtype=torch.uint8)
step = g.bind({Q: query, K: keys, V: values, R: rows, C: columns, y: out}, workspace)

worst = 0.0
for length in range(1, MOST + 1):
    keys[:, :, length - 1], values[:, :, length - 1] = torch.randn(2, BATCH, KV_HEADS, WIDTH)
    query.copy_(torch.randn_like(query))
    columns.fill_(length)
    step()
    seen = (keys[:, :, :length], values[:, :, :length])
    expected = F.scaled_dot_product_attention(query, *seen, enable_gqa=True)
    worst = max(worst, (out - expected).abs().max().item())
print(f"{MOST} steps, one plan ({g.plans[0].name}), error {worst:.1e}")
