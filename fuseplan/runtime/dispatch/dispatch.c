/* What is called from Python: `Dispatcher.execute`, `Dispatcher.bind` and the type `Bound`; the module. */
#include "dispatch.h"

#include <alloca.h>
#include <structmember.h>

#define MOST_STACK 32768 /* bytes of a call's own memory that are taken from the stack */

typedef struct {
  PyObject_HEAD
  PyObject *description; /* what native.py made: all memory and objects that the program points to */
  Dispatcher *program;
} DispatcherObject;

typedef struct {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  DispatcherObject *dispatcher;
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

static PyObject *dispatcher_execute(DispatcherObject *self, PyObject *const *args, Py_ssize_t count) {
  Call c;
  void *stream;
  Dispatcher *d = self->program;
  if (read_arguments(args, count, &stream)) return NULL;
  size_t need = call_bytes(d);
  char *memory = need <= MOST_STACK ? alloca(need) : malloc(need);
  if (!memory) return PyErr_NoMemory();
  lay_out_call(d, &c, memory);
  Py_INCREF(self); /* a program's own functions may drop the last other reference */
  int failed = prepare_call(d, &c, args[0], args[1], 0) || run_program(d, c.frame, c.address, stream);
  release_call(d, &c);
  if (need > MOST_STACK) free(memory);
  Py_DECREF(self);
  if (failed) return NULL;
  Py_RETURN_NONE;
}

static PyObject *bound_call(Bound *self, PyObject *const *args, size_t flags, PyObject *names) {
  (void)args;
  Dispatcher *d = self->dispatcher->program;
  if (PyVectorcall_NARGS(flags) || (names && PyTuple_GET_SIZE(names))) {
    PyErr_SetString(PyExc_TypeError, "a bound plan takes no arguments");
    return NULL;
  }
  int failed;
  Py_INCREF(self);
  if (!d->rereads) {
    failed = run_program(d, self->call.frame, self->call.address, self->stream);
  } else { /* own copy of the blocks: another thread may call with other scalars meanwhile */
    size_t need = (size_t)d->frame_bytes + 64;
    char *memory = need <= MOST_STACK ? alloca(need) : malloc(need);
    if (!memory) {
      Py_DECREF(self);
      return PyErr_NoMemory();
    }
    char *frame = align_frame(memory);
    memcpy(frame, self->call.frame, (size_t)d->frame_bytes);
    failed = patch_frame(d, frame, self->call.address, 1) || run_program(d, frame, self->call.address, self->stream);
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
  if (self->memory) return visit_call(self->dispatcher->program, &self->call, visit, arg);
  return 0;
}

static void bound_dealloc(Bound *self) {
  PyObject_GC_UnTrack(self);
  if (self->memory) release_call(self->dispatcher->program, &self->call);
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

static PyObject *dispatcher_bind(DispatcherObject *self, PyObject *const *args, Py_ssize_t count) {
  void *stream;
  Dispatcher *d = self->program;
  if (read_arguments(args, count, &stream)) return NULL;
  Bound *bound = PyObject_GC_New(Bound, &BoundType);
  if (!bound) return NULL;
  bound->vectorcall = (vectorcallfunc)bound_call;
  Py_INCREF(self);
  bound->dispatcher = self;
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

/* No tp_clear: a cycle through a graph is broken at the graph's own containers, and a dispatcher
 * never loses what it borrows while it can still be called. */
static int dispatcher_traverse(DispatcherObject *self, visitproc visit, void *arg) {
  Py_VISIT(self->description);
  return 0;
}

static void dispatcher_dealloc(DispatcherObject *self) {
  PyObject_GC_UnTrack(self);
  Py_XDECREF(self->description);
  Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Takes the memory of a `Dispatcher`, and a tuple of all that it points to. */
static PyObject *dispatcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  PyObject *program, *rest;
  (void)kwargs;
  if (!PyArg_ParseTuple(args, "YO!", &program, &PyTuple_Type, &rest)) return NULL;
  DispatcherObject *self = (DispatcherObject *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  Py_INCREF(args);
  self->description = args;
  self->program = (Dispatcher *)PyByteArray_AS_STRING(program);
  return (PyObject *)self;
}

static PyObject *get_num_encodes(DispatcherObject *self, void *unused) {
  (void)unused;
  return PyLong_FromLongLong(self->program->num_encodes);
}

static PyMethodDef dispatcher_methods[] = {
    {"execute", (PyCFunction)(void (*)(void))dispatcher_execute, METH_FASTCALL,
     "execute(pack, workspace, stream): check all buffers, then run."},
    {"bind", (PyCFunction)(void (*)(void))dispatcher_bind, METH_FASTCALL,
     "bind(pack, workspace, stream) -> Bound: check once, for calls that check nothing."},
    {0}};
static PyGetSetDef dispatcher_fields[] = {
    {"num_encodes", (getter)get_num_encodes, NULL, "Tensor maps encoded so far.", NULL}, {0}};
static PyTypeObject DispatcherType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fuseplan.runtime.dispatch.Dispatcher",
    .tp_basicsize = sizeof(DispatcherObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Runs one program.",
    .tp_new = dispatcher_new,
    .tp_traverse = (traverseproc)dispatcher_traverse,
    .tp_dealloc = (destructor)dispatcher_dealloc,
    .tp_methods = dispatcher_methods,
    .tp_getset = dispatcher_fields,
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, .m_name = "fuseplan_dispatch", .m_doc = "Native dispatcher of fuseplan.", .m_size = -1};

PyMODINIT_FUNC PyInit_fuseplan_dispatch(void) {
  if (PyType_Ready(&DispatcherType) < 0 || PyType_Ready(&BoundType) < 0) return NULL;
  PyObject *module = PyModule_Create(&module_definition);
  if (!module) return NULL;
  Py_INCREF(&DispatcherType);
  if (PyModule_AddObject(module, "Dispatcher", (PyObject *)&DispatcherType) < 0) return NULL;
  PyObject *sizes = Py_BuildValue("nnnnnn", sizeof(Dispatcher), sizeof(Slot), sizeof(Step), sizeof(Patch),
                                  sizeof(TensorMap), sizeof(Attribute));
  return sizes && PyModule_AddObject(module, "sizes", sizes) == 0 ? module : NULL;
}
