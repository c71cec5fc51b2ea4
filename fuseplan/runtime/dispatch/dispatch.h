/* What the units of the native dispatcher share. Each .c file compiles alone; `native.py` joins them into
 * one translation unit, where all that is declared here is static. */
#ifndef FUSEPLAN_DISPATCH_H
#define FUSEPLAN_DISPATCH_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "../team/team.h"

#ifdef FUSEPLAN_JOINED
#define INTERNAL static
#else
#define INTERNAL
#endif

enum { PLACE_CPU, PLACE_CUDA, PLACE_HOST };

/* Nothing is ever mapped in the first page, nor for a program in the upper half. */
#define FIRST_PAGE 4096
#define IS_ADDRESS(n) ((n) >= FIRST_PAGE && (n) <= INT64_MAX)

#define MAX_RANK 12
#define NUM_APART 8

/* A buffer that the caller binds. */
typedef struct {
  PyObject *keys, *fallback, *value; /* borrowed from the dispatcher's description */
  int has_value, place, device_index, is_output, num_types;
  uint32_t types[4]; /* DLPack code | bits << 8 of the accepted types */
  char formats[8];   /* accepted formats of the buffer protocol */
  Py_ssize_t itemsize;
  int64_t span, alignment;
  int mapping, ndim; /* equal mappings: equal places of equal elements; ndim is -1 where the layout is not known */
  int64_t dim[MAX_RANK], stride[MAX_RANK]; /* strides in elements */
} Slot;

enum { STEP_HOST, STEP_CUDA, STEP_MEMSET, STEP_PYTHON, STEP_LIBRARY };
enum { PATCH_POINTER, PATCH_SCALAR, PATCH_SCRATCH, PATCH_TENSOR_MAP };

typedef struct {
  int kind, slot, map; /* index of the tensor map, -1 for none */
  Py_ssize_t offset, size;
  int64_t addend;
} Patch;

#define MOST_RANK 5

/* A tensor map of a patch, and the last one that was encoded for it. */
typedef struct {
  PyObject *label;  /* of its launch; borrowed */
  int rank, slot, second; /* slots of its buffers: -1 is the workspace, -2 none */
  int numbers[5];   /* type, interleave, swizzle, promotion, fill */
  int64_t addend, second_addend;
  Py_ssize_t swap_offset;
  uint64_t dims[MOST_RANK], strides[MOST_RANK];
  uint32_t box[MOST_RANK], steps[MOST_RANK];
  uint64_t address, other; /* of `bytes` */
  int is_encoded;
  char bytes[128];
} TensorMap;

typedef struct { /* CUlaunchAttribute */
  int id, unused;
  uint32_t value[16];
} Attribute;

typedef struct {
  int kind;
  Py_ssize_t block;
  int first_patch, num_patches, first_param, num_params, first_attribute, num_attributes;
  void *function;
  unsigned config[7]; /* grid, block, shared bytes */
  uint32_t memset_value;
  size_t memset_words;
  PyObject *call, *label; /* borrowed; of a library, `call` is the text of a status */
  long long num_tasks, scratch_at, thread_bytes; /* of a host function */
  int num_threads, is_quick;
} Step;

typedef struct { /* CUlaunchConfig */
  unsigned grid[3], block[3], shared_bytes;
  void *stream, *attributes;
  unsigned num_attributes;
} LaunchConfig;

typedef struct {
  int (*launch)(const LaunchConfig *, void *function, void **params, void **extra);
  int (*memset32)(uint64_t address, unsigned value, size_t words, void *stream);
  int (*encode)(void *map, int type, unsigned rank, void *address, const uint64_t *dims, const uint64_t *strides,
                const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill);
  int (*get_context)(void **context);
  int (*set_context)(void *context);
  void *context;
} Driver;

typedef struct {
  PyObject_HEAD
  PyObject *description; /* owns all Python objects that the arrays below borrow */
  PyObject *collect, *resolve, *resolve_workspace, *fail, *fail_host, *fail_map, *overlap, *tell_autograd;
  PyObject *known; /* keys that stand for a slot */
  int (*run_team)(const struct fp_launch *); /* NULL if no step has several threads */
  int follows_torch;
  int num_slots, num_steps, on_gpu, uses_driver, device_index, rereads;
  int64_t workspace_bytes, workspace_alignment, workspace_slack;
  struct { int first, second; int64_t distance; } apart[NUM_APART]; /* buffers without a common element */
  int next_apart;
  Slot *slots;
  Step *steps;
  Patch *patches;
  Py_ssize_t *params;
  TensorMap *maps;
  Attribute *attributes;
  long long num_encodes; /* of tensor maps, since the dispatcher was made */
  int most_params;
  Driver driver;
  Py_ssize_t frame_bytes;
  char *image;
} Dispatcher;

/* Memory of one call. `item` and `keep` are owned references. */
typedef struct {
  PyObject **item, **keep;
  uint64_t *address, *local, workspace;
  PyObject *keep_workspace;
  char *frame;
} Call;

/* buffers.c: address of an object by the plain rules, or 0 where the `Binder` must decide */
INTERNAL uint64_t quick_address(const Slot *slot, PyObject *object, uint64_t *local);
INTERNAL uint64_t quick_workspace(const Dispatcher *d, PyObject *object);
INTERNAL int has_version(PyObject *object);

/* writes.c */
INTERNAL int check_overlaps(Dispatcher *d, const Call *c);
INTERNAL int note_writes(const Dispatcher *d, const Call *c, int is_bound);

/* launch.c */
INTERNAL int patch_frame(Dispatcher *d, char *frame, const uint64_t *address, uint64_t workspace, int only_scalars);
INTERNAL int enter_context(const Dispatcher *d, void **former);
INTERNAL void leave_context(const Dispatcher *d, void *former);
INTERNAL int run_program(const Dispatcher *d, char *frame, const uint64_t *address, uint64_t workspace, void *stream);

/* maps.c */
INTERNAL int write_map(Dispatcher *d, const Patch *p, char *frame, const uint64_t *slots, uint64_t workspace);

/* calls.c */
INTERNAL size_t call_bytes(const Dispatcher *d);
INTERNAL void lay_out_call(const Dispatcher *d, Call *c, char *memory);
INTERNAL int prepare_call(Dispatcher *d, Call *c, PyObject *pack, PyObject *workspace, int is_bound);
INTERNAL void release_call(const Dispatcher *d, Call *c);

/* dispatch.c: what is called from Python */
INTERNAL PyObject *dispatcher_execute(Dispatcher *d, PyObject *const *args, Py_ssize_t count);
INTERNAL PyObject *dispatcher_bind(Dispatcher *d, PyObject *const *args, Py_ssize_t count);
INTERNAL int ready_bound_type(void);

#endif
