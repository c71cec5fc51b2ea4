/* attention_backward.c: gradients of attention by q, k and v; neither scores nor probabilities are in memory as a whole.
 *
 * A task is one batch with the query heads that share a head of k and one of v. Blocks of queries walk over the keys that
 * they see: scores and, from them, probabilities P; dP = v do^T; dS = P (dP - delta), with keys as rows and queries
 * along vectors. P^T do and dS^T q are added to sums for all keys of the heads, dS k to sums of the block.
 * Holes are those of attention.c, and:
 *   heads_k, heads_v(p)                         query heads that share a head of k, of v; the task has the more of them
 *   read_o, read_do                             as read_q
 *   stats_of(p, b, h, r)                        natural logarithm of a query's sum
 *   store_dq, store_dk, store_dv(p, b, h, r, row)
 */
#ifndef KERNEL /* alone: causal attention of floats, [heads][rows][DEPTH] each */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "../../../runtime/team/task.h"
#define ACC float
#define MADD_F32(x, y, sum) fmaf(x, y, sum)
#include "tiles.h"
#include "vectors.h"
#include "attention.h"
#define KERNEL attention_backward
#ifndef DEPTH
#define DEPTH 64
#endif
#define DEPTH_V DEPTH
#define HAS_BIAS 0

struct args {
  const float *x0, *x1, *x2, *x3, *x4, *x5;
  float *y0, *y1, *y2;
  int64_t heads, rows;
  double scale;
} __attribute__((packed));

INLINE int64_t batches(const struct args *p) { return (void)p, 1; }
INLINE int64_t heads(const struct args *p) { return p->heads; }
INLINE int64_t heads_k(const struct args *p) { return (void)p, 1; }
INLINE int64_t heads_v(const struct args *p) { return (void)p, 1; }
INLINE int64_t queries(const struct args *p) { return p->rows; }
INLINE int64_t keys(const struct args *p) { return p->rows; }
INLINE float scale_of(const struct args *p) { return (float)p->scale; }
INLINE void lengths_of(const struct args *p, int64_t b, int64_t *queries, int64_t *keys) {
  (void)b;
  *queries = *keys = p->rows;
}

INLINE int64_t before(const struct args *p, int64_t queries, int64_t keys) { return (void)p, queries + keys; }
INLINE int64_t after(const struct args *p, int64_t queries, int64_t keys) { return (void)p, (void)queries, (void)keys, 0; }

#define READ(name, x)                                                                                     \
  INLINE const float *name(const struct args *p, int64_t b, int64_t h, int64_t first, int64_t count,      \
                           float *restrict buffer, int64_t *step) {                                       \
    (void)b;                                                                                              \
    return copy_rows(p->x + (h * p->rows + first) * DEPTH, count, DEPTH, buffer, step);                   \
  }
READ(read_q, x0)
READ(read_k, x1)
READ(read_v, x2)
READ(read_o, x3)
READ(read_do, x4)

INLINE float stats_of(const struct args *p, int64_t b, int64_t h, int64_t r) { return (void)b, p->x5[h * p->rows + r]; }

INLINE void add_bias(const struct args *p, int64_t b, int64_t h, int64_t r, int64_t c, float *scores) {
  (void)p, (void)b, (void)h, (void)r, (void)c, (void)scores;
}

#define STORE(name, y)                                                                                    \
  INLINE void name(const struct args *p, int64_t b, int64_t h, int64_t r, const float *row) {             \
    (void)b;                                                                                              \
    memcpy(p->y + (h * p->rows + r) * DEPTH, row, DEPTH * sizeof(float));                                 \
  }
STORE(store_dq, y0)
STORE(store_dk, y1)
STORE(store_dv, y2)
#endif /* alone */

#define ROWS TASK_ROWS /* queries of a block */

#define WIDTH PADDED(DEPTH)
#define WIDTH_V PADDED(DEPTH_V)

