/* Launches: patch the parameter blocks of a frame and run its steps. */
#include "dispatch.h"

static uint64_t patched_address(const Patch *p, const uint64_t *address, uint64_t workspace) {
  return (p->slot < 0 ? workspace : address[p->slot]) + (uint64_t)p->addend;
}

static int has_block(const Step *step) {
  return step->kind == STEP_HOST || step->kind == STEP_CUDA || step->kind == STEP_LIBRARY;
}

/* Write addresses, scalars and tensor maps into the frame; with `only_scalars` the others are there already. */
int patch_frame(Dispatcher *d, char *frame, const uint64_t *address, uint64_t workspace, int only_scalars) {
  for (const Step *step = d->steps; step < d->steps + d->num_steps; ++step) {
    if (!has_block(step)) continue;
    for (const Patch *p = d->patches + step->first_patch, *end = p + step->num_patches; p < end; ++p) {
      if (p->kind == PATCH_SCALAR) {
        memcpy(frame + p->offset, (const char *)(uintptr_t)(address[p->slot] + (uint64_t)p->addend), (size_t)p->size);
      } else if (p->kind == PATCH_TENSOR_MAP) {
        if (!only_scalars && write_map(d, p, frame, address, workspace)) return -1;
      } else if (!only_scalars) {
        uint64_t target = patched_address(p, address, workspace);
        memcpy(frame + p->offset, &target, 8);
      }
    }
  }
  return 0;
}

static int run_python(const Dispatcher *d, const Step *step, const uint64_t *address, uint64_t workspace, void *stream) {
  PyObject *operands = PyTuple_New(step->num_patches);
  if (!operands) return -1;
  for (int i = 0; i < step->num_patches; ++i) {
    PyObject *number =
        PyLong_FromUnsignedLongLong(patched_address(&d->patches[step->first_patch + i], address, workspace));
    if (!number) {
      Py_DECREF(operands);
      return -1;
    }
    PyTuple_SET_ITEM(operands, i, number);
  }
  PyObject *result = PyObject_CallFunction(step->call, "OKK", operands, (unsigned long long)(uintptr_t)stream,
                                           (unsigned long long)workspace);
  Py_DECREF(operands);
  Py_XDECREF(result);
  return result ? 0 : -1;
}

typedef int (*LibraryCall)(const void *block, void *stream);

static int is_host(const Dispatcher *d, const Step *step) {
  return step->kind == STEP_HOST || step->kind == STEP_LIBRARY || (step->kind == STEP_MEMSET && !d->on_gpu);
}

/* The memory of a step's threads, NULL if they have none. */
static char *thread_scratch(const Step *step, uint64_t workspace) {
  uint64_t start = workspace + (uint64_t)step->scratch_at;
  return step->thread_bytes ? (char *)(uintptr_t)((start + 63) & ~(uint64_t)63) : NULL;
}

/* 0, or the status that a kernel or library gave back. */
static int run_host(const Dispatcher *d, const Step *step, char *frame, const uint64_t *address, uint64_t workspace,
                    void *stream) {
  if (step->kind == STEP_LIBRARY) return ((LibraryCall)step->function)(frame + step->block, stream);
  if (step->kind == STEP_HOST) {
    char *scratch = thread_scratch(step, workspace);
    fp_kernel kernel = (fp_kernel)step->function;
    if (step->num_threads > 1 && d->run_team) {
      const struct fp_launch launch = {kernel,  frame + step->block, step->num_tasks, scratch, step->thread_bytes,
                                       step->num_threads, d->follows_torch};
      return d->run_team(&launch);
    }
    struct fp_counters counters;
    counters.drawn = counters.finished = 0;
    const struct fp_task task = {step->num_tasks, 0, 1, scratch, &counters};
    return kernel(frame + step->block, &task);
  }
  uint32_t *words = (uint32_t *)(uintptr_t)patched_address(&d->patches[step->first_patch], address, workspace);
  for (size_t i = 0; i < step->memset_words; ++i) memcpy(words + i, &step->memset_value, 4);
  return 0;
}

/* Raises what a step's status stands for. */
static int raise_status(PyObject *hook, int status, const Step *step) {
  PyObject *result = PyObject_CallFunction(hook, "iOO", status, step->label, step->call);
  Py_XDECREF(result);
  return -1;
}

static int run_driver(const Dispatcher *d, const Step *step, char *frame, const uint64_t *address, uint64_t workspace,
                      void *stream) {
  int code;
  if (step->kind == STEP_MEMSET) {
    code = d->driver.memset32(patched_address(&d->patches[step->first_patch], address, workspace), step->memset_value,
                              step->memset_words, stream);
  } else {
    void *params[d->most_params + 1];
    const Py_ssize_t *offset = d->params + step->first_param;
    for (int i = 0; i < step->num_params; ++i) params[i] = frame + offset[i];
    const unsigned *c = step->config;
    Attribute *attributes = step->num_attributes ? d->attributes + step->first_attribute : NULL;
    LaunchConfig config = {{c[0], c[1], c[2]}, {c[3], c[4], c[5]}, c[6], stream, attributes,
                           (unsigned)step->num_attributes};
    code = d->driver.launch(&config, step->function, params, NULL);
  }
  if (code == 0) return 0;
  return raise_status(d->fail, code, step);
}

static int run_steps(const Dispatcher *d, char *frame, const uint64_t *address, uint64_t workspace, void *stream) {
  const Step *step = d->steps, *end = d->steps + d->num_steps;
  while (step < end) {
    if (is_host(d, step)) { /* a run of host functions: other threads may go on meanwhile, if it is worth it */
      int status = 0;
      const int is_quick = step->is_quick;
      PyThreadState *state = is_quick ? NULL : PyEval_SaveThread();
      for (; step < end && is_host(d, step) && step->is_quick == is_quick; ++step)
        if ((status = run_host(d, step, frame, address, workspace, stream))) break;
      if (state) PyEval_RestoreThread(state);
      if (status) return raise_status(d->fail_host, status, step);
      continue;
    }
    int failed = step->kind == STEP_PYTHON ? run_python(d, step, address, workspace, stream)
                                           : run_driver(d, step, frame, address, workspace, stream);
    if (failed) return -1;
    ++step;
  }
  return 0;
}

/* Make the device's primary context current; `former` is the thread's own one. */
int enter_context(const Dispatcher *d, void **former) {
  *former = NULL;
  int code = d->driver.get_context(former);
  if (code == 0 && *former != d->driver.context) code = d->driver.set_context(d->driver.context);
  if (code == 0) return 0;
  PyObject *result = PyObject_CallFunction(d->fail, "isO", code, "making the device current", Py_None);
  Py_XDECREF(result);
  return -1;
}

void leave_context(const Dispatcher *d, void *former) {
  if (former && former != d->driver.context) d->driver.set_context(former);
}

/* Run with the device's context current where a step needs it. */
int run_program(const Dispatcher *d, char *frame, const uint64_t *address, uint64_t workspace, void *stream) {
  if (!d->uses_driver) return run_steps(d, frame, address, workspace, stream);
  void *former;
  if (enter_context(d, &former)) return -1;
  int failed = run_steps(d, frame, address, workspace, stream);
  leave_context(d, former);
  return failed;
}
