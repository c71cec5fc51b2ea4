/* Buffers as the dispatcher sees them: from an object to an address.
 *
 * Only plain cases are decided here. Everything else, and every refusal, goes to `Binder.resolve`
 * (binding.py), so that both dispatchers accept the same buffers and use the same words. */
#include "dispatch.h"

enum { DL_CPU = 1, DL_CUDA = 2, DL_PINNED = 3, DL_MANAGED = 13 };

/* DLPack's C structures, version 1. */
typedef struct {
  void *data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} DLTensor;

typedef int (*DLTensorOf)(void *object, DLTensor *out);

typedef struct {
  uint32_t major, minor;
  void *previous;
  void *allocate, *managed_from_object, *managed_to_object;
  DLTensorOf tensor_of;
  void *current_stream;
} DLExchange;

/* What is known of a type: how to see its objects. */
typedef struct {
  PyTypeObject *type;
  DLTensorOf tensor_of;
  int is_ndarray, has_version;
} Kind;

#define MAX_KINDS 16
static Kind kinds[MAX_KINDS];
static int num_kinds;

static DLTensorOf exchange_of(PyTypeObject *type) {
  static const char *const names[] = {"__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__"};
  for (int i = 0; i < 2; ++i) {
    /* A subclass may change what its memory means; only the class that states the protocol, and
     * parameters, are taken at its word. */
    PyObject *own = PyObject_GetAttrString((PyObject *)type, "__dict__");
    int stated = own && PyMapping_HasKeyString(own, names[i]);
    Py_XDECREF(own);
    if (!stated && strcmp(type->tp_name, "Parameter") != 0) continue;
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, names[i]);
    DLExchange *api = NULL;
    if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
      api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_XDECREF(capsule);
    PyErr_Clear();
    if (api && api->major == 1 && api->tensor_of) return api->tensor_of;
  }
  PyErr_Clear();
  return NULL;
}

static Kind kind_of(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  for (int i = 0; i < num_kinds; ++i)
    if (kinds[i].type == type) return kinds[i];
  Kind kind = {type, exchange_of(type), strcmp(type->tp_name, "numpy.ndarray") == 0,
               PyObject_HasAttrString((PyObject *)type, "_version") &&
                   PyObject_HasAttrString((PyObject *)type, "requires_grad")};
  if (num_kinds < MAX_KINDS) {
    Py_INCREF(type);
    kinds[num_kinds++] = kind;
  }
  return kind;
}

/* Whether autograd counts the writes to a buffer, as `Writes.tell_autograd`. */
int has_version(PyObject *object) { return kind_of(object).has_version; }

/* Whether a buffer has the slot's dims in order, but other strides on an axis longer than 1; `unit` is the size of an
 * element in the unit of its strides. */
static int has_other_strides(const Slot *slot, int ndim, const int64_t *dim, const int64_t *stride, int64_t unit) {
  int differs = 0;
  int64_t dense = unit;
  if (ndim != slot->ndim) return 0;
  for (int i = ndim - 1; i >= 0; --i) {
    if (dim[i] != slot->dim[i]) return 0;
    if (dim[i] > 1) differs |= (stride ? stride[i] : dense) != slot->stride[i] * unit;
    dense *= dim[i];
  }
  return differs;
}

/* Bytes from the first element to past the farthest one, as `buffers.span_bytes`. */
static int64_t span_of(const DLTensor *t) {
  int64_t last = 0, dense = 1;
  for (int i = t->ndim - 1; i >= 0; --i) {
    int64_t stride = t->strides ? t->strides[i] : dense;
    if (t->shape[i] == 0) return 0;
    if (stride > 0) last += (t->shape[i] - 1) * stride;
    dense *= t->shape[i];
  }
  return ((last + 1) * t->bits * t->lanes + 7) / 8;
}

/* Whether a tensor of this span leaves bytes out. */
static int has_gaps(const DLTensor *t, int64_t span) {
  int64_t bits = t->bits * t->lanes;
  for (int i = 0; i < t->ndim; ++i)
    if (!t->strides || t->strides[i] != 0) bits *= t->shape[i];
  return bits / 8 < span;
}

static int is_row_major(const DLTensor *t) {
  int64_t expected = 1;
  for (int i = t->ndim - 1; i >= 0; --i) {
    if (t->shape[i] != 1 && t->strides && t->strides[i] != expected) return 0;
    expected *= t->shape[i];
  }
  return 1;
}

static int is_at(const DLTensor *t, int place, int device_index) {
  if (t->device_type == DL_MANAGED) return 1;
  if (place == PLACE_CUDA) return t->device_type == DL_CUDA && t->device_id == device_index;
  return t->device_type == DL_CPU || t->device_type == DL_PINNED;
}

/* A tensor without an axis of stride 1 may be a lazily negated view (the imaginary part of a conjugate),
 * which DLPack does not show. */
