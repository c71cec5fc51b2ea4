/* The module: making a `Dispatcher` from its description in tuples (native.py). */
#include "dispatch.h"

#include <structmember.h>

static int read_slot(Slot *slot, PyObject *tuple) {
  PyObject *types, *dim, *stride;
  const char *formats;
  long long span, alignment;
  if (!PyArg_ParseTuple(tuple, "OOOOsnLiipL(iO!O!)", &slot->keys, &slot->fallback, &slot->value, &types, &formats,
                        &slot->itemsize, &span, &slot->place, &slot->device_index, &slot->is_output, &alignment,
                        &slot->mapping, &PyTuple_Type, &dim, &PyTuple_Type, &stride))
    return -1;
  slot->has_value = slot->value != Py_None;
  slot->span = span;
  slot->alignment = alignment;
  strncpy(slot->formats, formats, sizeof slot->formats - 1);
  Py_ssize_t ndim = PyTuple_GET_SIZE(dim);
  slot->ndim = ndim > 0 && ndim <= MAX_RANK ? (int)ndim : -1;
  for (int i = 0; i < slot->ndim; ++i) {
    slot->dim[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(dim, i));
    slot->stride[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(stride, i));
  }
  slot->num_types = (int)PyTuple_GET_SIZE(types);
  if (slot->num_types > 4) slot->num_types = 4;
  for (int i = 0; i < slot->num_types; ++i) slot->types[i] = (uint32_t)PyLong_AsLong(PyTuple_GET_ITEM(types, i));
  return PyErr_Occurred() ? -1 : 0;
}

static int read_patch(Patch *p, PyObject *tuple) {
  long long addend;
  if (!PyArg_ParseTuple(tuple, "iniLni", &p->kind, &p->offset, &p->slot, &addend, &p->size, &p->map)) return -1;
  p->addend = addend;
  return 0;
}

static int read_attribute(Attribute *attribute, PyObject *tuple) {
  unsigned *value = attribute->value;
  return PyArg_ParseTuple(tuple, "iIII", &attribute->id, &value[0], &value[1], &value[2]) ? 0 : -1;
}

/* Where the entries of a step that are read next begin in the dispatcher's arrays. */
typedef struct {
  int patch, param, attribute;
} Cursor;

/* Read one step; its patches, parameters and attributes are appended to the dispatcher's arrays. */
static int read_step(Dispatcher *d, Step *step, PyObject *tuple, Cursor *at) {
  PyObject *patches, *params, *attributes;
  unsigned long long function;
  unsigned *c = step->config;
  if (!PyArg_ParseTuple(tuple, "iOnO!KO!(IIIIIII)(In)O(LiLLp)O!", &step->kind, &step->label, &step->block,
                        &PyTuple_Type, &patches, &function, &PyTuple_Type, &params, &c[0], &c[1], &c[2], &c[3], &c[4],
                        &c[5], &c[6], &step->memset_value, &step->memset_words, &step->call, &step->num_tasks,
                        &step->num_threads, &step->scratch_at, &step->thread_bytes, &step->is_quick, &PyTuple_Type,
                        &attributes))
    return -1;
  step->function = (void *)(uintptr_t)function;
  step->first_patch = at->patch;
  step->num_patches = (int)PyTuple_GET_SIZE(patches);
  step->first_param = at->param;
  step->num_params = (int)PyTuple_GET_SIZE(params);
  step->first_attribute = at->attribute;
  step->num_attributes = (int)PyTuple_GET_SIZE(attributes);
  if (step->num_params > d->most_params) d->most_params = step->num_params;
  for (int i = 0; i < step->num_patches; ++i)
    if (read_patch(&d->patches[at->patch++], PyTuple_GET_ITEM(patches, i))) return -1;
  for (int i = 0; i < step->num_params; ++i)
    d->params[at->param++] = PyLong_AsSsize_t(PyTuple_GET_ITEM(params, i));
  for (int i = 0; i < step->num_attributes; ++i)
    if (read_attribute(&d->attributes[at->attribute++], PyTuple_GET_ITEM(attributes, i))) return -1;
  return PyErr_Occurred() ? -1 : 0;
}

static int read_map(TensorMap *map, PyObject *tuple) {
  PyObject *dims, *strides, *box, *steps;
  long long addend, second_addend;
  int *n = map->numbers;
  if (!PyArg_ParseTuple(tuple, "O(iiiii)(iL)(iL)nO!O!O!O!", &map->label, &n[0], &n[1], &n[2], &n[3], &n[4],
                        &map->slot, &addend, &map->second, &second_addend, &map->swap_offset, &PyTuple_Type, &dims, &PyTuple_Type, &strides, &PyTuple_Type, &box,
                        &PyTuple_Type, &steps))
    return -1;
  map->addend = addend;
  map->second_addend = second_addend;
  map->rank = (int)PyTuple_GET_SIZE(dims);
  for (int i = 0; i < map->rank; ++i) {
    map->dims[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(dims, i));
    map->box[i] = (uint32_t)PyLong_AsUnsignedLong(PyTuple_GET_ITEM(box, i));
    map->steps[i] = (uint32_t)PyLong_AsUnsignedLong(PyTuple_GET_ITEM(steps, i));
    if (i < map->rank - 1) map->strides[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(strides, i));
  }
  return PyErr_Occurred() ? -1 : 0;
}

