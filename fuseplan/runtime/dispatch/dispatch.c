/* What is called from Python: `Dispatcher.execute`, `Dispatcher.bind` and the type `Bound`. */
#include "dispatch.h"

#include <alloca.h>
#include <structmember.h>

#define MOST_STACK 32768 /* bytes of a call's own memory that are taken from the stack */

typedef struct {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Dispatcher *dispatcher;
  void *stream, *memory;
  Call call;
} Bound;

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

PyObject *dispatcher_execute(Dispatcher *d, PyObject *const *args, Py_ssize_t count) {
  Call c;
  void *stream;
  if (read_arguments(args, count, &stream)) return NULL;
  size_t need = call_bytes(d);
  char *memory = need <= MOST_STACK ? alloca(need) : malloc(need);
  if (!memory) return PyErr_NoMemory();
  lay_out_call(d, &c, memory);
  Py_INCREF(d); /* a program's own functions may drop the last other reference */
  int failed = prepare_call(d, &c, args[0], args[1], 0) || run_program(d, c.frame, c.address, c.workspace, stream);
  release_call(d, &c);
  if (need > MOST_STACK) free(memory);
  Py_DECREF(d);
  if (failed) return NULL;
  Py_RETURN_NONE;
}

static PyObject *bound_call(Bound *self, PyObject *const *args, size_t flags, PyObject *names) {
  (void)args;
  Dispatcher *d = self->dispatcher;
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
    failed = patch_frame(d, frame, self->call.address, self->call.workspace, 1) ||
             run_program(d, frame, self->call.address, self->call.workspace, self->stream);
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

PyObject *dispatcher_bind(Dispatcher *d, PyObject *const *args, Py_ssize_t count) {
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
  int failed = !bound->memory || prepare_call(d, &bound->call, args[0], args[1], 1);
  PyObject_GC_Track(bound);
  if (!failed) return (PyObject *)bound;
  if (!bound->memory) PyErr_NoMemory();
  Py_DECREF(bound);
  return NULL;
}

int ready_bound_type(void) { return PyType_Ready(&BoundType); }
