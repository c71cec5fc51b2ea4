/* run.c: one call of cublasLtMatmul from a parameter block; cublaslt/engine.py lays the block out. */
#include <stdint.h>

struct block {
  const void *a, *b;
  void *d, *workspace;
  int (*matmul)(void *, void *, const void *, const void *, void *, const void *, void *, const void *, const void *,
                void *, void *, void *, const void *, void *, uint64_t, void *);
  void *handle, *operation, *a_layout, *b_layout, *d_layout;
  uint64_t algorithm[8], workspace_bytes;
  float alpha, beta;
};

int cublaslt_run(const void *block, void *stream);
int cublaslt_run(const void *block, void *stream) {
  const struct block *p = block;
  return p->matmul(p->handle, p->operation, &p->alpha, p->a, p->a_layout, p->b, p->b_layout, &p->beta, p->d, p->d_layout,
                   p->d, p->d_layout, p->algorithm, p->workspace, p->workspace_bytes, stream);
}