static int may_be_negated(const DLTensor *t, PyObject *object) {
  static PyObject *name;
  for (int i = 0; i < t->ndim; ++i)
    if (t->shape[i] > 1 && (!t->strides || t->strides[i] == 1)) return 0;
  if (!name && !(name = PyUnicode_InternFromString("is_neg"))) return 1;
  PyObject *answer = PyObject_CallMethodNoArgs(object, name);
  int negated = answer != Py_False && answer;
  Py_XDECREF(answer);
  PyErr_Clear(); /* another library's tensor, without such views */
  return negated;
}

static uint64_t address_of(const DLTensor *t) { return (uint64_t)(uintptr_t)t->data + t->byte_offset; }

/* Address of a tensor that fits the slot, or 0. */
static uint64_t from_tensor(const Slot *slot, DLTensorOf tensor_of, PyObject *object) {
  DLTensor t;
  if (tensor_of(object, &t) != 0) {
    PyErr_Clear();
    return 0;
  }
  uint32_t type = t.code | (uint32_t)t.bits << 8;
  int fits = 0;
  for (int i = 0; i < slot->num_types; ++i) fits |= slot->types[i] == type;
  if (!fits || t.lanes != 1 || !is_at(&t, slot->place, slot->device_index)) return 0;
  int64_t span = span_of(&t);
  if (span < slot->span || (span > slot->span && has_gaps(&t, span))) return 0;
  if (has_other_strides(slot, t.ndim, t.shape, t.strides, 1) || may_be_negated(&t, object)) return 0;
  return address_of(&t);
}

/* Address of a numpy array that fits the slot, or 0. */
static uint64_t from_ndarray(const Slot *slot, PyObject *object) {
  Py_buffer view;
  int flags = PyBUF_STRIDES | PyBUF_FORMAT | (slot->is_output ? PyBUF_WRITABLE : 0);
  if (slot->place == PLACE_CUDA) return 0;
  if (PyObject_GetBuffer(object, &view, flags) != 0) {
    PyErr_Clear();
    return 0;
  }
  int64_t last = view.itemsize, bytes = view.itemsize;
  for (int i = 0; i < view.ndim; ++i) {
    if (view.shape[i] == 0) last = -1;
    if (view.strides[i] != 0) bytes *= view.shape[i];
    if (view.strides[i] > 0 && last > 0) last += (view.shape[i] - 1) * view.strides[i];
  }
  int fits = view.format && view.format[0] && !view.format[1] && strchr(slot->formats, view.format[0]) &&
             view.itemsize == slot->itemsize && last >= slot->span && (last == slot->span || bytes >= last) &&
             !has_other_strides(slot, view.ndim, (const int64_t *)view.shape, (const int64_t *)view.strides, view.itemsize);
  uint64_t address = fits ? (uint64_t)(uintptr_t)view.buf : 0;
  PyBuffer_Release(&view); /* the caller holds the array, and an array does not move */
  return address;
}

/* Address of the number of a Python float, stored in `local`, or 0. */
static uint64_t from_float(const Slot *slot, PyObject *object, uint64_t *local) {
  double number = PyFloat_AS_DOUBLE(object);
  if (slot->span > slot->itemsize) return 0;
  if (slot->formats[0] == 'f') {
    float single = (float)number;
    memcpy(local, &single, sizeof single);
  } else if (slot->formats[0] == 'd') {
    memcpy(local, &number, sizeof number);
  } else {
    return 0;
  }
  return (uint64_t)(uintptr_t)local;
}

/* Address of a buffer by the plain rules, or 0 where `Binder.resolve` must decide. */
uint64_t quick_address(const Slot *slot, PyObject *object, uint64_t *local) {
  uint64_t address = 0;
  if (PyLong_CheckExact(object)) {
    address = PyLong_AsUnsignedLongLong(object);
    if (PyErr_Occurred()) {
      PyErr_Clear();
      return 0;
    }
    if (!IS_ADDRESS(address)) return 0;
  } else if (PyFloat_CheckExact(object)) {
    return slot->place == PLACE_HOST ? from_float(slot, object, local) : 0;
  } else {
    Kind kind = kind_of(object);
    if (kind.tensor_of) address = from_tensor(slot, kind.tensor_of, object);
    else if (kind.is_ndarray) address = from_ndarray(slot, object);
  }
  return address % (uint64_t)slot->alignment ? 0 : address;
}

/* Address of a workspace by the plain rules, or 0 where `Binder.resolve_workspace` must decide. */
uint64_t quick_workspace(const Dispatcher *d, PyObject *object) {
  uint64_t address = 0;
  if (PyLong_CheckExact(object)) {
    address = PyLong_AsUnsignedLongLong(object);
    if (PyErr_Occurred() || !IS_ADDRESS(address)) address = 0;
  } else {
    DLTensor t;
    DLTensorOf tensor_of = kind_of(object).tensor_of;
    if (tensor_of && tensor_of(object, &t) == 0 && is_row_major(&t) && span_of(&t) >= d->workspace_bytes &&
        is_at(&t, d->on_gpu ? PLACE_CUDA : PLACE_CPU, d->device_index))
      address = address_of(&t);
  }
  PyErr_Clear();
  uint64_t skipped = (0 - address) % (uint64_t)d->workspace_alignment;
  return address == 0 || skipped > (uint64_t)d->workspace_slack ? 0 : address + skipped;
}
