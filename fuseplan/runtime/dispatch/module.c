/* The module: making a `Dispatcher` from its description in tuples (native.py). */
#include "dispatch.h"

static int read_slot(Slot *slot, PyObject *tuple) {
  PyObject *types;
  const char *formats;
  long long span, alignment;
  if (!PyArg_ParseTuple(tuple, "OOOOsnLiipL", &slot->keys, &slot->fallback, &slot->value, &types, &formats,
                        &slot->itemsize, &span, &slot->place, &slot->device_index, &slot->is_output, &alignment))
    return -1;
  slot->has_value = slot->value != Py_None;
  slot->span = span;
  slot->alignment = alignment;
  strncpy(slot->formats, formats, sizeof slot->formats - 1);
  slot->num_types = (int)PyTuple_GET_SIZE(types);
  if (slot->num_types > 4) slot->num_types = 4;
  for (int i = 0; i < slot->num_types; ++i) slot->types[i] = (uint32_t)PyLong_AsLong(PyTuple_GET_ITEM(types, i));
  return PyErr_Occurred() ? -1 : 0;
}

/* Read one step; its patches and parameters are appended to the dispatcher's arrays. */
static int read_step(Dispatcher *d, Step *step, PyObject *tuple, int *num_params) {
  PyObject *patches, *params;
  unsigned long long function;
  unsigned *c = step->config;
  if (!PyArg_ParseTuple(tuple, "iOnO!KO!(IIIIIII)(In)O(LiLL)", &step->kind, &step->label, &step->block, &PyTuple_Type,
                        &patches, &function, &PyTuple_Type, &params, &c[0], &c[1], &c[2], &c[3], &c[4], &c[5], &c[6],
                        &step->memset_value, &step->memset_words, &step->call, &step->num_tasks,
                        &step->num_threads, &step->scratch_at, &step->thread_bytes))
    return -1;
  step->function = (void *)(uintptr_t)function;
  step->first_patch = d->num_patches;
  step->num_patches = (int)PyTuple_GET_SIZE(patches);
  step->first_param = *num_params;
  step->num_params = (int)PyTuple_GET_SIZE(params);
  if (step->num_params > d->most_params) d->most_params = step->num_params;
  for (int i = 0; i < step->num_patches; ++i) {
    Patch *p = &d->patches[d->num_patches++];
    long long addend;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(patches, i), "iniLn", &p->kind, &p->offset, &p->slot, &addend, &p->size))
      return -1;
    p->addend = addend;
  }
  for (int i = 0; i < step->num_params; ++i)
    d->params[(*num_params)++] = PyLong_AsSsize_t(PyTuple_GET_ITEM(params, i));
  return PyErr_Occurred() ? -1 : 0;
}

static int read_driver(Driver *driver, PyObject *addresses) {
  unsigned long long a[5];
  if (!PyArg_ParseTuple(addresses, "KKKKK", &a[0], &a[1], &a[2], &a[3], &a[4])) return -1;
  memcpy(&driver->launch, &a[0], sizeof(void *));
  memcpy(&driver->memset32, &a[1], sizeof(void *));
  memcpy(&driver->get_context, &a[2], sizeof(void *));
  memcpy(&driver->set_context, &a[3], sizeof(void *));
  driver->context = (void *)(uintptr_t)a[4];
  return 0;
}

static int allocate(Dispatcher *d, PyObject *slots, PyObject *steps, PyObject *image) {
  size_t num_patches = 0, num_params = 0;
  d->num_slots = (int)PyTuple_GET_SIZE(slots);
  d->num_steps = (int)PyTuple_GET_SIZE(steps);
  for (int i = 0; i < d->num_steps; ++i) {
    PyObject *step = PyTuple_GET_ITEM(steps, i);
    num_patches += (size_t)PyTuple_GET_SIZE(PyTuple_GET_ITEM(step, 3));
    num_params += (size_t)PyTuple_GET_SIZE(PyTuple_GET_ITEM(step, 5));
  }
  d->frame_bytes = (PyBytes_GET_SIZE(image) + 7) & ~(Py_ssize_t)7;
  d->slots = calloc((size_t)d->num_slots + 1, sizeof(Slot));
  d->steps = calloc((size_t)d->num_steps + 1, sizeof(Step));
  d->patches = calloc(num_patches + 1, sizeof(Patch));
  d->params = calloc(num_params + 1, sizeof(Py_ssize_t));
  d->image = calloc((size_t)d->frame_bytes + 1, 1);
  if (!d->slots || !d->steps || !d->patches || !d->params || !d->image) {
    PyErr_NoMemory();
    return -1;
  }
  memcpy(d->image, PyBytes_AS_STRING(image), (size_t)PyBytes_GET_SIZE(image));
  return 0;
}

