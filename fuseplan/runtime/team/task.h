/* How host kernels share a launch out: `int kernel(const void *block, const struct fp_task *task)`.
 *
 * Each thread of the team calls the kernel once, with an fp_task of its own, and draws tasks until none is left:
 *   for (int64_t t; (t = fp_next(task)) >= 0;) { ... tile t ... }
 * Threads may come late or not at all, so a kernel never waits for another thread, and what a task computes depends
 * on its number alone: the same bits for any number of threads. The result is 0, or a status that ends the launch. */
#ifndef FUSEPLAN_TASK_H
#define FUSEPLAN_TASK_H
#include <stdint.h>

struct fp_counters { /* of one launch, all 0 at first; each on a cache line of its own */
  int64_t drawn, apart[7], finished;
};

struct fp_task {
  int64_t num_tasks;
  int32_t thread, num_threads;  /* index of this thread; how many there are at most */
  void *scratch;                /* memory of this thread alone, at a multiple of 64; NULL if the launch asks for none */
  struct fp_counters *counters;
};

/* The next task that no thread has drawn, -1 if there is none. */
static inline int64_t fp_next(const struct fp_task *task) {
  int64_t *drawn = &task->counters->drawn;
  const int64_t t = task->num_threads == 1 ? (*drawn)++ : __atomic_fetch_add(drawn, 1, __ATOMIC_RELAXED);
  return t < task->num_tasks ? t : -1;
}

/* To be called after each task: true once, for the thread that finished the last one; it sees what all tasks wrote
 * and may fold their partial results, in the order of their numbers. */
static inline int fp_is_last(const struct fp_task *task) {
  int64_t *finished = &task->counters->finished;
  if (task->num_threads == 1) return ++*finished == task->num_tasks;
  return __atomic_add_fetch(finished, 1, __ATOMIC_ACQ_REL) == task->num_tasks;
}
#endif
