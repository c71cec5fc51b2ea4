/* What a task covers: rows and columns of the domain.
 *
 * A row is one position on the axes that are walked outside, a column one on the axis that is walked inside. Columns
 * are given out in whole blocks of `column_block`. */
#ifndef FUSEPLAN_TILES_H
#define FUSEPLAN_TILES_H
#include <stdint.h>

/* gcc gives loops with `omp simd reduction` no vectors if their function is inlined late */
#define INLINE static inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))

/* floats are added up as floats over at most so many elements of a row, or so many times into an element of a buffer */
#define SUM_BLOCK 512
#define FLUSH_ROWS 32

/* A column of narrow elements that a loop fills beside what it computes: gcc then takes so many positions at a time that
 * four vectors of floats stand side by side, whose long chains of operations do not wait for each other. */
#define IS_READ(column) __asm__ volatile("" : : "r"(column) : "memory")

/* Memory is asked for in advance, but not by CPUs with vectors of 512 bits, where norms of floats took a tenth longer. */
#ifdef __AVX512F__
#define ASK_FOR(place) ((void)(place))
#else
#define ASK_FOR(place) __builtin_prefetch(place, 0, 2)
#endif

/* Sums in a thread's memory, where in each block the second elements of pairs follow all first ones, to their places. */
#define UNPAIR(to, from, count)                                                         \
  do {                                                                                  \
    int64_t b = 0;                                                                      \
    for (; b + SUM_BLOCK <= (count); b += SUM_BLOCK)                                    \
      for (int64_t j = 0; j < SUM_BLOCK / 2; ++j) {                                     \
        (to)[b + 2 * j] += (double)(from)[b + j], (from)[b + j] = 0.0f;                 \
        (to)[b + 2 * j + 1] += (double)(from)[b + j + SUM_BLOCK / 2];                   \
        (from)[b + j + SUM_BLOCK / 2] = 0.0f;                                           \
      }                                                                                 \
    for (; b < (count); ++b) (to)[b] += (double)(from)[b], (from)[b] = 0.0f;            \
  } while (0)

struct tiling {
  int64_t num_rows, row_tasks, num_columns, column_tasks, column_block;
};

struct tile {
  int64_t row, past_row, column, past_column;
};

INLINE struct tile tile_of(struct tiling s, int64_t task) {
  if (s.row_tasks == 1 && s.column_tasks == 1) { /* a small launch, where divisions would take longer than the work */
    const struct tile whole = {0, s.num_rows, 0, s.num_columns};
    return whole;
  }
  const int64_t r = task / s.column_tasks, c = task % s.column_tasks;
  const int64_t blocks = (s.num_columns + s.column_block - 1) / s.column_block;
  struct tile tile = {
      .row = r * s.num_rows / s.row_tasks,
      .past_row = (r + 1) * s.num_rows / s.row_tasks,
      .column = c * blocks / s.column_tasks * s.column_block,
      .past_column = (c + 1) * blocks / s.column_tasks * s.column_block,
  };
  if (tile.past_column > s.num_columns) tile.past_column = s.num_columns;
  return tile;
}
#endif
