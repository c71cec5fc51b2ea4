import numpy as np

import fuseplan as cudnn

rng = np.random.default_rng(0)
x = rng.standard_normal((4, 256, 512), dtype=np.float32)
w = rng.standard_normal((4, 512, 256), dtype=np.float32) / 512**0.5
b = rng.standard_normal((1, 1, 256), dtype=np.float32)
y, amax = np.empty((4, 256, 256), np.float32), np.empty((1, 1, 1), np.float32)

FLOAT = cudnn.data_type.FLOAT
g = cudnn.pygraph(name="gelu_mlp", io_data_type=FLOAT, handle=cudnn.create_handle(device="cpu"))
X, W, B = (g.tensor_like(t, name=n) for t, n in ((x, "x"), (w, "w"), (b, "b")))
Y = g.gelu(input=g.bias(input=g.matmul(A=X, B=W), bias=B)).set_output(True)
A = g.reduction(input=Y, mode=cudnn.reduction_mode.AMAX).set_output(True).set_dim([1, 1, 1])
g.build()

print(g.explain())
workspace = np.empty(g.get_workspace_size(), np.uint8)
g.execute({X: x, W: w, B: b, Y: y, A: amax}, workspace)

z = x @ w + b
want = z / 2 * (1 + np.tanh(0.7978845608 * (z + 0.044715 * z**3)))  # gelu, approximated
print("amax", amax.item(), "largest difference from tanh-gelu", np.abs(y - want).max())
