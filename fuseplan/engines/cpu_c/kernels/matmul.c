/* matmul.c: one or several products over one domain of M x N, and an epilogue on the elements of all of them.
 *
 * A task covers rows (positions on all axes but the last) and blocks of columns. Sums run in pieces of PARTIAL terms:
 * added up one by one, 4096 floats lose more than a library's sum does.
 * Holes:
 *   struct args, tiling_of(p)                  the block, and how the domain is given out
 *   struct position, position_of, advance      where a row is
 *   PRODUCTS, EACH_PRODUCT(DO)                 number of products; DO(0) DO(1) ... for each
 *   ACC, FACTOR                                types of a sum and of a factor
 *   MULTIPLY_ADD(x, y, sum)                    sum + x * y
 *   depth(p, q), is_dot(q)                     terms of product q; whether its B runs along k in memory
 *   load_a(p, at, q, k), load_b(p, at, q, k, j)   factors, behind what is computed in front of the product
 *   epilogue(p, at, first, width, acc)         elements first to first + width of a row: acc[q][j] are their sums
 *   HAS_REDUCTIONS, begin, finish              as in columns.c, for reductions over the elements
 */
#ifndef KERNEL /* alone: C = A B for packed float matrices */
#include <stdint.h>

#include "../../../runtime/team/task.h"
#include "tiles.h"
#define KERNEL matmul
#define PRODUCTS 1
#define EACH_PRODUCT(DO) DO(0)
#define ACC float
#define FACTOR float
#define MULTIPLY_ADD(x, y, sum) ((x) * (y) + (sum))
#define HAS_REDUCTIONS 0
#define BLOCK 64

struct args {
  const float *x0, *x1;
  float *y0;
  int64_t m, row_tasks, n, column_tasks, depth;
} __attribute__((packed));

struct position {
  int64_t i0;
};

INLINE struct tiling tiling_of(const struct args *p) {
  return (struct tiling){p->m, p->row_tasks, p->n, p->column_tasks, BLOCK};
}

INLINE struct position position_of(const struct args *p, int64_t row, int64_t task) {
  (void)p, (void)task;
  return (struct position){row};
}

INLINE void advance(const struct args *p, struct position *at) {
  (void)p;
  ++at->i0;
}

INLINE int64_t depth(const struct args *p, const int q) {
  (void)q;
  return p->depth;
}

INLINE int is_dot(const int q) {
  (void)q;
  return 0;
}

INLINE float load_a(const struct args *p, const struct position *at, const int q, int64_t k) {
  (void)q;
  return p->x0[at->i0 * p->depth + k];
}

INLINE float load_b(const struct args *p, const struct position *at, const int q, int64_t k, int64_t j) {
  (void)q, (void)at;
  return p->x1[k * p->n + j];
}

INLINE void epilogue(const struct args *p, const struct position *at, int64_t first, int64_t width,
                     ACC acc[][BLOCK]) {
  for (int64_t j = 0; j < width; ++j) p->y0[at->i0 * p->n + first + j] = acc[0][j];
}

INLINE void begin(const struct args *p, int64_t task) { (void)p, (void)task; }
INLINE void finish(const struct args *p, int64_t num_tasks) { (void)p, (void)num_tasks; }
#endif /* alone */

#define PARTIAL 256

/* B is read row by row: each row, times one element of A, is added to all sums of the block. */
INLINE void sum_rows_of_b(const struct args *p, const struct position *at, const int q, int64_t first,
                                 int64_t width, ACC *restrict acc) {
  for (int64_t k0 = 0; k0 < depth(p, q); k0 += PARTIAL) {
    const int64_t past_k = depth(p, q) - k0 < PARTIAL ? depth(p, q) : k0 + PARTIAL;
    ACC part[BLOCK] = {0};
    for (int64_t k = k0; k < past_k; ++k) {
      const FACTOR x = load_a(p, at, q, k);
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) part[j] = MULTIPLY_ADD(x, load_b(p, at, q, k, first + j), part[j]);
    }
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) acc[j] += part[j];
  }
}

/* B is read column by column: each sum is the dot product of a row and a column. */
INLINE void sum_columns_of_b(const struct args *p, const struct position *at, const int q, int64_t first,
                                    int64_t width, ACC *restrict acc) {
  for (int64_t j = 0; j < width; ++j) {
    ACC sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < depth(p, q); ++k) {
      const FACTOR x = load_a(p, at, q, k), y = load_b(p, at, q, k, first + j);
      sum = MULTIPLY_ADD(x, y, sum);
    }
    acc[j] = sum;
  }
}

INLINE void add_product(const struct args *p, const struct position *at, const int q, int64_t first, int64_t width,
                        ACC *restrict acc) {
  if (is_dot(q))
    sum_columns_of_b(p, at, q, first, width, acc);
  else
    sum_rows_of_b(p, at, q, first, width, acc);
}

INLINE void multiply_block(const struct args *p, const struct position *at, int64_t first, int64_t width) {
  ACC acc[PRODUCTS][BLOCK] = {{0}};
#define PRODUCT(q) add_product(p, at, q, first, width, acc[q]);
  EACH_PRODUCT(PRODUCT) /* no loop: gcc takes the vectors from loops that it copies */
  epilogue(p, at, first, width, acc);
}

/* The loop over tasks must not be inlined around this one: gcc would make two of it, one without vectors. */
static NOINLINE void run_task(const struct args *block, int64_t t) {
  const struct args p = *block;
  const struct tile tile = tile_of(tiling_of(&p), t);
  struct position at = position_of(&p, tile.row, t);
  if (HAS_REDUCTIONS) begin(&p, t);
  for (int64_t row = tile.row; row < tile.past_row; ++row) {
    for (int64_t j = tile.column; j < tile.past_column; j += BLOCK)
      multiply_block(&p, &at, j, tile.past_column - j < BLOCK ? tile.past_column - j : BLOCK);
    advance(&p, &at);
  }
}

int KERNEL(const void *block, const struct fp_task *task);
int KERNEL(const void *block, const struct fp_task *task) {
  const struct args p = *(const struct args *)block;
  for (int64_t t; (t = fp_next(task)) >= 0;) {
    run_task(block, t);
    if (HAS_REDUCTIONS && fp_is_last(task)) finish(&p, task->num_tasks);
  }
  return 0;
}