/* What a task works on; the sums for keys come last, as there are as many as keys. */
struct memory {
  float *q_panels, *do_panels, *q, *grad, *rows, *rows_v, *p, *ds, *dq, *stats, *delta, *dk, *dv;
};

INLINE struct memory memory_of(const struct args *p, float *scratch) {
  struct memory m = {.q_panels = scratch};
  m.do_panels = m.q_panels + ROWS * DEPTH;
  m.q = m.do_panels + ROWS * DEPTH_V;
  m.grad = m.q + ROWS * STEP(DEPTH);
  m.rows = m.grad + ROWS * STEP(DEPTH_V);
  m.rows_v = m.rows + COLUMNS * STEP(DEPTH);
  m.p = m.rows_v + COLUMNS * STEP(DEPTH_V);
  m.ds = m.p + COLUMNS * ROWS;
  m.dq = m.ds + COLUMNS * ROWS;
  m.stats = m.dq + ROWS * WIDTH;
  m.delta = m.stats + ROWS;
  m.dk = m.delta + ROWS;
  m.dv = m.dk + keys(p) * WIDTH;
  return m;
}

/* Probabilities in the place of scores, and in that of dP the gradients of scores, for a key and its queries. */
INLINE void differentiate(float *p, float *ds, const struct memory *m) {
  UNROLL for (int j = 0; j < ROWS; j += LANES) {
    const vec x = exp2_down(load(p + j) - load(m->stats + j));
    store(p + j, x);
    store(ds + j, x * (load(ds + j) - load(m->delta + j)));
  }
}

/* For each key of a block, sums over the queries that see it, from query `first` + key on. */
static NOINLINE void add_to_keys(int64_t num_keys, int64_t num_rows, int64_t width, const float *factors, const float *b,
                                 int64_t b_step, int64_t first, float *out) {
#define SUM_TILE(i, R)                                                                                                 \
  multiply(R, vectors, max_of(0, num_rows - max_of(0, first + i)), factors + i * ROWS + max_of(0, first + i), ROWS, 1, \
           b + max_of(0, first + i) * b_step + d, b_step, out + i * width + d, width, 1)
  const int64_t seen = min_of(num_keys, num_rows - first);
  int64_t d = 0;
  for (; d + PANEL <= width; d += PANEL) {
    const int vectors = PANEL_VECTORS;
    EACH_TILE(seen, SUM_TILE);
  }
  for (; d < width; d += LANES) {
    const int vectors = 1;
    EACH_TILE(seen, SUM_TILE);
  }
}

