/* columns.c: reductions over slow axes, in the order in which memory lies: each row is added into its results.
 *
 * Each task has results of its own; the last one to finish folds them in the order of the tasks.
 * Holes:
 *   struct args, tiling_of(p)                  the block, and how the domain is given out
 *   struct position, position_of, advance      where a row is; it knows its task
 *   begin(p, task)                             the neutral elements of a task's results
 *   add_row(p, at, first, past)                columns first to past of a row, added into the results of its task
 *   finish(p, num_tasks)                       results of all tasks folded, and what follows from them
 */
#ifndef KERNEL /* alone: the sum of each column of a float matrix */
#include <stdint.h>

#include "../../../runtime/team/task.h"
#include "tiles.h"
#define KERNEL column_sums

struct args {
  const float *x0;
  float *y0;
  double *r0; /* num_tasks x n */
  int64_t num_rows, row_tasks, n;
} __attribute__((packed));

struct position {
  int64_t i0, task;
};

INLINE struct tiling tiling_of(const struct args *p) {
  return (struct tiling){p->num_rows, p->row_tasks, p->n, 1, 1};
}

INLINE struct position position_of(const struct args *p, int64_t row, int64_t task) {
  (void)p;
  return (struct position){row, task};
}

INLINE void advance(const struct args *p, struct position *at) {
  (void)p;
  ++at->i0;
}

INLINE void begin(const struct args *p, int64_t task) {
  for (int64_t j = 0; j < p->n; ++j) p->r0[task * p->n + j] = 0;
}

INLINE void add_row(const struct args *p, const struct position *at, int64_t first, int64_t past) {
  for (int64_t j = first; j < past; ++j) p->r0[at->task * p->n + j] += (double)p->x0[at->i0 * p->n + j];
}

INLINE void finish(const struct args *p, int64_t num_tasks) {
  for (int64_t t = 1; t < num_tasks; ++t)
    for (int64_t j = 0; j < p->n; ++j) p->r0[j] += p->r0[t * p->n + j];
  for (int64_t j = 0; j < p->n; ++j) p->y0[j] = (float)p->r0[j];
}
#endif /* alone */

/* The loop over tasks must not be inlined around this one: gcc would make two of it, one without vectors. */
static NOINLINE void run_task(const struct args *block, int64_t t) {
  const struct args p = *block;
  const struct tile tile = tile_of(tiling_of(&p), t);
  struct position at = position_of(&p, tile.row, t);
  begin(&p, t);
  for (int64_t row = tile.row; row < tile.past_row; ++row) {
    add_row(&p, &at, tile.column, tile.past_column);
    advance(&p, &at);
  }
}

int KERNEL(const void *block, const struct fp_task *task);
int KERNEL(const void *block, const struct fp_task *task) {
  const struct args p = *(const struct args *)block;
  for (int64_t t; (t = fp_next(task)) >= 0;) {
    run_task(block, t);
    if (fp_is_last(task)) finish(&p, task->num_tasks);
  }
  return 0;
}
