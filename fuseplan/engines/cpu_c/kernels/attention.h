/* Tiles of attention: queries lie along vectors, so that a softmax over keys needs nothing from other lanes. */
#ifndef FUSEPLAN_ATTENTION_H
#define FUSEPLAN_ATTENTION_H
#include <math.h>
#include <stdint.h>
#include <string.h>

#define ACC float
#define TASK_ROWS 64 /* queries of a task */
#define COLUMNS 64   /* keys of a block */
#define TILE_ROWS 6
#define FAR (INT64_C(1) << 40)
#define PADDED(depth) (((depth) + LANES - 1) / LANES * LANES)
#define STEP(depth) (PADDED(depth) + 16) /* of rows in memory of a thread: neighbours lie on other sets of a cache */

typedef float vec __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t lanes_of_ints __attribute__((vector_size(VECTOR_BYTES)));
typedef float vec_anywhere __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));

INLINE vec load(const float *at) { return *(const vec_anywhere *)at; }
INLINE void store(float *at, vec x) { *(vec_anywhere *)at = x; }
INLINE vec spread(float x) { return x - (vec){0}; } /* minus 0 keeps -0 */
INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

INLINE vec multiply_add(vec x, vec y, vec sum) {
  vec made;
#pragma omp simd
  for (int i = 0; i < LANES; ++i) made[i] = MADD_F32(x[i], y[i], sum[i]);
  return made;
}

/* the larger one; a NaN on the right comes through */
INLINE vec larger(vec a, vec b) {
  vec made;
#pragma omp simd
  for (int i = 0; i < LANES; ++i) made[i] = a[i] > b[i] ? a[i] : b[i];
  return made;
}

INLINE void transpose(vec *r) { TRANSPOSE(r) }

/* 2^x of an x that is not positive, or NaN: 0 from -127 on */
INLINE vec exp2_down(vec x) {
  x = larger(spread(-127.0f), x);
  const vec shifted = x + 0x1.8p23f, rest = x - (shifted - 0x1.8p23f);
  vec p = multiply_add(spread(1.546330168e-04f), rest, spread(1.339141862e-03f));
  p = multiply_add(p, rest, spread(9.618061595e-03f));
  p = multiply_add(p, rest, spread(5.550358817e-02f));
  p = multiply_add(p, rest, spread(2.402265072e-01f));
  p = multiply_add(p, rest, spread(6.931471825e-01f));
  const vec power = (vec)(((lanes_of_ints)shifted + 127) << 23);
  return multiply_add(p * rest, power, power);
}

/* Sums over `terms` of a's factors (a step apart from row to row and from term to term) with vectors of b's rows. */
INLINE void multiply(const int num_rows, const int num_vectors, int64_t terms, const float *a, int64_t row_step,
                     int64_t term_step, const float *b, int64_t b_step, float *sums, int64_t sums_step, const int adds) {
  vec c[TILE_ROWS][PANEL_VECTORS];
  UNROLL for (int i = 0; i < num_rows; ++i) UNROLL for (int v = 0; v < num_vectors; ++v)
    c[i][v] = adds ? load(sums + i * sums_step + v * LANES) : (vec){0};
#pragma GCC unroll 2
  for (int64_t k = 0; k < terms; ++k, a += term_step, b += b_step) {
    vec y[PANEL_VECTORS];
    UNROLL for (int v = 0; v < num_vectors; ++v) y[v] = load(b + v * LANES);
    UNROLL for (int i = 0; i < num_rows; ++i) {
      const vec x = spread(a[i * row_step]);
      UNROLL for (int v = 0; v < num_vectors; ++v) c[i][v] = multiply_add(x, y[v], c[i][v]);
    }
  }
  UNROLL for (int i = 0; i < num_rows; ++i) UNROLL for (int v = 0; v < num_vectors; ++v)
    store(sums + i * sums_step + v * LANES, c[i][v]);
}

