/* One call: its memory, the buffers of its pack, and all checks before anything is written. */
#include "dispatch.h"

/* Where a frame begins in memory that has 64 bytes more than it needs. */
char *align_frame(char *memory) { return (char *)(((uintptr_t)memory + 63) & ~(uintptr_t)63); }

static size_t num_objects(const Dispatcher *d) { return 2 * (size_t)d->num_slots + 1; }

size_t call_bytes(const Dispatcher *d) {
  return num_objects(d) * (sizeof(PyObject *) + sizeof(uint64_t)) + (size_t)d->frame_bytes + 64;
}

void lay_out_call(const Dispatcher *d, Call *c, char *memory) {
  c->frame = align_frame(memory);
  c->address = (uint64_t *)(c->frame + d->frame_bytes) + 1;
  c->local = c->address + d->num_slots;
  c->item = (PyObject **)(c->local + d->num_slots);
  c->keep = c->item + d->num_slots;
  c->address[-1] = 0;
  memset(c->item, 0, num_objects(d) * sizeof(PyObject *));
}

void release_call(const Dispatcher *d, Call *c) {
  for (size_t i = 0; i < num_objects(d); ++i) Py_XDECREF(c->item[i]);
}

int visit_call(const Dispatcher *d, Call *c, visitproc visit, void *arg) {
  for (size_t i = 0; i < num_objects(d); ++i) Py_VISIT(c->item[i]);
  return 0;
}

/* Buffer of each slot from a plain dict: 1 if all are there, 0 if `collect` must look, -1 on error. */
static int look_up(const Dispatcher *d, Call *c, PyObject *pack) {
  if (!PyDict_CheckExact(pack)) return 0;
  Py_ssize_t hits = 0;
  for (int i = 0; i < d->num_slots; ++i) {
    const Slot *slot = &d->slots[i];
    if (slot->value) continue;
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
  uint64_t *address = &c->address[-1];
  PyObject **keep = &c->keep[d->num_slots];
  if (d->workspace_bytes == 0) return 0;
  *address = quick_workspace(d, workspace);
  if (*address == 0) return take_answer(PyObject_CallOneArg(d->resolve_workspace, workspace), address, keep);
  Py_INCREF(workspace);
  *keep = workspace;
  return 0;
}

/* Ask `Writes.overlap` about buffers whose spans meet; it raises if they must not lie so. What it allowed once is
 * not asked again: an output in an input's place, and interleaved buffers (parts of a packed tensor), are usual. */
static int ask(Dispatcher *d, int first, int second, int64_t distance) {
  const int64_t pair[] = {first, second, distance};
  for (int k = 0; k < NUM_APART; ++k)
    if (memcmp(&d->apart[k], pair, sizeof pair) == 0) return 0;
  if (call_hook(d->overlap, "iiL", first, second, (long long)distance)) return -1;
  memcpy(&d->apart[d->next_apart], pair, sizeof pair);
  d->next_apart = (d->next_apart + 1) % NUM_APART;
  return 0;
}

#define MEET(a, a_bytes, b, b_bytes) ((a) < (b) + (uint64_t)(b_bytes) && (b) < (a) + (uint64_t)(a_bytes))

/* Refuse an output that shares memory with another buffer, unless it is an input of the same elements in place, and
 * a workspace that shares memory with any buffer. */
static int check_overlaps(Dispatcher *d, const Call *c) {
  const uint64_t *address = c->address;
  for (int i = 0; d->overlap != Py_None && i < d->num_slots; ++i) {
    const Slot *slot = &d->slots[i];
    if (slot->value) continue;
    if (d->workspace_bytes && MEET(address[i], slot->span, address[-1], d->workspace_bytes) && ask(d, i, -1, 0))
      return -1;
    for (int j = 0; slot->is_output && j < d->num_slots; ++j) {
      const Slot *other = &d->slots[j];
      if (j == i || other->value || (other->is_output && j < i)) continue;
      if (!MEET(address[i], slot->span, address[j], other->span)) continue;
      if (ask(d, i, j, (int64_t)(address[j] - address[i]))) return -1;
    }
  }
  return 0;
}

/* Tell autograd of the outputs whose writes it counts: by `Writes.tell_autograd`, which answers with PyTorch's own
 * function; that is called from then on, but not for `bind`, which has more to check. */
static int note_writes(const Dispatcher *d, const Call *c, int is_bound) {
  static PyObject *count;
  Py_ssize_t num_written = 0, next = 0;
  for (int i = 0; d->tell_autograd != Py_None && i < d->num_slots; ++i)
    num_written += d->slots[i].is_output && has_version(c->item[i]);
  if (!num_written) return 0;
  PyObject *answer, *written = PyTuple_New(num_written);
  for (int i = 0; written && i < d->num_slots; ++i)
    if (d->slots[i].is_output && has_version(c->item[i])) {
      Py_INCREF(c->item[i]);
      PyTuple_SET_ITEM(written, next++, c->item[i]);
    }
  if (count && !is_bound && written) answer = PyObject_CallOneArg(count, written);
  else answer = written ? PyObject_CallFunction(d->tell_autograd, "Oi", written, is_bound) : NULL;
  Py_XDECREF(written);
  if (!count && answer) count = answer;
  else Py_XDECREF(answer);
  return answer ? 0 : -1;
}

/* All checks of a call: nothing is written and nothing launched before this has succeeded. */
int prepare_call(Dispatcher *d, Call *c, PyObject *pack, PyObject *workspace, int is_bound) {
  if (collect(d, c, pack)) return -1;
  for (int i = 0; i < d->num_slots; ++i) {
    const Slot *slot = &d->slots[i];
    c->address[i] = slot->value ? (uint64_t)(uintptr_t)slot->value : quick_address(slot, c->item[i], &c->local[i]);
    if (c->address[i] == 0 &&
        take_answer(PyObject_CallFunction(d->resolve, "iO", i, c->item[i]), &c->address[i], &c->keep[i]))
      return -1;
  }
  if (resolve_workspace(d, c, workspace) || check_overlaps(d, c) || note_writes(d, c, is_bound)) return -1;
  memcpy(c->frame, d->image, (size_t)d->frame_bytes);
  return patch_frame(d, c->frame, c->address, 0);
}
