/* Buffers as the dispatcher sees them: from an object to an address.
 *
 * Only plain cases are decided here. Everything else, and every refusal, goes to `Binder.resolve`
 * (binding.py), so that both dispatchers accept the same buffers and use the same words. */
#include "dispatch.h"

enum { DL_CPU = 1, DL_CUDA = 2, DL_PINNED = 3, DL_MANAGED = 13 };
enum { DL_FLOAT = 2 | 32 << 8, DL_DOUBLE = 2 | 64 << 8 };

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

/* A buffer as a tensor; the strides of a numpy array count bytes. */
typedef struct {
  DLTensor t;
  Py_buffer array;    /* to be released; without an object for a tensor */
  int64_t unit, bits; /* an element in the unit of the strides; bits of that unit */
} View;

static int see_tensor(View *v, DLTensorOf tensor_of, PyObject *object) {
  if (tensor_of(object, &v->t) != 0 || v->t.lanes != 1) return 0;
  v->array.obj = NULL;
  v->unit = 1;
  v->bits = v->t.bits;
  return 1;
}

static int see_array(View *v, PyObject *object, int is_written) {
  static const char formats[] = "fdebilqB?", codes[] = {2, 2, 2, 0, 0, 0, 0, 1, 6};
  Py_buffer *a = &v->array;
  if (PyObject_GetBuffer(object, a, PyBUF_STRIDES | PyBUF_FORMAT | (is_written ? PyBUF_WRITABLE : 0)) != 0) return 0;
  const char *format = a->format && a->format[0] && !a->format[1] ? strchr(formats, a->format[0]) : NULL;
  const uint8_t code = format ? (uint8_t)codes[format - formats] : 255; /* 255: no type at all */
  v->t = (DLTensor){a->buf, DL_CPU, 0, a->ndim, code, (uint8_t)(8 * a->itemsize), 1, (int64_t *)a->shape,
                    (int64_t *)a->strides, 0};
  v->unit = a->itemsize;
  v->bits = 8;
  return 1;
}

/* See a buffer; 0 where only Python can. */
static int see(View *v, PyObject *object, int is_written) {
  Kind kind = kind_of(object);
  int seen = kind.tensor_of ? see_tensor(v, kind.tensor_of, object) : kind.is_ndarray && see_array(v, object, is_written);
  if (!seen) PyErr_Clear();
  return seen;
}

/* Whether a buffer has the slot's dims in order, but other strides on an axis longer than 1. */
static int has_other_strides(const Slot *slot, const View *v) {
  int differs = 0;
  int64_t dense = v->unit;
  if (v->t.ndim != slot->ndim) return 0;
  for (int i = v->t.ndim - 1; i >= 0; --i) {
    if (v->t.shape[i] != slot->dim[i]) return 0;
    if (v->t.shape[i] > 1) differs |= (v->t.strides ? v->t.strides[i] : dense) != slot->stride[i] * v->unit;
    dense *= v->t.shape[i];
  }
  return differs;
}

/* Bytes from the first element to past the farthest one, as `buffers.span_bytes`. */
static int64_t span_of(const View *v) {
  int64_t last = v->unit, dense = v->unit;
  for (int i = v->t.ndim - 1; i >= 0; --i) {
    int64_t stride = v->t.strides ? v->t.strides[i] : dense;
    if (v->t.shape[i] == 0) return 0;
    if (stride > 0) last += (v->t.shape[i] - 1) * stride;
    dense *= v->t.shape[i];
  }
  return (last * v->bits + 7) / 8;
}

/* Whether a buffer of this span leaves bytes out. */
static int has_gaps(const View *v, int64_t span) {
  int64_t bits = v->unit * v->bits;
  for (int i = 0; i < v->t.ndim; ++i)
    if (!v->t.strides || v->t.strides[i] != 0) bits *= v->t.shape[i];
  return bits / 8 < span;
}

static int is_row_major(const View *v) {
  int64_t expected = v->unit;
  for (int i = v->t.ndim - 1; i >= 0; --i) {
    if (v->t.shape[i] != 1 && v->t.strides && v->t.strides[i] != expected) return 0;
    expected *= v->t.shape[i];
  }
  return 1;
}

