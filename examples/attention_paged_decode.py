"""Decoding with keys and values in pages: a table names the pages of each sequence, in any order."""

import torch
import torch.nn.functional as F

import fuseplan as cudnn

BATCH, HEADS, KV_HEADS, WIDTH, PAGE, PAGES = 3, 4, 2, 32, 16, 20
MOST = 96  # keys of the longest sequence
torch.manual_seed(0)

lengths = torch.tensor([96, 1, 40], dtype=torch.int32).reshape(BATCH, 1, 1, 1)
table = torch.randperm(PAGES)[: BATCH * (MOST // PAGE)].to(torch.int32).reshape(BATCH, 1, MOST // PAGE, 1)
query = torch.randn(BATCH, HEADS, 1, WIDTH)
keys, values = (torch.randn(PAGES, KV_HEADS, PAGE, WIDTH) for _ in range(2))
one = torch.ones_like(lengths)

g = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, compute_data_type=cudnn.data_type.FLOAT)
Q, K, V, T, N, R = (g.tensor_like(t) for t in (query, keys, values, table, lengths, one))
y, _ = g.sdpa(
    Q, K, V, generate_stats=False, attn_scale=WIDTH**-0.5, use_padding_mask=True, seq_len_q=R, seq_len_kv=N,
    paged_attention_k_table=T, paged_attention_v_table=T, paged_attention_max_seq_len_kv=MOST,
)  # fmt: skip
y.set_output(True)
g.build([cudnn.heur_mode.A])
out = torch.empty_like(query)
workspace = torch.empty(g.get_workspace_size(), dtype=torch.uint8)
g.execute({Q: query, K: keys, V: values, T: table, N: lengths, R: one, y: out}, workspace)

worst = 0.0
for b in range(BATCH):
    pages = table[b].flatten().long()
    k, v = (x[pages].transpose(0, 1).reshape(1, KV_HEADS, MOST, WIDTH) for x in (keys, values))
    seen = (k[:, :, : int(lengths[b])], v[:, :, : int(lengths[b])])
    expected = F.scaled_dot_product_attention(query[b : b + 1], *seen, enable_gqa=True)
    worst = max(worst, (out[b : b + 1] - expected).abs().max().item())
print(f"sequences of {lengths.flatten().tolist()} keys in pages of {PAGE} ({g.plans[0].name}), error {worst:.1e}")
