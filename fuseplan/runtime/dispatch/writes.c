/* What a call is about to write: no part of another of its buffers, and autograd is told. */
#include "dispatch.h"

/* Ask `Writes.overlap` about buffers whose spans meet; it raises if they have an element in common. What it found
 * apart once is not asked again: interleaved buffers (parts of a packed tensor) are usual. */
static int ask(Dispatcher *d, int first, int second, int64_t distance) {
  for (int k = 0; k < NUM_APART; ++k)
    if (d->apart[k].first == first && d->apart[k].second == second && d->apart[k].distance == distance) return 0;
  PyObject *answer = PyObject_CallFunction(d->overlap, "iiL", first, second, (long long)distance);
  if (!answer) return -1;
  Py_DECREF(answer);
  d->apart[d->next_apart].first = first;
  d->apart[d->next_apart].second = second;
  d->apart[d->next_apart].distance = distance;
  d->next_apart = (d->next_apart + 1) % NUM_APART;
  return 0;
}

#define MEET(a, a_bytes, b, b_bytes) ((a) < (b) + (uint64_t)(b_bytes) && (b) < (a) + (uint64_t)(a_bytes))

/* Refuse an output that shares memory with another buffer, unless it is an input of the same elements in place, and
 * a workspace that shares memory with any buffer. */
int check_overlaps(Dispatcher *d, const Call *c) {
  const uint64_t *address = c->address;
  for (int i = 0; d->overlap != Py_None && i < d->num_slots; ++i) {
    const Slot *slot = &d->slots[i];
    if (slot->has_value) continue;
    if (d->workspace_bytes && MEET(address[i], slot->span, c->workspace, d->workspace_bytes) && ask(d, i, -1, 0))
      return -1;
    for (int j = 0; slot->is_output && j < d->num_slots; ++j) {
      const Slot *other = &d->slots[j];
      if (j == i || other->has_value || (other->is_output && j < i)) continue;
      if (!MEET(address[i], slot->span, address[j], other->span)) continue;
      if (address[i] == address[j] && slot->mapping == other->mapping && !other->is_output) continue;
      if (ask(d, i, j, (int64_t)(address[j] - address[i]))) return -1;
    }
  }
  return 0;
}

/* Tell autograd of the outputs whose writes it counts: by `Writes.tell_autograd`, which answers with PyTorch's own
 * function; that is called from then on, but not for `bind`, which has more to check. */
int note_writes(const Dispatcher *d, const Call *c, int is_bound) {
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
