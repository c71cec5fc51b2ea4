/* PyTorch's OpenMP threads, found in the running process: after one of its operations they spin for milliseconds, and
 * only they can do our work on their cores meanwhile. */
#include "team.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct {
  void (*parallel)(void (*)(void *), void *, unsigned num_threads, unsigned flags);
  int (*thread_num)(void), (*max_threads)(void);
} openmp;
static unsigned long long num_loads; /* of libraries, when we looked last */
static int is_forked = -1;           /* -1: not known yet */

typedef struct {
  team_job run;
  void *job;
  int num_threads;
} Region;

static int count_loads(struct dl_phdr_info *info, size_t size, void *count) {
  (void)size;
  *(unsigned long long *)count = info->dlpi_adds;
  return 1;
}

/* The address that PyTorch's own call of this name goes to: the dynamic linker looks in the global scope first. */
static void find(void *torch, const char *name, void *function) {
  void *found = dlsym(RTLD_DEFAULT, name);
  if (!found) found = dlsym(torch, name);
  memcpy(function, &found, sizeof found);
}

/* Look for the runtime again if a library was loaded since: PyTorch may be imported at any time. */
static void look(void) {
  unsigned long long count = 0;
  if (openmp.parallel) return;
  dl_iterate_phdr(count_loads, &count);
  if (count == num_loads) return;
  num_loads = count;
  void *torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (!torch) return;
  find(torch, "omp_get_thread_num", &openmp.thread_num);
  find(torch, "omp_get_max_threads", &openmp.max_threads);
  if (openmp.thread_num && openmp.max_threads) find(torch, "GOMP_parallel", &openmp.parallel);
}

/* Whether this process is a fork that did not start another program: then OpenMP's threads may have been left behind
 * before this library was loaded. The kernel's flags of the process say so; where they cannot be read, it may be. */
static int started_as_fork(void) {
  char text[1024];
  const int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  const ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
  if (file >= 0) close(file);
  text[length > 0 ? length : 0] = 0;
  const char *rest = strrchr(text, ')'); /* the program's name may hold anything */
  unsigned flags;
  if (!rest || sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) != 1) return 1;
  return (flags & 0x40) != 0; /* PF_FORKNOEXEC */
}

static void enter(void *pointer) {
  const Region *region = pointer;
  const int thread = openmp.thread_num();
  if (thread < region->num_threads) region->run(region->job, thread);
}

/* Only on the main thread: each thread that enters a region gets OpenMP threads of its own, which stay. And only with
 * as many threads as PyTorch's own regions have: with fewer the others would end, and be started again by PyTorch. */
int openmp_run(team_job run, void *job, int num_threads) {
  look();
  if (!openmp.parallel || getpid() != syscall(SYS_gettid)) return 0;
  if (is_forked < 0) is_forked = started_as_fork();
  if (is_forked || openmp.max_threads() < num_threads) return 0;
  Region region = {run, job, num_threads};
  openmp.parallel(enter, &region, 0, 0);
  return 1;
}

int openmp_max_threads(void) {
  look();
  return openmp.parallel ? openmp.max_threads() : 0;
}

void openmp_forget(void) { is_forked = 1; }
