/* The types `Dispatcher` and `Bound`. Third part of the unit; see buffers.c. */
#include <alloca.h>

#define MOST_STACK 32768 /* bytes of a call's own memory that are taken from the stack */

/* Memory of one call. `item` and `keep` are owned references. */
typedef struct {
  PyObject **item, **keep;
  uint64_t *address, *local, workspace;
  PyObject *keep_workspace;
  char *frame;
} Call;

typedef struct {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Dispatcher *dispatcher;
  void *stream, *memory;
  Call call;
} Bound;

static size_t call_bytes(const Dispatcher *d) {
  return (size_t)d->num_slots * (2 * sizeof(PyObject *) + 2 * sizeof(uint64_t)) + (size_t)d->frame_bytes + 64;
}

static void lay_out_call(const Dispatcher *d, Call *c, char *memory) {
  size_t n = (size_t)d->num_slots;
  c->frame = (char *)(((uintptr_t)memory + 63) & ~(uintptr_t)63);
  c->address = (uint64_t *)(c->frame + d->frame_bytes);
  c->local = c->address + n;
  c->item = (PyObject **)(c->local + n);
  c->keep = c->item + n;
  c->workspace = 0;
  c->keep_workspace = NULL;
  memset(c->item, 0, 2 * n * sizeof(PyObject *));
}

static void release_call(const Dispatcher *d, Call *c) {
  for (int i = 0; i < d->num_slots; ++i) {
    Py_XDECREF(c->item[i]);
    Py_XDECREF(c->keep[i]);
  }
  Py_XDECREF(c->keep_workspace);
}

/* Buffer of each slot from a plain dict: 1 if all are there, 0 if `collect` must look, -1 on error. */
static int look_up(const Dispatcher *d, Call *c, PyObject *pack) {
  if (!PyDict_CheckExact(pack)) return 0;
  Py_ssize_t hits = 0;
  for (int i = 0; i < d->num_slots; ++i) {
    const Slot *slot = &d->slots[i];
    if (slot->has_value) continue;
    PyObject *found = NULL;
    for (Py_ssize_t k = 0; !found && k < PyTuple_GET_SIZE(slot->keys); ++k) {
      found = PyDict_GetItemWithError(pack, PyTuple_GET_ITEM(slot->keys, k));
      if (!found && PyErr_Occurred()) return -1;
      if (found == Py_None) found = NULL;
    }
    if (found) ++hits;
    else if (slot->fallback != Py_None) found = slot->fallback;
    else return 0;
    Py_INCREF(found);
    c->item[i] = found;
  }
  if (hits == PyDict_GET_SIZE(pack)) return 1;
  Py_ssize_t num_known = 0;
  PyObject *key, *unused;
  for (Py_ssize_t at = 0; PyDict_Next(pack, &at, &key, &unused);) {
    int is_known = PySet_Contains(d->known, key);
    if (is_known < 0) return -1;
    if (!is_known && PyUnicode_Check(key)) return 0;
    num_known += is_known;
  }
  return num_known == hits; /* more: a tensor may have two buffers, under two of its keys */
}

static int collect(const Dispatcher *d, Call *c, PyObject *pack) {
  int found = look_up(d, c, pack);
  if (found != 0) return found < 0 ? -1 : 0;
  PyObject *buffers = PyObject_CallOneArg(d->collect, pack);
  if (!buffers) return -1;
  for (int i = 0; i < d->num_slots; ++i) {
    PyObject *buffer = PyTuple_GET_ITEM(buffers, i);
    Py_INCREF(buffer);
    Py_XSETREF(c->item[i], buffer);
  }
  Py_DECREF(buffers);
  return 0;
}

/* Take (address or bytes, object to keep) from a hook. */
static int take_answer(PyObject *answer, uint64_t *address, PyObject **keep) {
  if (!answer) return -1;
  PyObject *first = PyTuple_GET_ITEM(answer, 0);
  *address = PyBytes_Check(first) ? (uint64_t)(uintptr_t)PyBytes_AS_STRING(first) : PyLong_AsUnsignedLongLong(first);
  *keep = answer; /* holds the bytes or the object */
  return PyErr_Occurred() ? -1 : 0;
}

static int is_aligned(const Dispatcher *d, const Call *c) {
  return c->workspace % (uint64_t)d->workspace_alignment == 0;
}

static int resolve_workspace(const Dispatcher *d, Call *c, PyObject *workspace) {
  if (d->workspace_bytes == 0) return 0;
  if (PyLong_CheckExact(workspace)) {
    c->workspace = PyLong_AsUnsignedLongLong(workspace);
    if (!PyErr_Occurred() && IS_ADDRESS(c->workspace) && is_aligned(d, c)) return 0;
    PyErr_Clear();
  } else {
    DLTensor t;
    DLTensorOf tensor_of = kind_of(workspace).tensor_of;
    if (tensor_of && tensor_of(workspace, &t) == 0) {
      c->workspace = address_of(&t);
      if (c->workspace && is_at(&t, d->on_gpu ? PLACE_CUDA : PLACE_CPU, d->device_index) && is_row_major(&t) &&
          span_of(&t) >= d->workspace_bytes && is_aligned(d, c)) {
        Py_INCREF(workspace);
        c->keep_workspace = workspace;
        return 0;
      }
    }
    PyErr_Clear();
  }
  return take_answer(PyObject_CallOneArg(d->resolve_workspace, workspace), &c->workspace, &c->keep_workspace);
}