/* DO(first, count) for rows 0 to n in tiles */
#define EACH_TILE(n, DO)                                                                  \
  do {                                                                                    \
    int64_t i = 0;                                                                        \
    for (; i + 6 <= (n) && (n) - i != 8; i += 6) DO(i, 6);                                \
    for (; i + 4 <= (n); i += 4) DO(i, 4);                                                \
    for (; i < (n); ++i) DO(i, 1);                                                        \
  } while (0)

/* For each key of a block a row of products with all queries; queries in front of `first` + key are left out. */
static NOINLINE void multiply_keys(int64_t num_keys, int64_t depth, const float *keys, int64_t step,
                                   const float *panels, int64_t first, int64_t rows, float *out) {
#define KEY_TILE(i, R) \
  multiply(R, PANEL_VECTORS, depth, keys + i * step, step, 1, panels + c * depth, PANEL, out + i * rows + c, rows, 0)
  for (int64_t c = 0; c < rows; c += PANEL) {
    const int64_t seen = min_of(num_keys, c + PANEL - first); /* by a query of this panel */
    EACH_TILE(seen, KEY_TILE);
  }
}

/* For each query of a block, sums over the keys that it sees: key `first` + query is the first that it does not. */
static NOINLINE void add_to_queries(int64_t num_rows, int64_t num_keys, int64_t width, const float *factors, int64_t rows,
                                    const float *b, int64_t b_step, int64_t first, float *out) {
#define QUERY_TILE(i, R)                                                                                      \
  multiply(R, vectors, max_of(0, min_of(num_keys, i + R - first)), factors + i, 1, rows, b + d, b_step,       \
           out + i * width + d, width, 1)
  int64_t d = 0;
  for (; d + PANEL <= width; d += PANEL) {
    const int vectors = PANEL_VECTORS;
    EACH_TILE(num_rows, QUERY_TILE);
  }
  for (; d < width; d += LANES) {
    const int vectors = 1;
    EACH_TILE(num_rows, QUERY_TILE);
  }
}

/* Packed rows in a thread's memory, with zeros behind them up to whole vectors. */
INLINE const float *copy_rows(const float *from, int64_t count, int64_t depth, float *restrict to, int64_t *step) {
  *step = STEP(depth);
  for (int64_t r = 0; r < count; ++r, from += depth, to += STEP(depth)) {
    for (int64_t d = 0; d < depth; ++d) to[d] = from[d];
    for (int64_t d = depth; d < PADDED(depth); ++d) to[d] = 0;
  }
  return to - count * STEP(depth);
}

/* `num_rows` rows times a number as panels [depth][PANEL] of queries up to `past`; those behind the rows are 0. */
INLINE void pack_queries(const float *rows, int64_t step, int64_t num_rows, int64_t past, int64_t depth, float factor,
                         float *panels) {
  for (int64_t r = 0; r < past; r += LANES) {
    float *out = panels + r / PANEL * PANEL * depth + r % PANEL;
    int64_t d = 0;
    if (r + LANES <= num_rows)
      for (; d + LANES <= depth; d += LANES) {
        vec x[LANES];
        UNROLL for (int i = 0; i < LANES; ++i) x[i] = load(rows + (r + i) * step + d) * factor;
        transpose(x);
        UNROLL for (int i = 0; i < LANES; ++i) store(out + (d + i) * PANEL, x[i]);
      }
    for (; d < depth; ++d)
      for (int64_t i = 0; i < LANES; ++i) out[d * PANEL + i] = r + i < num_rows ? rows[(r + i) * step + d] * factor : 0;
  }
}

/* What the scores of a key with the block's queries are that do not see it: those in front of one and from another on. */
INLINE void hide(float *scores, int64_t first, int64_t past, int64_t rows) {
  for (int64_t j = 0; j < min_of(first, rows); ++j) scores[j] = -INFINITY;
  for (int64_t j = max_of(0, past); j < rows; ++j) scores[j] = -INFINITY;
}
#endif
