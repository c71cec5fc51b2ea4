/* attention.c: softmax of scaled and masked scores q k^T over keys, times v; the scores are never in memory as a whole.
 *
 * A task is a block of queries of one head. It walks over the keys in blocks, from the first one that a query of its
 * own sees to the last: scores with keys as rows and queries along vectors, their largest so far and the sum of
 * exponentials for each query, and what was added up so far is scaled down when a maximum moves. Scores are in base 2.
 * Holes:
 *   struct args                                 the block
 *   DEPTH, DEPTH_V                              extents of a head of q and k, and of v
 *   batches, heads, queries, keys(p)            extents of the scores
 *   lengths_of(p, b, queries, keys)             how many of them batch b has
 *   scale_of(p)                                 factor of q k^T
 *   before(p, queries, keys), after(...)        query r sees keys c with r - before < c <= r + after, FAR for all
 *   read_q, read_k, read_v(p, b, h, first, count, buffer, step)
 *                                               rows from `first` on for query head h as floats, a step apart: in the
 *                                               buffer, or where they are; those of v in whole vectors
 *   IS_NARROW                                   whether there are few queries: blocks of one panel
 *   HAS_BIAS, add_bias(p, b, h, r, c, scores)   adds to the scores of key c with a block of queries, in base 2
 *   HAS_SINK, sink_of(p, h)                     score of one more key that has no value
 *   store_o(p, b, h, r, row), store_rows(p, b, h, r, max, sum)
 *                                               result of a query, and of its softmax: natural score and sum
 */
#ifndef KERNEL /* alone: causal attention of floats, [heads][rows][DEPTH] each, with logarithms of sums */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "../../../runtime/team/task.h"
#define ACC float
#define MADD_F32(x, y, sum) fmaf(x, y, sum)
#include "tiles.h"
#include "vectors.h"
#include "attention.h"
#define KERNEL attention
#ifndef DEPTH
#define DEPTH 64
#endif
#define DEPTH_V DEPTH
#define HAS_BIAS 0
#ifndef IS_NARROW
#define IS_NARROW 0
#endif
#define HAS_SINK 0

struct args {
  const float *x0, *x1, *x2;
  float *y0, *y1;
  int64_t heads, rows;
  double scale;
} __attribute__((packed));

INLINE int64_t batches(const struct args *p) { return (void)p, 1; }
INLINE int64_t heads(const struct args *p) { return p->heads; }
INLINE int64_t queries(const struct args *p) { return p->rows; }
INLINE int64_t keys(const struct args *p) { return p->rows; }
INLINE float scale_of(const struct args *p) { return (float)p->scale; }
INLINE float sink_of(const struct args *p, int64_t h) { return (void)p, (float)h; }
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

INLINE void add_bias(const struct args *p, int64_t b, int64_t h, int64_t r, int64_t c, float *scores) {
  (void)p, (void)b, (void)h, (void)r, (void)c, (void)scores;
}

INLINE void store_o(const struct args *p, int64_t b, int64_t h, int64_t r, const float *row) {
  (void)b;
  memcpy(p->y0 + (h * p->rows + r) * DEPTH, row, DEPTH * sizeof(float));
}

INLINE void store_rows(const struct args *p, int64_t b, int64_t h, int64_t r, float max, float sum) {
  (void)b;
  p->y1[h * p->rows + r] = max + logf(sum);
}
#endif /* alone */

#define ROWS (IS_NARROW ? PANEL : TASK_ROWS) /* queries of a block */

#define OUT_DEPTH PADDED(DEPTH_V)

/* What a task works on. */
struct memory {
  float *panels, *rows, *scores, *out, *values, *max, *sum, *scale;
};

INLINE struct memory memory_of(float *scratch) {
  struct memory m = {.panels = scratch};
  m.rows = m.panels + ROWS * DEPTH;
  m.values = m.rows + (COLUMNS > ROWS ? COLUMNS : ROWS) * STEP(DEPTH);
  m.scores = m.values + COLUMNS * STEP(DEPTH_V);
  m.out = m.scores + COLUMNS * ROWS;
  m.max = m.out + ROWS * OUT_DEPTH;
  m.sum = m.max + ROWS;
  m.scale = m.sum + ROWS;
  return m;
}

/* Exponentials in the place of scores, maxima and sums; whether what was added up so far must be scaled. */
static NOINLINE int soften(int64_t num_keys, const struct memory *m) {
  lanes_of_ints moved = {0};
  for (int64_t j = 0; j < ROWS; j += 2 * LANES) {
    vec max[2], sum[2], origin[2];
    UNROLL for (int e = 0; e < 2; ++e) max[e] = load(m->max + j + e * LANES);
    for (int64_t i = 0; i < num_keys; ++i)
      UNROLL for (int e = 0; e < 2; ++e) max[e] = larger(max[e], load(m->scores + i * ROWS + j + e * LANES));
    UNROLL for (int e = 0; e < 2; ++e) {
      const vec old = load(m->max + j + e * LANES);
      moved |= max[e] != old;
      origin[e] = (vec)((lanes_of_ints)max[e] & (max[e] != -INFINITY)); /* 0 where there is no score yet */
      store(m->scale + j + e * LANES, exp2_down(old - origin[e]));
      store(m->max + j + e * LANES, max[e]);
      sum[e] = (vec){0};
    }
    for (int64_t i = 0; i < num_keys; ++i) UNROLL for (int e = 0; e < 2; ++e) {
      float *at = m->scores + i * ROWS + j + e * LANES;
      const vec x = exp2_down(load(at) - origin[e]);
      store(at, x);
      sum[e] += x;
    }
    UNROLL for (int e = 0; e < 2; ++e) {
      float *at = m->sum + j + e * LANES;
      store(at, multiply_add(load(at), load(m->scale + j + e * LANES), sum[e]));
    }
  }
  int any = 0;
  for (int i = 0; i < LANES; ++i) any |= moved[i];
  return any;
}