static int read_driver(Driver *driver, PyObject *addresses) {
  unsigned long long a[6];
  if (!PyArg_ParseTuple(addresses, "KKKKKK", &a[0], &a[1], &a[2], &a[3], &a[4], &a[5])) return -1;
  memcpy(&driver->launch, &a[0], sizeof(void *));
  memcpy(&driver->memset32, &a[1], sizeof(void *));
  memcpy(&driver->get_context, &a[2], sizeof(void *));
  memcpy(&driver->set_context, &a[3], sizeof(void *));
  driver->context = (void *)(uintptr_t)a[4];
  memcpy(&driver->encode, &a[5], sizeof(void *));
  return 0;
}

static int allocate(Dispatcher *d, PyObject *slots, PyObject *steps, PyObject *maps, PyObject *image) {
  size_t num_patches = 0, num_params = 0, num_attributes = 0;
  d->num_slots = (int)PyTuple_GET_SIZE(slots);
  d->num_steps = (int)PyTuple_GET_SIZE(steps);
  for (int i = 0; i < d->num_steps; ++i) {
    PyObject *step = PyTuple_GET_ITEM(steps, i);
    num_patches += (size_t)PyTuple_GET_SIZE(PyTuple_GET_ITEM(step, 3));
    num_params += (size_t)PyTuple_GET_SIZE(PyTuple_GET_ITEM(step, 5));
    num_attributes += (size_t)PyTuple_GET_SIZE(PyTuple_GET_ITEM(step, 10));
  }
  d->frame_bytes = (PyBytes_GET_SIZE(image) + 7) & ~(Py_ssize_t)7;
  d->slots = calloc((size_t)d->num_slots + 1, sizeof(Slot));
  d->steps = calloc((size_t)d->num_steps + 1, sizeof(Step));
  d->patches = calloc(num_patches + 1, sizeof(Patch));
  d->params = calloc(num_params + 1, sizeof(Py_ssize_t));
  d->attributes = calloc(num_attributes + 1, sizeof(Attribute));
  d->maps = calloc((size_t)PyTuple_GET_SIZE(maps) + 1, sizeof(TensorMap));
  d->image = calloc((size_t)d->frame_bytes + 1, 1);
  if (!d->slots || !d->steps || !d->patches || !d->params || !d->attributes || !d->maps || !d->image) {
    PyErr_NoMemory();
    return -1;
  }
  memcpy(d->image, PyBytes_AS_STRING(image), (size_t)PyBytes_GET_SIZE(image));
  return 0;
}

static PyObject *dispatcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  unsigned long long run_team;
  PyObject *slots, *steps, *maps, *image, *driver, *hooks;
  long long workspace_bytes, workspace_alignment, workspace_slack;
  Cursor at = {0, 0, 0};
  (void)kwargs;
  Dispatcher *d = (Dispatcher *)type->tp_alloc(type, 0);
  if (!d) return NULL;
  if (!PyArg_ParseTuple(args, "O!O!O!S(LLL)pipOO!O(Kp)", &PyTuple_Type, &slots, &PyTuple_Type, &steps, &PyTuple_Type, &maps,
                        &image, &workspace_bytes, &workspace_alignment, &workspace_slack, &d->on_gpu, &d->device_index, &d->rereads,
                        &driver, &PyTuple_Type, &hooks, &d->known, &run_team, &d->follows_torch) ||
      !PyArg_ParseTuple(hooks, "OOOOOOOO", &d->collect, &d->resolve, &d->resolve_workspace, &d->fail, &d->fail_host,
                        &d->fail_map, &d->overlap, &d->tell_autograd))
    goto failed;
  Py_INCREF(args);
  d->description = args;
  d->workspace_bytes = workspace_bytes;
  d->workspace_alignment = workspace_alignment;
  memcpy(&d->run_team, &run_team, sizeof(void *));
  d->workspace_slack = workspace_slack;
  d->uses_driver = driver != Py_None;
  if ((d->uses_driver && read_driver(&d->driver, driver)) || allocate(d, slots, steps, maps, image)) goto failed;
  for (int i = 0; i < d->num_slots; ++i)
    if (read_slot(&d->slots[i], PyTuple_GET_ITEM(slots, i))) goto failed;
  for (int i = 0; i < d->num_steps; ++i)
    if (read_step(d, &d->steps[i], PyTuple_GET_ITEM(steps, i), &at)) goto failed;
  for (int i = 0; i < PyTuple_GET_SIZE(maps); ++i)
    if (read_map(&d->maps[i], PyTuple_GET_ITEM(maps, i))) goto failed;
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
  free(d->attributes);
  free(d->maps);
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
static PyMemberDef dispatcher_members[] = {
    {"num_encodes", T_LONGLONG, offsetof(Dispatcher, num_encodes), READONLY, "Tensor maps encoded so far."}, {0}};
static PyTypeObject DispatcherType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fuseplan.runtime.dispatch.Dispatcher",
    .tp_basicsize = sizeof(Dispatcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Runs one program.",
    .tp_new = dispatcher_new,
    .tp_traverse = (traverseproc)dispatcher_traverse,
    .tp_dealloc = (destructor)dispatcher_dealloc,
    .tp_methods = dispatcher_methods,
    .tp_members = dispatcher_members,
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
