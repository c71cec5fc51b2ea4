/* Who runs a launch: PyTorch's OpenMP threads, our own, or the calling thread alone. */
#include "team.h"
#include <pthread.h>
#include <stddef.h>

enum { RAN_ALONE = 1, RAN_POOL, RAN_OPENMP };

typedef struct {
  const struct fp_launch *launch;
  int num_threads, status;
  struct fp_counters counters;
} Job;

static int is_busy; /* one launch has the threads at a time; who finds them busy runs alone */
static int last_ran;

static void run_job(void *pointer, int thread) {
  Job *job = pointer;
  const struct fp_launch *l = job->launch;
  char *scratch = l->thread_bytes ? l->scratch + thread * l->thread_bytes : NULL;
  const struct fp_task task = {l->num_tasks, thread, job->num_threads, scratch, &job->counters};
  const int status = l->kernel(l->block, &task);
  if (status == 0) return;
  int none = 0;
  __atomic_compare_exchange_n(&job->status, &none, status, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  __atomic_store_n(&job->counters.drawn, l->num_tasks, __ATOMIC_RELAXED); /* nothing more is drawn */
}

static void in_child(void) {
  is_busy = 0;
  pool_forget();
  openmp_forget();
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

int fp_team_run(const struct fp_launch *launch) {
  Job job = {launch, launch->num_threads, 0, {0}};
  const int is_ours = job.num_threads > 1 && !__atomic_exchange_n(&is_busy, 1, __ATOMIC_ACQUIRE);
  int ran = RAN_ALONE;
  if (is_ours) {
    const int limit = launch->follows_torch ? openmp_max_threads() : 0;
    if (limit > 0 && limit < job.num_threads) job.num_threads = limit;
    if (job.num_threads < 2) ran = RAN_ALONE;
    else if (openmp_run(run_job, &job, job.num_threads)) ran = RAN_OPENMP;
    else {
      pool_run(run_job, &job, job.num_threads);
      ran = RAN_POOL;
    }
    __atomic_store_n(&is_busy, 0, __ATOMIC_RELEASE);
  }
  if (ran == RAN_ALONE) {
    job.num_threads = 1;
    run_job(&job, 0);
  }
  __atomic_store_n(&last_ran, ran, __ATOMIC_RELAXED);
  return job.status;
}

int fp_team_last(void) { return __atomic_load_n(&last_ran, __ATOMIC_RELAXED); }
