/* Tensor maps: encoded by the driver, and again only for another address. */
#include "dispatch.h"

#define MAP_BYTES 128
#define MOST_STRIDE ((uint64_t)1 << 40)

static int raise_map(const Dispatcher *d, const TensorMap *map, int code, uint64_t distance) {
  PyObject *result = PyObject_CallFunction(d->fail_map, "iOK", code, map->label, (unsigned long long)distance);
  Py_XDECREF(result);
  return -1;
}

/* Encode for these buffers into the frame, where a map is aligned as it must be. */
static int encode_map(const Dispatcher *d, const TensorMap *map, char *target, uint64_t address, uint64_t other) {
  uint64_t strides[MOST_RANK];
  memcpy(strides, map->strides, sizeof strides);
  if (map->second >= -1) {
    uint64_t distance = address < other ? other - address : address - other;
    if (distance == 0 || distance >= MOST_STRIDE || distance % 16) return raise_map(d, map, 0, distance);
    strides[map->rank - 2] = distance;
    if (other < address) address = other;
  }
  void *former; /* the driver encodes for a device: a new thread has none */
  if (enter_context(d, &former)) return -1;
  int code = d->driver.encode(target, map->numbers[0], (unsigned)map->rank, (void *)(uintptr_t)address, map->dims,
                              strides, map->box, map->steps, map->numbers[1], map->numbers[2], map->numbers[3],
                              map->numbers[4]);
  leave_context(d, former);
  return code ? raise_map(d, map, code, 0) : 0;
}

/* Called with the interpreter's lock held: the last map of each patch is shared by all calls of the dispatcher. */
int write_map(Dispatcher *d, const Patch *p, char *frame, const uint64_t *slots, uint64_t workspace) {
  TensorMap *map = &d->maps[p->map];
  uint64_t address = (map->slot < 0 ? workspace : slots[map->slot]) + (uint64_t)map->addend, other = 0;
  if (map->second >= -1)
    other = (map->second < 0 ? workspace : slots[map->second]) + (uint64_t)map->second_addend;
  if (map->is_encoded && map->address == address && map->other == other) {
    memcpy(frame + p->offset, map->bytes, MAP_BYTES);
  } else {
    map->is_encoded = 0;
    if (encode_map(d, map, frame + p->offset, address, other)) return -1;
    memcpy(map->bytes, frame + p->offset, MAP_BYTES);
    map->address = address;
    map->other = other;
    map->is_encoded = 1;
    ++d->num_encodes;
  }
  if (map->swap_offset >= 0) {
    int32_t is_swapped = other < address;
    memcpy(frame + map->swap_offset, &is_swapped, sizeof is_swapped);
  }
  return 0;
}
