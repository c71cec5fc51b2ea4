/* The geometry of one convolution at one position: three spatial axes, where missing ones have extent 1. */
#ifndef FUSEPLAN_WINDOW_H
#define FUSEPLAN_WINDOW_H
#include <stdint.h>

#include "tiles.h"

struct window {
  int64_t size[3], filter[3];            /* extents of the image and of the filter */
  int64_t step[3], dilation[3], pad[3];  /* pad: in front of the image */
  int64_t at[3];                         /* output position; that of the block's axis is not used */
  int64_t channel;                       /* output channel where the block runs along the last spatial axis */
  int64_t channels;                      /* of one filter: input channels of a group */
  int is_flipped;
};

/* The image position that a tap reads on an axis. */
INLINE int64_t tap_position(const struct window *w, int axis, int64_t tap) {
  return w->at[axis] * w->step[axis] + tap * w->dilation[axis] - w->pad[axis];
}

INLINE int is_outside(const struct window *w, int axis, int64_t position) {
  return position < 0 || position >= w->size[axis];
}

/* The weight that belongs to a tap. */
INLINE int64_t weight_position(const struct window *w, int axis, int64_t tap) {
  return w->is_flipped ? w->filter[axis] - 1 - tap : tap;
}
#endif
