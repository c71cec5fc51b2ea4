/* columns.c: reductions in the order in which memory lies: each row is added into its results, a few rows at a time.
 *
 * Where rows come in groups, a task has whole groups and closes each. Otherwise each task has results of its own; the
 * last one to finish folds them in the order of the tasks.
 * Holes:
 *   struct args, tiling_of(p)                  the block, and how the groups or rows are given out
 *   struct position, position_of, advance      where a row is; it knows its task
 *   GROUPED, rows_of(p)                        whether there are groups, and how many rows one has
 *   ROWS, rows_left(p, at)                     rows that are added at once, if so many follow one another
 *   begin(p, task, scratch)                    the neutral elements of a task's results
 *   add_rows(p, at, first, past, scratch, rows)  columns first to past of some rows, added up
 *   flush(p, task, scratch)                    what is in the thread's memory, added to the task's results
 *   close_group(p, at)                         what follows from the results of a group
 *   finish(p, num_tasks)                       results of all tasks folded, and what follows from them
 */
#ifndef KERNEL /* alone: the sum of each column of a float matrix */
#include <stdint.h>

#include "../../../runtime/team/task.h"
#include "tiles.h"
#define KERNEL column_sums
#define GROUPED 0
#define ROWS 4

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

INLINE int64_t rows_of(const struct args *p) { return p->num_rows; }
INLINE int64_t rows_left(const struct args *p, const struct position *at) { return p->num_rows - at->i0; }

INLINE void begin(const struct args *p, int64_t task, void *scratch) {
  (void)scratch;
  for (int64_t j = 0; j < p->n; ++j) p->r0[task * p->n + j] = 0;
}

INLINE void add_rows(const struct args *p, const struct position *at, int64_t first, int64_t past, void *scratch,
                     const int64_t rows) {
  (void)scratch;
  for (int64_t j = first; j < past; ++j)
    for (int64_t u = 0; u < rows; ++u) p->r0[at->task * p->n + j] += (double)p->x0[(at->i0 + u) * p->n + j];
}

INLINE void flush(const struct args *p, int64_t task, void *scratch) { (void)p, (void)task, (void)scratch; }
INLINE void close_group(const struct args *p, const struct position *at) { (void)p, (void)at; }

INLINE void finish(const struct args *p, int64_t num_tasks) {
  for (int64_t t = 1; t < num_tasks; ++t)
    for (int64_t j = 0; j < p->n; ++j) p->r0[j] += p->r0[t * p->n + j];
  for (int64_t j = 0; j < p->n; ++j) p->y0[j] = (float)p->r0[j];
}
#endif /* alone */

/* The loops over tasks and groups must not be inlined around this one: gcc would make two of it, one without vectors. */
static NOINLINE void add_group(const struct args *block, struct position at, int64_t num_rows, const struct tile *tile,
                               void *scratch) {
  const struct args p = *block;
  const struct position start = at;
  begin(&p, at.task, scratch);
  int64_t since = 0;
  for (int64_t row = 0; row < num_rows;) {
    const int64_t left = num_rows - row;
    const int64_t rows = ROWS > 1 && left >= ROWS && rows_left(&p, &at) >= ROWS ? ROWS : 1;
    if (rows == ROWS) add_rows(&p, &at, tile->column, tile->past_column, scratch, ROWS);
    else add_rows(&p, &at, tile->column, tile->past_column, scratch, 1);
    for (int64_t u = 0; u < rows; ++u) advance(&p, &at);
    row += rows;
    if (++since == FLUSH_ROWS || row == num_rows) flush(&p, at.task, scratch), since = 0;
  }
  if (GROUPED) close_group(&p, &start);
}

int KERNEL(const void *block, const struct fp_task *task);
int KERNEL(const void *block, const struct fp_task *task) {
  const struct args p = *(const struct args *)block;
  for (int64_t t; (t = fp_next(task)) >= 0;) {
    const struct tile tile = tile_of(tiling_of(&p), t);
    if (GROUPED) {
      const int64_t rows = rows_of(&p);
      for (int64_t group = tile.row; group < tile.past_row; ++group)
        add_group(block, position_of(&p, group * rows, t), rows, &tile, task->scratch);
    } else {
      add_group(block, position_of(&p, tile.row, t), tile.past_row - tile.row, &tile, task->scratch);
      if (fp_is_last(task)) finish(&p, task->num_tasks);
    }
  }
  return 0;
}