static PyObject *dispatcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  PyObject *slots, *steps, *image, *driver, *hooks;
  unsigned long long run_team;
  long long workspace_bytes, workspace_alignment;
  int num_params = 0;
  (void)kwargs;
  Dispatcher *d = (Dispatcher *)type->tp_alloc(type, 0);
  if (!d) return NULL;
  if (!PyArg_ParseTuple(args, "O!O!SLLpipOO!O(Kp)", &PyTuple_Type, &slots, &PyTuple_Type, &steps, &image, &workspace_bytes,
                        &workspace_alignment, &d->on_gpu, &d->device_index, &d->rereads, &driver, &PyTuple_Type, &hooks, &d->known, &run_team, &d->follows_torch) ||
      !PyArg_ParseTuple(hooks, "OOOOO", &d->collect, &d->resolve, &d->resolve_workspace, &d->fail, &d->fail_host))
    goto failed;
  Py_INCREF(args);
  d->description = args;
  d->workspace_bytes = workspace_bytes;
  d->workspace_alignment = workspace_alignment;
  memcpy(&d->run_team, &run_team, sizeof(void *));
  d->uses_driver = driver != Py_None;
  if ((d->uses_driver && read_driver(&d->driver, driver)) || allocate(d, slots, steps, image)) goto failed;
  for (int i = 0; i < d->num_slots; ++i)
    if (read_slot(&d->slots[i], PyTuple_GET_ITEM(slots, i))) goto failed;
  for (int i = 0; i < d->num_steps; ++i)
    if (read_step(d, &d->steps[i], PyTuple_GET_ITEM(steps, i), &num_params)) goto failed;
  return (PyObject *)d;
failed:
  Py_DECREF(d);
  return NULL;
}

/* No tp_clear: a cycle through a graph is broken at the graph's own containers, and a dispatcher
 * never loses what it borrows while it can still be called. */
static int dispatcher_traverse(Dispatcher *d, visitproc visit, void *arg) {
  Py_VISIT(d->description);
  return 0;
}

static void dispatcher_dealloc(Dispatcher *d) {
  PyObject_GC_UnTrack(d);
  free(d->slots);
  free(d->steps);
  free(d->patches);
  free(d->params);
  free(d->image);
  Py_XDECREF(d->description);
  Py_TYPE(d)->tp_free((PyObject *)d);
}

static PyMethodDef dispatcher_methods[] = {
    {"execute", (PyCFunction)(void (*)(void))dispatcher_execute, METH_FASTCALL,
     "execute(pack, workspace, stream): check all buffers, then run."},
    {"bind", (PyCFunction)(void (*)(void))dispatcher_bind, METH_FASTCALL,
     "bind(pack, workspace, stream) -> Bound: check once, for calls that check nothing."},
    {0}};
static PyTypeObject DispatcherType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fuseplan.runtime.dispatch.Dispatcher",
    .tp_basicsize = sizeof(Dispatcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Runs one program.",
    .tp_new = dispatcher_new,
    .tp_traverse = (traverseproc)dispatcher_traverse,
    .tp_dealloc = (destructor)dispatcher_dealloc,
    .tp_methods = dispatcher_methods,
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, .m_name = "fuseplan_dispatch", .m_doc = "Native dispatcher of fuseplan.", .m_size = -1};

PyMODINIT_FUNC PyInit_fuseplan_dispatch(void) {
  if (PyType_Ready(&DispatcherType) < 0 || ready_bound_type() < 0) return NULL;
  PyObject *module = PyModule_Create(&module_definition);
  if (!module) return NULL;
  Py_INCREF(&DispatcherType);
  if (PyModule_AddObject(module, "Dispatcher", (PyObject *)&DispatcherType) < 0) return NULL;
  return module;
}