static int is_at(const View *v, int place, int device_index) {
  if (v->t.device_type == DL_MANAGED) return 1;
  if (place == PLACE_CUDA) return v->t.device_type == DL_CUDA && v->t.device_id == device_index;
  return v->t.device_type == DL_CPU || v->t.device_type == DL_PINNED;
}

/* A tensor without an axis of stride 1 may be a lazily negated view (the imaginary part of a conjugate),
 * which DLPack does not show. */
static int may_be_negated(const View *v, PyObject *object) {
  static PyObject *name;
  if (v->array.obj) return 0;
  for (int i = 0; i < v->t.ndim; ++i)
    if (v->t.shape[i] > 1 && (!v->t.strides || v->t.strides[i] == 1)) return 0;
  if (!name && !(name = PyUnicode_InternFromString("is_neg"))) return 1;
  PyObject *answer = PyObject_CallMethodNoArgs(object, name);
  int negated = answer != Py_False && answer;
  Py_XDECREF(answer);
  PyErr_Clear(); /* another library's tensor, without such views */
  return negated;
}

static uint64_t address_of(const View *v) { return (uint64_t)(uintptr_t)v->t.data + v->t.byte_offset; }

static int fits(const Slot *slot, const View *v, PyObject *object) {
  int has_type = 0;
  for (int i = 0; i < slot->num_types; ++i) has_type |= slot->types[i] == (v->t.code | (uint32_t)v->t.bits << 8);
  if (!has_type || !is_at(v, slot->place, slot->device_index)) return 0;
  int64_t span = span_of(v);
  if (span < slot->span || (span > slot->span && has_gaps(v, span))) return 0;
  return !has_other_strides(slot, v) && !may_be_negated(v, object);
}

static int fits_workspace(const Dispatcher *d, const View *v) {
  return is_row_major(v) && span_of(v) >= d->workspace_bytes && is_at(v, d->on_gpu ? PLACE_CUDA : PLACE_CPU, d->device_index);
}

/* The number of an integer that may be an address, else 0. */
static uint64_t from_integer(PyObject *object) {
  uint64_t address = PyLong_AsUnsignedLongLong(object);
  if (!PyErr_Occurred()) return IS_ADDRESS(address) ? address : 0;
  PyErr_Clear();
  return 0;
}

/* Address of the number of a Python float, stored in `local`, or 0. */
static uint64_t from_float(const Slot *slot, PyObject *object, uint64_t *local) {
  double number = PyFloat_AS_DOUBLE(object);
  float single = (float)number;
  if (slot->place != PLACE_HOST || slot->span > slot->itemsize) return 0;
  if (slot->types[0] == DL_FLOAT) memcpy(local, &single, sizeof single);
  else if (slot->types[0] == DL_DOUBLE) memcpy(local, &number, sizeof number);
  else return 0;
  return (uint64_t)(uintptr_t)local;
}

/* Address of a buffer by the plain rules, or 0 where `Binder.resolve` must decide. */
uint64_t quick_address(const Slot *slot, PyObject *object, uint64_t *local) {
  uint64_t address = 0;
  View v;
  if (PyLong_CheckExact(object)) {
    address = from_integer(object);
  } else if (PyFloat_CheckExact(object)) {
    address = from_float(slot, object, local);
  } else if (see(&v, object, slot->is_output)) {
    address = fits(slot, &v, object) ? address_of(&v) : 0;
    if (v.array.obj) PyBuffer_Release(&v.array); /* the caller holds the array, and an array does not move */
  }
  return address % (uint64_t)slot->alignment ? 0 : address;
}

/* Address of a workspace by the plain rules, or 0 where `Binder.resolve_workspace` must decide. */
uint64_t quick_workspace(const Dispatcher *d, PyObject *object) {
  uint64_t address = 0;
  View v;
  if (PyLong_CheckExact(object)) {
    address = from_integer(object);
  } else if (see(&v, object, 1)) {
    address = fits_workspace(d, &v) ? address_of(&v) : 0;
    if (v.array.obj) PyBuffer_Release(&v.array);
  }
  uint64_t skipped = (0 - address) % (uint64_t)d->workspace_alignment;
  return address == 0 || skipped > (uint64_t)d->workspace_slack ? 0 : address + skipped;
}
