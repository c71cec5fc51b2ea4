/* The units of the team: a job is called once by each thread that comes, with that thread's index. */
#ifndef FUSEPLAN_TEAM_H
#define FUSEPLAN_TEAM_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "task.h"

typedef void (*team_job)(void *job, int thread);

/* pool.c: our own threads. The caller is thread 0 and always comes; `num_threads` - 1 others may. */
void pool_run(team_job run, void *job, int num_threads);
void pool_forget(void); /* in a forked child: the threads stayed with the parent */

/* openmp.c: the OpenMP runtime that PyTorch runs on. All of it is called by one thread at a time. */
int openmp_run(team_job run, void *job, int num_threads); /* 0 if it is not for the calling thread: nothing was run */
int openmp_max_threads(void);                              /* PyTorch's number for this thread, 0 if it is not loaded */
void openmp_forget(void); /* in a forked child: an OpenMP region would wait for threads of the parent */

typedef int (*fp_kernel)(const void *block, const struct fp_task *task);

/* One launch of a host kernel, with its memory of `thread_bytes` for each thread from `scratch` on. */
struct fp_launch {
  fp_kernel kernel;
  const void *block;
  int64_t num_tasks;
  char *scratch;
  int64_t thread_bytes;
  int32_t num_threads, follows_torch; /* how many at most; whether PyTorch's number is a limit too */
};

/* Runs a launch to its end and gives back its status; may be called by several threads at once. */
int fp_team_run(const struct fp_launch *launch);
/* What the last launch of this process ran on, for tests and benchmarks: 0 nothing yet, 1 the caller alone,
 * 2 our pool, 3 OpenMP. */
int fp_team_last(void);
#endif
