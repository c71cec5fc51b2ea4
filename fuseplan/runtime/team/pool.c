/* Our own threads: they spin for a moment after a job and then sleep. A job does not wait for a thread that has not
 * come by the time all tasks are drawn, so a slow wake-up costs nothing but that thread's help. */
#include "team.h"
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST_WORKERS 255
#define SPINS 2000 /* pauses before a thread sleeps: some tens of microseconds */
#define WOKEN 2    /* sleepers that one thread wakes; those wake others in turn */

/* `ticket` says who takes part: number of the job, whether it is still open, threads that came, threads at work. */
#define OPEN ((uint64_t)1 << 16)
#define CAME ((uint64_t)1 << 8)
#define AT_WORK(ticket) ((int)((ticket)&255))
#define NUM_CAME(ticket) ((int)((ticket) >> 8 & 255))

static struct {
  uint32_t number; /* of the job; workers sleep on it */
  uint32_t sleepers;
  uint64_t ticket;
  team_job run;
  void *job;
  int wanted; /* workers that may take part */
  uint32_t ended, caller_sleeps;
  int num_workers;
} pool;

#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_SEQ_CST)
#define STORE(place, value) __atomic_store_n(&(place), value, __ATOMIC_SEQ_CST)
#define ADD(place, value) __atomic_add_fetch(&(place), value, __ATOMIC_SEQ_CST)

static void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static void sleep_while(uint32_t *place, uint32_t value) {
  syscall(SYS_futex, place, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(uint32_t *place, int count) { syscall(SYS_futex, place, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0); }

/* Wait for a job after `seen`; its number. */
static uint32_t next_job(uint32_t seen) {
  for (int n = SPINS; n > 0; --n) {
    if (LOAD(pool.number) != seen) return LOAD(pool.number);
    relax();
  }
  ADD(pool.sleepers, 1);
  while (LOAD(pool.number) == seen) sleep_while(&pool.number, seen);
  ADD(pool.sleepers, -1);
  return LOAD(pool.number);
}

/* Take part in a job, if it is still open and wants more threads; this thread's index in it, or 0. */
static int come(uint32_t number) {
  uint64_t ticket = LOAD(pool.ticket);
  while ((uint32_t)(ticket >> 32) == number && (ticket & OPEN) && NUM_CAME(ticket) < LOAD(pool.wanted))
    if (__atomic_compare_exchange_n(&pool.ticket, &ticket, ticket + CAME + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      return NUM_CAME(ticket) + 1;
  return 0;
}

static void *worker(void *start) {
  uint32_t seen = (uint32_t)(uintptr_t)start;
  for (;;) {
    seen = next_job(seen);
    const int thread = come(seen);
    if (!thread) continue;
    if (thread < LOAD(pool.wanted) && LOAD(pool.sleepers)) wake(&pool.number, WOKEN);
    pool.run(pool.job, thread);
    const uint64_t ticket = ADD(pool.ticket, -1);
    if (AT_WORK(ticket) == 0 && !(ticket & OPEN) && LOAD(pool.caller_sleeps)) {
      ADD(pool.ended, 1);
      wake(&pool.ended, 1);
    }
  }
  return NULL;
}

/* Start threads until there are `count`, or as many as the system gives. Signals are for the program's own threads. */
static void start_workers(int count) {
  sigset_t all, former;
  pthread_attr_t attributes;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &former);
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  while (pool.num_workers < count) {
    pthread_t thread;
    if (pthread_create(&thread, &attributes, worker, (void *)(uintptr_t)pool.number)) break;
    pthread_setname_np(thread, "fuseplan");
    ++pool.num_workers;
  }
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &former, NULL);
}

static void wait_for_workers(void) {
  uint64_t ticket = __atomic_and_fetch(&pool.ticket, ~OPEN, __ATOMIC_SEQ_CST);
  for (int n = 2 * SPINS; AT_WORK(ticket) && n > 0; --n, ticket = LOAD(pool.ticket)) relax();
  while (AT_WORK(ticket)) {
    const uint32_t ended = LOAD(pool.ended);
    STORE(pool.caller_sleeps, 1);
    if (AT_WORK(LOAD(pool.ticket))) sleep_while(&pool.ended, ended);
    STORE(pool.caller_sleeps, 0);
    ticket = LOAD(pool.ticket);
  }
}

void pool_run(team_job run, void *job, int num_threads) {
  const int wanted = num_threads - 1 < MOST_WORKERS ? num_threads - 1 : MOST_WORKERS;
  if (pool.num_workers < wanted) start_workers(wanted);
  pool.run = run;
  pool.job = job;
  STORE(pool.wanted, wanted);
  const uint32_t number = pool.number + 1;
  STORE(pool.ticket, (uint64_t)number << 32 | OPEN);
  STORE(pool.number, number);
  if (LOAD(pool.sleepers)) wake(&pool.number, wanted < WOKEN ? wanted : WOKEN);
  run(job, 0);
  wait_for_workers();
}

void pool_forget(void) { __builtin_memset(&pool, 0, sizeof pool); }
