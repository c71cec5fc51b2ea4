/* Launches: patch the parameter blocks of a frame and run its steps. */
#include "dispatch.h"

#define MOST_STRIDE ((uint64_t)1 << 40)

/* Call a function that answers nothing: 0, or -1 if it raised. */
int call_hook(PyObject *hook, const char *format, ...) {
  va_list list;
  va_start(list, format);
  PyObject *args = Py_VaBuildValue(format, list);
  va_end(list);
  PyObject *result = args ? PyObject_CallObject(hook, args) : NULL;
  Py_XDECREF(args);
  Py_XDECREF(result);
  return result ? 0 : -1;
}

/* Make the device's primary context current; `former` is the thread's own one. */
static int enter_context(const Dispatcher *d, void **former) {
  *former = NULL;
  int code = d->driver.get_context(former);
  if (code == 0 && *former != d->driver.context) code = d->driver.set_context(d->driver.context);
  return code ? call_hook(d->fail, "is", code, "making the device current") : 0;
}

static void leave_context(const Dispatcher *d, void *former) {
  if (former && former != d->driver.context) d->driver.set_context(former);
}

/* Encode for these buffers into the frame, where a map is aligned as it must be. */
static int encode_map(const Dispatcher *d, const TensorMap *map, char *target, uint64_t address, uint64_t other) {
  uint64_t strides[MAP_RANK];
  memcpy(strides, map->strides, sizeof strides);
  if (map->second >= -1) {
    uint64_t distance = address < other ? other - address : address - other;
    if (distance == 0 || distance >= MOST_STRIDE || distance % 16)
      return call_hook(d->fail_map, "iOK", 0, map->label, (unsigned long long)distance);
    strides[map->rank - 2] = distance;
    if (other < address) address = other;
  }
  void *former; /* the driver encodes for a device: a new thread has none */
  if (enter_context(d, &former)) return -1;
  int code = d->driver.encode(target, map->numbers[0], (unsigned)map->rank, (void *)(uintptr_t)address, map->dims,
                              strides, map->box, map->steps, map->numbers[1], map->numbers[2], map->numbers[3],
                              map->numbers[4]);
  leave_context(d, former);
  return code ? call_hook(d->fail_map, "iOi", code, map->label, 0) : 0;
}

/* Called with the interpreter's lock held: the last map of each patch is shared by all calls of the dispatcher, and
 * encoded again for another address only. */
static int write_map(Dispatcher *d, const Patch *p, char *frame, const uint64_t *slots) {
  TensorMap *map = &d->maps[p->map];
  uint64_t address = slots[map->slot] + (uint64_t)map->addend;
  uint64_t other = map->second >= -1 ? slots[map->second] + (uint64_t)map->second_addend : 0;
  if (map->is_encoded && map->address == address && map->other == other) {
    memcpy(frame + p->offset, map->bytes, sizeof map->bytes);
  } else {
    map->is_encoded = 0;
    if (encode_map(d, map, frame + p->offset, address, other)) return -1;
    memcpy(map->bytes, frame + p->offset, sizeof map->bytes);
    map->address = address;
    map->other = other;
    map->is_encoded = 1;
    ++d->num_encodes;
  }
  if (map->swap_offset >= 0) {
    int32_t is_swapped = other < address;
    memcpy(frame + map->swap_offset, &is_swapped, sizeof is_swapped);
  }
  return 0;
}

static uint64_t patched_address(const Patch *p, const uint64_t *address) {
  return address[p->slot] + (uint64_t)p->addend;
}

/* Write addresses, scalars and tensor maps into the frame; with `only_scalars` the others are there already. */
int patch_frame(Dispatcher *d, char *frame, const uint64_t *address, int only_scalars) {
  for (const Step *step = d->steps; step < d->steps + d->num_steps; ++step) {
    if (step->kind == STEP_MEMSET || step->kind == STEP_PYTHON) continue; /* without a block */
    for (const Patch *p = d->patches + step->first_patch, *end = p + step->num_patches; p < end; ++p) {
      if (p->kind == PATCH_SCALAR) {
        memcpy(frame + p->offset, (const char *)(uintptr_t)patched_address(p, address), (size_t)p->size);
      } else if (p->kind == PATCH_TENSOR_MAP) {
        if (!only_scalars && write_map(d, p, frame, address)) return -1;
      } else if (!only_scalars) {
        uint64_t target = patched_address(p, address);
        memcpy(frame + p->offset, &target, 8);
      }
    }
  }
  return 0;
}