/* All checks of a call: nothing is written and nothing launched before this has succeeded. */
static int prepare(const Dispatcher *d, Call *c, PyObject *pack, PyObject *workspace) {
  if (collect(d, c, pack)) return -1;
  for (int i = 0; i < d->num_slots; ++i) {
    const Slot *slot = &d->slots[i];
    if (slot->has_value) {
      c->address[i] = (uint64_t)(uintptr_t)PyBytes_AS_STRING(slot->value);
      continue;
    }
    c->address[i] = quick_address(slot, c->item[i], &c->local[i]);
    if (c->address[i] == 0 &&
        take_answer(PyObject_CallFunction(d->resolve, "iO", i, c->item[i]), &c->address[i], &c->keep[i]))
      return -1;
  }
  if (resolve_workspace(d, c, workspace)) return -1;
  memcpy(c->frame, d->image, (size_t)d->frame_bytes);
  patch_frame(d, c->frame, c->address, c->workspace, 0);
  return 0;
}

static int read_stream(PyObject *number, void **stream) {
  if (!PyLong_Check(number)) {
    PyErr_Format(PyExc_TypeError, "a stream is an integer address, not a %s", Py_TYPE(number)->tp_name);
    return -1;
  }
  *stream = PyLong_AsVoidPtr(number);
  return PyErr_Occurred() ? -1 : 0;
}

static int read_arguments(PyObject *const *args, Py_ssize_t count, void **stream) {
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "takes exactly three arguments: pack, workspace, stream");
    return -1;
  }
  return read_stream(args[2], stream);
}

static PyObject *dispatcher_execute(Dispatcher *d, PyObject *const *args, Py_ssize_t count) {
  Call c;
  void *stream;
  if (read_arguments(args, count, &stream)) return NULL;
  size_t need = call_bytes(d);
  char *memory = need <= MOST_STACK ? alloca(need) : malloc(need);
  if (!memory) return PyErr_NoMemory();
  lay_out_call(d, &c, memory);
  Py_INCREF(d); /* a program's own functions may drop the last other reference */
  int failed = prepare(d, &c, args[0], args[1]) || run_program(d, c.frame, c.address, c.workspace, stream);
  release_call(d, &c);
  if (need > MOST_STACK) free(memory);
  Py_DECREF(d);
  if (failed) return NULL;
  Py_RETURN_NONE;
}

static PyObject *bound_call(Bound *self, PyObject *const *args, size_t flags, PyObject *names) {
  (void)args;
  const Dispatcher *d = self->dispatcher;
  if (PyVectorcall_NARGS(flags) || (names && PyTuple_GET_SIZE(names))) {
    PyErr_SetString(PyExc_TypeError, "a bound plan takes no arguments");
    return NULL;
  }
  int failed;
  Py_INCREF(self);
  if (!d->rereads) {
    failed = run_program(d, self->call.frame, self->call.address, self->call.workspace, self->stream);
  } else { /* own copy of the blocks: another thread may call with other scalars meanwhile */
    size_t need = (size_t)d->frame_bytes + 64;
    char *memory = need <= MOST_STACK ? alloca(need) : malloc(need);
    if (!memory) {
      Py_DECREF(self);
      return PyErr_NoMemory();
    }
    char *frame = (char *)(((uintptr_t)memory + 63) & ~(uintptr_t)63);
    memcpy(frame, self->call.frame, (size_t)d->frame_bytes);
    patch_frame(d, frame, self->call.address, self->call.workspace, 1);
    failed = run_program(d, frame, self->call.address, self->call.workspace, self->stream);
    if (need > MOST_STACK) free(memory);
  }
  Py_DECREF(self);
  if (failed) return NULL;
  Py_RETURN_NONE;
}

static PyObject *bound_set_stream(Bound *self, PyObject *stream) {
  if (read_stream(stream, &self->stream)) return NULL;
  Py_RETURN_NONE;
}

static int bound_traverse(Bound *self, visitproc visit, void *arg) {
  Py_VISIT(self->dispatcher);
  for (int i = 0; self->memory && i < self->dispatcher->num_slots; ++i) {
    Py_VISIT(self->call.item[i]);
    Py_VISIT(self->call.keep[i]);
  }
  if (self->memory) Py_VISIT(self->call.keep_workspace);
  return 0;
}

static void bound_dealloc(Bound *self) {
  PyObject_GC_UnTrack(self);
  if (self->memory) release_call(self->dispatcher, &self->call);
  free(self->memory);
  Py_XDECREF(self->dispatcher);
  PyObject_GC_Del(self);
}

static PyMethodDef bound_methods[] = {
    {"set_stream", (PyCFunction)bound_set_stream, METH_O, "Launch on this stream from now on."}, {0}};
static PyMemberDef bound_members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Bound, vectorcall), READONLY, NULL}, {0}};
static PyTypeObject BoundType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fuseplan.runtime.dispatch.Bound",
    .tp_basicsize = sizeof(Bound),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "A program with its buffers; calling it checks nothing.",
    .tp_vectorcall_offset = offsetof(Bound, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_traverse = (traverseproc)bound_traverse,
    .tp_dealloc = (destructor)bound_dealloc,
    .tp_methods = bound_methods,
    .tp_members = bound_members,
};

static PyObject *dispatcher_bind(Dispatcher *d, PyObject *const *args, Py_ssize_t count) {
  void *stream;
  if (read_arguments(args, count, &stream)) return NULL;
  Bound *bound = PyObject_GC_New(Bound, &BoundType);
  if (!bound) return NULL;
  bound->vectorcall = (vectorcallfunc)bound_call;
  Py_INCREF(d);
  bound->dispatcher = d;
  bound->stream = stream;
  bound->memory = malloc(call_bytes(d));
  if (bound->memory) lay_out_call(d, &bound->call, bound->memory);
  int failed = !bound->memory || prepare(d, &bound->call, args[0], args[1]);
  PyObject_GC_Track(bound);
  if (!failed) return (PyObject *)bound;
  if (!bound->memory) PyErr_NoMemory();
  Py_DECREF(bound);
  return NULL;
}
