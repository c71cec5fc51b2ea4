/* rows.c: rows of a domain, each computed by itself: pointwise chains, softmax, norms; and sums over rows beside them.
 *
 * Holes:
 *   struct args, tiling_of(p)                  the block, and how the domain is given out
 *   struct position, position_of, advance      where a row is; it knows its task
 *   compute_row(p, at, first, past, scratch)   a row; its columns from first to past where no reduction needs them all
 *   HAS_SUMS                                   whether rows are added into results of their task:
 *   begin(p, task, scratch)                      their neutral elements
 *   flush(p, task, scratch)                      what is in the thread's memory, added to the task's results
 *   finish(p, num_tasks)                         results of all tasks folded, and what follows from them
 */
#ifndef KERNEL /* alone: softmax over the rows of a float matrix */
#include <math.h>
#include <stdint.h>

#include "../../../runtime/team/task.h"
#include "tiles.h"
#define KERNEL softmax_rows
#define HAS_SUMS 0

struct args {
  const float *x0;
  float *y0;
  int64_t num_rows, row_tasks, n;
} __attribute__((packed));

struct position {
  int64_t i0;
};

INLINE struct tiling tiling_of(const struct args *p) {
  return (struct tiling){p->num_rows, p->row_tasks, p->n, 1, 1};
}

INLINE struct position position_of(const struct args *p, int64_t row, int64_t task) {
  (void)p, (void)task;
  return (struct position){row};
}

INLINE void advance(const struct args *p, struct position *at) {
  (void)p;
  ++at->i0;
}

INLINE void compute_row(const struct args *p, const struct position *at, int64_t first, int64_t past, void *scratch) {
  (void)scratch;
  const float *x = p->x0 + at->i0 * p->n;
  float *y = p->y0 + at->i0 * p->n;
  float top = -INFINITY;
  double sum = 0;
  for (int64_t j = first; j < past; ++j) top = fmaxf(top, x[j]);
  for (int64_t j = first; j < past; ++j) sum += (double)expf(x[j] - top);
  for (int64_t j = first; j < past; ++j) y[j] = expf(x[j] - top) / (float)sum;
}

INLINE void begin(const struct args *p, int64_t task, void *scratch) { (void)p, (void)task, (void)scratch; }
INLINE void flush(const struct args *p, int64_t task, void *scratch) { (void)p, (void)task, (void)scratch; }
INLINE void finish(const struct args *p, int64_t num_tasks) { (void)p, (void)num_tasks; }
#endif /* alone */

/* The loop over tasks must not be inlined around this one: gcc would make two of it, one without vectors. */
static NOINLINE void run_task(const struct args *block, int64_t t, void *scratch) {
  const struct args p = *block;
  const struct tile tile = tile_of(tiling_of(&p), t);
  struct position at = position_of(&p, tile.row, t);
  if (HAS_SUMS) begin(&p, t, scratch);
  for (int64_t row = tile.row; row < tile.past_row; ++row) {
    compute_row(&p, &at, tile.column, tile.past_column, scratch);
    advance(&p, &at);
    if (HAS_SUMS && ((row - tile.row) % FLUSH_ROWS == FLUSH_ROWS - 1 || row == tile.past_row - 1)) flush(&p, t, scratch);
  }
}

int KERNEL(const void *block, const struct fp_task *task);
int KERNEL(const void *block, const struct fp_task *task) {
  const struct args p = *(const struct args *)block;
  for (int64_t t; (t = fp_next(task)) >= 0;) {
    run_task(block, t, task->scratch);
    if (HAS_SUMS && fp_is_last(task)) finish(&p, task->num_tasks);
  }
  return 0;
}