INLINE void attend(const struct args *p, int64_t b, int64_t h, int64_t r0, int64_t num_rows, int64_t num_queries,
                   int64_t num_keys, const struct memory *m) {
  int64_t step;
  const float *q = read_q(p, b, h, r0, num_rows, m->rows, &step);
  pack_queries(q, step, num_rows, ROWS, DEPTH, scale_of(p) * 1.44269504f, m->panels);
  const float first_max = HAS_SINK ? sink_of(p, h) * 1.44269504f : -INFINITY;
  for (int64_t j = 0; j < ROWS; ++j) m->max[j] = first_max, m->sum[j] = HAS_SINK ? first_max != -INFINITY : 0;
  memset(m->out, 0, sizeof(float) * ROWS * OUT_DEPTH);
  const int64_t reach = after(p, num_queries, num_keys), back = before(p, num_queries, num_keys);
  const int64_t past = max_of(0, min_of(num_keys, r0 + num_rows + reach));
  for (int64_t c0 = max_of(0, r0 - back + 1), count; c0 < past; c0 += count) {
    count = min_of(COLUMNS, past - c0);
    const int64_t first = c0 - reach - r0, beyond = c0 + back - r0; /* queries that see key c0 */
    const float *k = read_k(p, b, h, c0, count, m->rows, &step);
    multiply_keys(count, DEPTH, k, step, m->panels, first, ROWS, m->scores);
    if (HAS_BIAS) for (int64_t i = 0; i < count; ++i) add_bias(p, b, h, r0, c0 + i, m->scores + i * ROWS);
    if (first + count > 1 || beyond < ROWS)
      for (int64_t i = 0; i < count; ++i) hide(m->scores + i * ROWS, first + i, beyond + i, ROWS);
    if (soften(count, m))
      for (int64_t j = 0; j < ROWS; ++j)
        for (int64_t d = 0; d < OUT_DEPTH; d += LANES) {
          float *at = m->out + j * OUT_DEPTH + d;
          store(at, load(at) * m->scale[j]);
        }
    const float *v = read_v(p, b, h, c0, count, m->values, &step);
    add_to_queries(num_rows, count, OUT_DEPTH, m->scores, ROWS, v, step, first, m->out);
  }
}

INLINE void run_block(const struct args *p, int64_t b, int64_t h, int64_t r0, const struct memory *m) {
  const int64_t past = min_of(queries(p), r0 + ROWS);
  int64_t num_queries, num_keys;
  lengths_of(p, b, &num_queries, &num_keys);
  const int64_t num_rows = max_of(0, min_of(past, num_queries) - r0);
  if (num_rows) attend(p, b, h, r0, num_rows, num_queries, num_keys, m);
  for (int64_t r = r0; r < past; ++r) {
    const int64_t j = r - r0, is_empty = j >= num_rows || m->sum[j] == 0;
    float *row = m->out + j * OUT_DEPTH;
    const float factor = is_empty ? 0 : 1.0f / m->sum[j];
    if (is_empty) memset(row, 0, sizeof(float) * OUT_DEPTH);
    for (int64_t d = 0; d < OUT_DEPTH; ++d) row[d] *= factor;
    store_o(p, b, h, r, row);
    const float max = m->sum[j] != m->sum[j] ? m->sum[j] : m->max[j] * 0.693147181f;
    store_rows(p, b, h, r, is_empty ? -INFINITY : max, is_empty ? 0 : m->sum[j]);
  }
}

static NOINLINE void run_task(const struct args *block, int64_t t, float *scratch) {
  const struct args p = *block;
  const struct memory m = memory_of(scratch);
  const int64_t apart = batches(&p) * heads(&p), tasks = (queries(&p) + TASK_ROWS - 1) / TASK_ROWS;
  const int64_t r = (tasks - 1 - t / apart) * TASK_ROWS, past = min_of(queries(&p), r + TASK_ROWS); /* longest first */
  for (int64_t r0 = r; r0 < past; r0 += ROWS) run_block(&p, t % apart / heads(&p), t % heads(&p), r0, &m);
}

int KERNEL(const void *block, const struct fp_task *task);
int KERNEL(const void *block, const struct fp_task *task) {
  for (int64_t t; (t = fp_next(task)) >= 0;) run_task(block, t, task->scratch);
  return 0;
}
