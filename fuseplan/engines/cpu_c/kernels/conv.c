/* conv.c: one or several forward convolutions over one domain, and an epilogue on the elements of all of them.
 *
 * A task covers rows (positions on all axes but the block's) and blocks of columns. The block runs over output
 * channels, each of which is a dot product over input channels (channels-last memory), or along the last spatial
 * axis, where each weight is added into the whole row (channels-first memory). Taps outside of the image are skipped.
 * Holes:
 *   struct args, tiling_of(p)                  the block, and how the domain is given out
 *   struct position, position_of, advance      where a row is
 *   CONVOLUTIONS, EACH_CONVOLUTION(DO)         number of convolutions; DO(0) DO(1) ... for each
 *   ACC, FACTOR                                types of a sum and of a factor
 *   MULTIPLY_ADD(x, y, sum)                    sum + x * y
 *   BLOCK_IS_CHANNELS                          along what the block runs
 *   window_of(p, at, q)                        geometry of convolution q (window.h)
 *   first_channel(p, q, k)                     first input channel of the group that output channel k belongs to
 *   load_x(p, at, q, c, s0, s1, s2)            image, behind what is computed in front of it
 *   load_w(p, at, q, k, c, f0, f1, f2)         weight of output channel k, channel c of its group
 *   epilogue, HAS_REDUCTIONS, begin, finish    as in matmul.c
 */
#ifndef KERNEL /* alone: 2-D convolution of float images [N][H][W][C] with weights [K][R][S][C], stride 1 */
#include <stdint.h>

#include "../../../runtime/team/task.h"
#include "tiles.h"
#include "window.h"
#define KERNEL conv
#define CONVOLUTIONS 1
#define EACH_CONVOLUTION(DO) DO(0)
#define ACC float
#define FACTOR float
#define MULTIPLY_ADD(x, y, sum) ((x) * (y) + (sum))
#define HAS_REDUCTIONS 0
#ifndef BLOCK_IS_CHANNELS
#define BLOCK_IS_CHANNELS 1
#endif
#define BLOCK 64

struct args {
  const float *x0, *x1;
  float *y0;
  int64_t n, h, w, c, k, r, s, pad, row_tasks, column_tasks;
} __attribute__((packed));

struct position {
  int64_t n, y, other; /* other: the column, or the output channel */
};

INLINE int64_t out_h(const struct args *p) { return p->h + 2 * p->pad - p->r + 1; }
INLINE int64_t out_w(const struct args *p) { return p->w + 2 * p->pad - p->s + 1; }
INLINE int64_t num_others(const struct args *p) { return BLOCK_IS_CHANNELS ? out_w(p) : p->k; }

INLINE struct tiling tiling_of(const struct args *p) {
  const int64_t columns = BLOCK_IS_CHANNELS ? p->k : out_w(p);
  return (struct tiling){p->n * out_h(p) * num_others(p), p->row_tasks, columns, p->column_tasks, BLOCK};
}

INLINE struct position position_of(const struct args *p, int64_t row, int64_t task) {
  (void)task;
  const int64_t line = row / num_others(p);
  return (struct position){line / out_h(p), line % out_h(p), row % num_others(p)};
}

INLINE void advance(const struct args *p, struct position *at) {
  if (++at->other < num_others(p)) return;
  at->other = 0;
  if (++at->y < out_h(p)) return;
  at->y = 0;
  ++at->n;
}

INLINE struct window window_of(const struct args *p, const struct position *at, const int q) {
  (void)q;
  return (struct window){
      .size = {1, p->h, p->w}, .filter = {1, p->r, p->s}, .step = {1, 1, 1}, .dilation = {1, 1, 1},
      .pad = {0, p->pad, p->pad}, .at = {0, at->y, at->other}, .channel = at->other, .channels = p->c,
  };
}

INLINE int64_t first_channel(const struct args *p, const int q, int64_t k) {
  (void)p, (void)q, (void)k;
  return 0;
}

INLINE float load_x(const struct args *p, const struct position *at, const int q, int64_t c, int64_t s0,
                           int64_t s1, int64_t s2) {
  (void)q, (void)s0;
  return p->x0[((at->n * p->h + s1) * p->w + s2) * p->c + c];
}

INLINE float load_w(const struct args *p, const struct position *at, const int q, int64_t k, int64_t c,
                           int64_t f0, int64_t f1, int64_t f2) {
  (void)at, (void)q, (void)f0;
  return p->x1[((k * p->r + f1) * p->s + f2) * p->c + c];
}

INLINE void epilogue(const struct args *p, const struct position *at, int64_t first, int64_t width,
                     ACC acc[][BLOCK]) {
  const int64_t line = at->n * out_h(p) + at->y;
  for (int64_t j = 0; j < width; ++j) {
    const int64_t column = BLOCK_IS_CHANNELS ? at->other : first + j;
    const int64_t channel = BLOCK_IS_CHANNELS ? first + j : at->other;
    p->y0[(line * out_w(p) + column) * p->k + channel] = acc[0][j];
  }
}

INLINE void begin(const struct args *p, int64_t task) { (void)p, (void)task; }
INLINE void finish(const struct args *p, int64_t num_tasks) { (void)p, (void)num_tasks; }
#endif /* alone */

#define PARTIAL 256