/* What a block of queries adds to the sums of keys, and its own gradient. */
INLINE void differentiate_block(const struct args *p, int64_t b, int64_t h, int64_t r0, int64_t num_rows,
                                int64_t num_queries, int64_t num_keys, const struct memory *m) {
  int64_t q_step, do_step, step, step_v;
  const float *q = read_q(p, b, h, r0, num_rows, m->q, &q_step);
  const float *grad = read_do(p, b, h, r0, num_rows, m->grad, &do_step);
  const float *o = read_o(p, b, h, r0, num_rows, m->rows_v, &step);
  pack_queries(q, q_step, num_rows, ROWS, DEPTH, scale_of(p) * 1.44269504f, m->q_panels);
  pack_queries(grad, do_step, num_rows, ROWS, DEPTH_V, 1, m->do_panels);
  for (int64_t j = 0; j < ROWS; ++j) {
    vec sum = {0};
    for (int64_t d = 0; j < num_rows && d < WIDTH_V; d += LANES)
      sum = multiply_add(load(o + j * step + d), load(grad + j * do_step + d), sum);
    float delta = 0;
    for (int i = 0; i < LANES; ++i) delta += sum[i];
    const float stats = j < num_rows ? stats_of(p, b, h, r0 + j) : -INFINITY;
    m->stats[j] = stats == -INFINITY ? INFINITY : stats * 1.44269504f; /* a query without a score has no probability */
    m->delta[j] = delta;
  }
  memset(m->dq, 0, sizeof(float) * ROWS * WIDTH);
  const int64_t reach = after(p, num_queries, num_keys), back = before(p, num_queries, num_keys);
  const int64_t past = max_of(0, min_of(num_keys, r0 + num_rows + reach));
  for (int64_t c0 = max_of(0, r0 - back + 1), count; c0 < past; c0 += count) {
    count = min_of(COLUMNS, past - c0);
    const int64_t first = c0 - reach - r0, beyond = c0 + back - r0;
    const float *k = read_k(p, b, h, c0, count, m->rows, &step);
    const float *v = read_v(p, b, h, c0, count, m->rows_v, &step_v);
    multiply_keys(count, DEPTH, k, step, m->q_panels, first, ROWS, m->p);
    multiply_keys(count, DEPTH_V, v, step_v, m->do_panels, first, ROWS, m->ds);
    for (int64_t i = 0; i < count; ++i) {
      float *scores = m->p + i * ROWS;
      if (HAS_BIAS) add_bias(p, b, h, r0, c0 + i, scores);
      if (first + i > 0 || beyond + i < ROWS) {
        hide(scores, first + i, beyond + i, ROWS);
        for (int64_t j = 0; j < min_of(ROWS, first + i); ++j) m->ds[i * ROWS + j] = 0; /* may not be computed */
      }
      differentiate(scores, m->ds + i * ROWS, m);
    }
    add_to_keys(count, num_rows, WIDTH_V, m->p, grad, do_step, first, m->dv + c0 * WIDTH_V);
    add_to_keys(count, num_rows, WIDTH, m->ds, q, q_step, first, m->dk + c0 * WIDTH);
    add_to_queries(num_rows, count, WIDTH, m->ds, ROWS, k, step, first, m->dq);
  }
}

INLINE void scale_rows(float *rows, int64_t count, float factor) {
  for (int64_t i = 0; i < count; ++i) rows[i] *= factor;
}

static NOINLINE void run_task(const struct args *block, int64_t t, float *scratch) {
  const struct args p = *block;
  const struct memory m = memory_of(&p, scratch);
  const int64_t shared = max_of(heads_k(&p), heads_v(&p)), groups = heads(&p) / shared, b = t / groups;
  int64_t num_queries, num_keys;
  lengths_of(&p, b, &num_queries, &num_keys);
  for (int64_t h = t % groups * shared, past = h + shared; h < past; ++h) {
    if (h % heads_k(&p) == 0) memset(m.dk, 0, sizeof(float) * (size_t)(keys(&p) * WIDTH));
    if (h % heads_v(&p) == 0) memset(m.dv, 0, sizeof(float) * (size_t)(keys(&p) * WIDTH_V));
    for (int64_t r0 = 0; r0 < queries(&p); r0 += ROWS) {
      const int64_t in_all = min_of(queries(&p) - r0, ROWS), num_rows = max_of(0, min_of(num_queries - r0, in_all));
      if (num_rows)
        differentiate_block(&p, b, h, r0, num_rows, num_queries, num_keys, &m);
      else
        memset(m.dq, 0, sizeof(float) * ROWS * WIDTH);
      scale_rows(m.dq, in_all * WIDTH, scale_of(&p));
      for (int64_t j = 0; j < in_all; ++j) store_dq(&p, b, h, r0 + j, m.dq + j * WIDTH);
    }
    if ((h + 1) % heads_k(&p) == 0) {
      scale_rows(m.dk, keys(&p) * WIDTH, scale_of(&p));
      for (int64_t c = 0; c < keys(&p); ++c) store_dk(&p, b, h, c, m.dk + c * WIDTH);
    }
    if ((h + 1) % heads_v(&p) == 0)
      for (int64_t c = 0; c < keys(&p); ++c) store_dv(&p, b, h, c, m.dv + c * WIDTH_V);
  }
}

int KERNEL(const void *block, const struct fp_task *task);
int KERNEL(const void *block, const struct fp_task *task) {
  for (int64_t t; (t = fp_next(task)) >= 0;) run_task(block, t, task->scratch);
  return 0;
}
