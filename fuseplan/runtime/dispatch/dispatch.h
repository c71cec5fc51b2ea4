/* What the units of the native dispatcher share. Each .c file compiles alone; `native.py` joins them into
 * one translation unit, where all that is declared here is static, and fills the structures: it has the same fields. */
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
#define MAP_RANK 5
#define NUM_APART 8

/* A buffer that the caller binds. */
typedef struct {
  PyObject *keys, *fallback;
  const char *value; /* of a slot that is in no pack, or NULL */
  int place, device_index, is_output, num_types;
  int ndim; /* -1 where the layout is not known */
  uint32_t types[4]; /* DLPack code | bits << 8 of the accepted types */
  int64_t itemsize, span, alignment;
  int64_t dim[MAX_RANK], stride[MAX_RANK]; /* strides in elements */
} Slot;

enum { STEP_HOST, STEP_CUDA, STEP_MEMSET, STEP_PYTHON, STEP_LIBRARY };
enum { PATCH_POINTER, PATCH_SCALAR, PATCH_SCRATCH, PATCH_TENSOR_MAP };

typedef struct {
  int kind, slot, map; /* a slot of -1 is the workspace; index of the tensor map */
  int64_t offset, size, addend;
} Patch;

/* A tensor map of a patch, and the last one that was encoded for it. */
typedef struct {
  PyObject *label; /* of its launch */
  int rank, slot, second, is_encoded; /* slots of its buffers: -1 is the workspace, -2 none */
  int numbers[5];                     /* type, interleave, swizzle, promotion, fill */
  int64_t addend, second_addend, swap_offset;
  uint64_t dims[MAP_RANK], strides[MAP_RANK];
  uint32_t box[MAP_RANK], steps[MAP_RANK];
  uint64_t address, other; /* of `bytes` */
  char bytes[128];
} TensorMap;

typedef struct { /* CUlaunchAttribute */
  int id, unused;
  uint32_t value[16];
} Attribute;

typedef struct {
  PyObject *label, *call; /* of a library, `call` is the text of a status */
  void *function;
  int64_t block, memset_words, num_tasks, scratch_at, thread_bytes;
  int kind, first_patch, num_patches, first_param, num_params, first_attribute, num_attributes, num_threads, is_quick;
  unsigned config[7], memset_value; /* grid, block, shared bytes */
} Step;

typedef struct { /* CUlaunchConfig */
  unsigned grid[3], block[3], shared_bytes;
  void *stream, *attributes;
  unsigned num_attributes;
} LaunchConfig;

typedef struct {
  int (*launch)(const LaunchConfig *, void *function, void **params, void **extra);
  int (*memset32)(uint64_t address, unsigned value, size_t words, void *stream);
  int (*get_context)(void **context);
  int (*set_context)(void *context);
  void *context;
  int (*encode)(void *map, int type, unsigned rank, void *address, const uint64_t *dims, const uint64_t *strides,
                const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill);
} Driver;

/* A program. All memory and objects that it points to are held by the `description` of its Python object. */
typedef struct {
  PyObject *collect, *resolve, *resolve_workspace, *fail, *fail_host, *fail_map, *overlap, *tell_autograd;
  PyObject *known; /* keys that stand for a slot */
  Driver driver;
  int (*run_team)(const struct fp_launch *); /* NULL if there are no threads */
  int64_t workspace_bytes, workspace_alignment, workspace_slack, frame_bytes;
  int num_slots, num_steps, most_params, device_index, on_gpu, uses_driver, rereads, follows_torch;
  Slot *slots;
  Step *steps;
  Patch *patches;
  int64_t *params;
  TensorMap *maps;
  Attribute *attributes;
  const char *image;
  int64_t num_encodes; /* of tensor maps, since the dispatcher was made */
  int64_t next_apart;
  struct { int64_t first, second, distance; } apart[NUM_APART]; /* buffers that may lie so */
} Dispatcher;

/* Memory of one call. */
typedef struct {
  PyObject **item, **keep;  /* owned, or NULL: of each slot; keep[num_slots] is of the workspace */
  uint64_t *address, *local; /* of each slot; address[-1] is the workspace */
  char *frame;
} Call;

/* buffers.c: address of an object by the plain rules, or 0 where the `Binder` must decide */
INTERNAL uint64_t quick_address(const Slot *slot, PyObject *object, uint64_t *local);
INTERNAL uint64_t quick_workspace(const Dispatcher *d, PyObject *object);
INTERNAL int has_version(PyObject *object);

/* launch.c */
INTERNAL int call_hook(PyObject *hook, const char *format, ...);
INTERNAL int patch_frame(Dispatcher *d, char *frame, const uint64_t *address, int only_scalars);
INTERNAL int run_program(const Dispatcher *d, char *frame, const uint64_t *address, void *stream);

/* calls.c */
INTERNAL char *align_frame(char *memory);
INTERNAL size_t call_bytes(const Dispatcher *d);
INTERNAL void lay_out_call(const Dispatcher *d, Call *c, char *memory);
INTERNAL int prepare_call(Dispatcher *d, Call *c, PyObject *pack, PyObject *workspace, int is_bound);
INTERNAL void release_call(const Dispatcher *d, Call *c);
INTERNAL int visit_call(const Dispatcher *d, Call *c, visitproc visit, void *arg);

#endif
