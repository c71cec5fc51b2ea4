/* One call: its memory, the buffers of its pack, and all checks before anything is written. */
#include "dispatch.h"

size_t call_bytes(const Dispatcher *d) {
  return (size_t)d->num_slots * (2 * sizeof(PyObject *) + 2 * sizeof(uint64_t)) + (size_t)d->frame_bytes + 64;
}

void lay_out_call(const Dispatcher *d, Call *c, char *memory) {
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

void release_call(const Dispatcher *d, Call *c) {
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

static int resolve_workspace(const Dispatcher *d, Call *c, PyObject *workspace) {
  if (d->workspace_bytes == 0) return 0;
  c->workspace = quick_workspace(d, workspace);
  if (c->workspace == 0)
    return take_answer(PyObject_CallOneArg(d->resolve_workspace, workspace), &c->workspace, &c->keep_workspace);
  Py_INCREF(workspace);
  c->keep_workspace = workspace;
  return 0;
}

/* All checks of a call: nothing is written and nothing launched before this has succeeded. */
int prepare_call(Dispatcher *d, Call *c, PyObject *pack, PyObject *workspace, int is_bound) {
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
  if (resolve_workspace(d, c, workspace) || check_overlaps(d, c) || note_writes(d, c, is_bound)) return -1;
  memcpy(c->frame, d->image, (size_t)d->frame_bytes);
  return patch_frame(d, c->frame, c->address, c->workspace, 0);
}