static int run_python(const Dispatcher *d, const Step *step, const uint64_t *address, void *stream) {
  PyObject *operands = PyTuple_New(step->num_patches);
  for (int i = 0; operands && i < step->num_patches; ++i) {
    PyObject *number = PyLong_FromUnsignedLongLong(patched_address(&d->patches[step->first_patch + i], address));
    if (number) PyTuple_SET_ITEM(operands, i, number);
    else Py_CLEAR(operands);
  }
  if (!operands) return -1;
  return call_hook(step->call, "NKK", operands, (unsigned long long)(uintptr_t)stream, (unsigned long long)address[-1]);
}

typedef int (*LibraryCall)(const void *block, void *stream);

static int is_host(const Dispatcher *d, const Step *step) {
  return step->kind == STEP_HOST || step->kind == STEP_LIBRARY || (step->kind == STEP_MEMSET && !d->on_gpu);
}

/* 0, or the status that a kernel or library gave back. */
static int run_host(const Dispatcher *d, const Step *step, char *frame, const uint64_t *address, void *stream) {
  if (step->kind == STEP_LIBRARY) return ((LibraryCall)step->function)(frame + step->block, stream);
  if (step->kind == STEP_HOST) {
    uint64_t start = address[-1] + (uint64_t)step->scratch_at; /* of the memory of its threads */
    char *scratch = step->thread_bytes ? (char *)(uintptr_t)((start + 63) & ~(uint64_t)63) : NULL;
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
  uint32_t *words = (uint32_t *)(uintptr_t)patched_address(&d->patches[step->first_patch], address);
  for (int64_t i = 0; i < step->memset_words; ++i) memcpy(words + i, &step->memset_value, 4);
  return 0;
}

static int run_driver(const Dispatcher *d, const Step *step, char *frame, const uint64_t *address, void *stream) {
  int code;
  if (step->kind == STEP_MEMSET) {
    uint64_t target = patched_address(&d->patches[step->first_patch], address);
    code = d->driver.memset32(target, step->memset_value, (size_t)step->memset_words, stream);
  } else {
    void *params[d->most_params + 1];
    const int64_t *offset = d->params + step->first_param;
    for (int i = 0; i < step->num_params; ++i) params[i] = frame + offset[i];
    const unsigned *c = step->config;
    Attribute *attributes = step->num_attributes ? d->attributes + step->first_attribute : NULL;
    LaunchConfig config = {{c[0], c[1], c[2]}, {c[3], c[4], c[5]}, c[6], stream, attributes,
                           (unsigned)step->num_attributes};
    code = d->driver.launch(&config, step->function, params, NULL);
  }
  return code ? call_hook(d->fail, "iO", code, step->label) : 0;
}

static int run_steps(const Dispatcher *d, char *frame, const uint64_t *address, void *stream) {
  const Step *step = d->steps, *end = d->steps + d->num_steps;
  while (step < end) {
    if (is_host(d, step)) { /* a run of host functions: other threads may go on meanwhile, if it is worth it */
      int status = 0;
      const int is_quick = step->is_quick;
      PyThreadState *state = is_quick ? NULL : PyEval_SaveThread();
      for (; step < end && is_host(d, step) && step->is_quick == is_quick; ++step)
        if ((status = run_host(d, step, frame, address, stream))) break;
      if (state) PyEval_RestoreThread(state);
      if (status) return call_hook(d->fail_host, "iOO", status, step->label, step->call);
      continue;
    }
    int failed = step->kind == STEP_PYTHON ? run_python(d, step, address, stream)
                                           : run_driver(d, step, frame, address, stream);
    if (failed) return -1;
    ++step;
  }
  return 0;
}

/* Run with the device's context current where a step needs it. */
int run_program(const Dispatcher *d, char *frame, const uint64_t *address, void *stream) {
  if (!d->uses_driver) return run_steps(d, frame, address, stream);
  void *former;
  if (enter_context(d, &former)) return -1;
  int failed = run_steps(d, frame, address, stream);
  leave_context(d, former);
  return failed;
}