/* The block runs over output channels: one dot product over input channels for each tap. */
INLINE void sum_over_channels(const struct args *p, const struct position *at, const int q, int64_t first,
                                     int64_t width, ACC *restrict acc) {
  const struct window w = window_of(p, at, q);
  for (int64_t t0 = 0; t0 < w.filter[0]; ++t0) {
    const int64_t s0 = tap_position(&w, 0, t0), f0 = weight_position(&w, 0, t0);
    if (is_outside(&w, 0, s0)) continue;
    for (int64_t t1 = 0; t1 < w.filter[1]; ++t1) {
      const int64_t s1 = tap_position(&w, 1, t1), f1 = weight_position(&w, 1, t1);
      if (is_outside(&w, 1, s1)) continue;
      for (int64_t t2 = 0; t2 < w.filter[2]; ++t2) {
        const int64_t s2 = tap_position(&w, 2, t2), f2 = weight_position(&w, 2, t2);
        if (is_outside(&w, 2, s2)) continue;
        for (int64_t j = 0; j < width; ++j) {
          const int64_t group = first_channel(p, q, first + j);
          ACC sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t c = 0; c < w.channels; ++c) {
            const FACTOR x = load_x(p, at, q, group + c, s0, s1, s2);
            const FACTOR y = load_w(p, at, q, first + j, c, f0, f1, f2);
            sum = MULTIPLY_ADD(x, y, sum);
          }
          acc[j] += sum;
        }
      }
    }
  }
}

/* The block runs along the last spatial axis: one tap on it, and channels c to past_c, added into part. */
INLINE void sum_along_row(const struct args *p, const struct position *at, const int q, int64_t first,
                                 int64_t width, const struct window *w, int64_t t2, int64_t c, int64_t past_c,
                                 ACC *restrict part) {
  const int64_t step = w->step[2], shift = t2 * w->dilation[2] - w->pad[2];
  const int64_t low = (shift < 0 ? (step - 1 - shift) / step : 0) - first;
  const int64_t high = (w->size[2] - shift + step - 1) / step - first;
  const int64_t from = low > 0 ? low : 0, past = high < width ? high : width;
  const int64_t group = first_channel(p, q, w->channel), f2 = weight_position(w, 2, t2);
  for (int64_t t0 = 0; t0 < w->filter[0]; ++t0) {
    const int64_t s0 = tap_position(w, 0, t0), f0 = weight_position(w, 0, t0);
    if (is_outside(w, 0, s0)) continue;
    for (int64_t t1 = 0; t1 < w->filter[1]; ++t1) {
      const int64_t s1 = tap_position(w, 1, t1), f1 = weight_position(w, 1, t1);
      if (is_outside(w, 1, s1)) continue;
      for (int64_t channel = c; channel < past_c; ++channel) {
        const FACTOR y = load_w(p, at, q, w->channel, channel, f0, f1, f2);
#pragma omp simd
        for (int64_t j = from; j < past; ++j)
          part[j] = MULTIPLY_ADD(load_x(p, at, q, group + channel, s0, s1, shift + (first + j) * step), y, part[j]);
      }
    }
  }
}

INLINE void sum_along_rows(const struct args *p, const struct position *at, const int q, int64_t first,
                                  int64_t width, ACC *restrict acc) {
  const struct window w = window_of(p, at, q);
  for (int64_t t2 = 0; t2 < w.filter[2]; ++t2) {
    for (int64_t c = 0; c < w.channels; c += PARTIAL) {
      ACC part[BLOCK] = {0};
      sum_along_row(p, at, q, first, width, &w, t2, c, w.channels - c < PARTIAL ? w.channels : c + PARTIAL, part);
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) acc[j] += part[j];
    }
  }
}

INLINE void add_convolution(const struct args *p, const struct position *at, const int q, int64_t first, int64_t width,
                            ACC *restrict acc) {
  if (BLOCK_IS_CHANNELS)
    sum_over_channels(p, at, q, first, width, acc);
  else
    sum_along_rows(p, at, q, first, width, acc);
}

INLINE void convolve_block(const struct args *p, const struct position *at, int64_t first, int64_t width) {
  ACC acc[CONVOLUTIONS][BLOCK] = {{0}};
#define CONVOLUTION(q) add_convolution(p, at, q, first, width, acc[q]);
  EACH_CONVOLUTION(CONVOLUTION) /* no loop: gcc takes the vectors from loops that it copies */
  epilogue(p, at, first, width, acc);
}

/* The loop over tasks must not be inlined around this one: gcc would make two of it, one without vectors. */
static NOINLINE void run_task(const struct args *block, int64_t t) {
  const struct args p = *block;
  const struct tile tile = tile_of(tiling_of(&p), t);
  struct position at = position_of(&p, tile.row, t);
  if (HAS_REDUCTIONS) begin(&p, t);
  for (int64_t row = tile.row; row < tile.past_row; ++row) {
    for (int64_t j = tile.column; j < tile.past_column; j += BLOCK)
      convolve_block(&p, &at, j, tile.past_column - j < BLOCK ? tile.past_column - j : BLOCK);
    advance(&p, &at);
  }
}

int KERNEL(const void *block, const struct fp_task *task);
int KERNEL(const void *block, const struct fp_task *task) {
  const struct args p = *(const struct args *)block;
  for (int64_t t; (t = fp_next(task)) >= 0;) {
    run_task(block, t);
    if (HAS_REDUCTIONS && fp_is_last(task)) finish(&p, task->num_tasks);
  }
  return 0;
}
