/* matmul.c: one or several products over one domain of M x N, and an epilogue on the elements of all of them.
 *
 * A task covers rows (positions on all axes but the last) and columns. It takes a group of columns at a time: their
 * factors from B are packed into panels [k][PANEL] in memory of the thread, then all rows of the task walk over
 * them in tiles of TILE_ROWS x PANEL sums, which live in registers. The factors of a row are read where they are if
 * they lie next to each other and need no computing, else they are written into a buffer, some rows at a time. Deep
 * products go in blocks of depth. Each finished tile is handed to the epilogue while it is in the first cache.
 *
 * Where few rows share a B (IS_NARROW) reading it is the work: nothing is packed, and all rows take what they need
 * from each piece of B as it comes, terms of a panel where columns are neighbours, dot products where terms are.
 * Holes:
 *   struct args, tiling_of(p)                  the block, and how the domain is given out
 *   struct position, position_of, advance      where a row is
 *   rows_left(p, at)                           rows from here on that have the same B
 *   lines_left(p, at)                          rows from here on that are neighbours on the axis M
 *   IS_NARROW                                  whether at most NARROW_ROWS rows share a B
 *   PRODUCTS, EACH_PRODUCT(DO)                 number of products; DO(0) DO(1) ... for each
 *   ACC, FACTOR                                types of a sum and of a factor
 *   MULTIPLY_ADD(x, y, sum)                    sum + x * y
 *   depth(p, q), group(p), depth_block(p)      terms of product q; columns and terms that are packed together
 *   IS_SPLIT, split_terms(p), parts(p)         whether tasks divide the terms as well; terms of a task; where the sums
 *                                              of all tasks are until the last one adds them up
 *   num_sums(p), STACK_BYTES                   sums to keep; memory of a thread on its stack, 0 if it is given
 *   a_form(q), b_form(q)                       IS_ALONG_K, IS_PLAIN: how factors lie, whether they need no computing;
 *                                              of B also IS_BFLOAT: neighbours in memory are bfloat16 that need none
 *   a_from(q)                                  the first product that has the same factors of rows
 *   a_at(p, at, q, k), b_at(p, at, q, k, j)    where a plain factor is
 *   b_line(p, at, q, k, j)                     where the memory is that a factor of B comes from, 0 if none
 *   read_a(p, at, q, k, count, out)            factors of a row at k and behind it, or of that k and rows below
 *   read_b(p, at, q, k, j, count, out)         factors of a column at k and behind it, or of that k and columns behind
 *   epilogue(p, at, first, width, acc, lanes)  elements first to first + width of a row: acc[q][j] are their sums
 *   struct lanes, start, fold(p, task, lanes)  results of reductions over all axes, one for each column of a panel
 *   HAS_REDUCTIONS, begin, finish              as in columns.c, for reductions over the elements
 */
#ifndef KERNEL /* alone: C = A B for packed float matrices */
#include <stdint.h>
#include <string.h>

#include "../../../runtime/team/task.h"
#include "tiles.h"
#include "vectors.h"
#define KERNEL matmul
#define PRODUCTS 1
#define EACH_PRODUCT(DO) DO(0)
#define ACC float
#define FACTOR float
#ifdef __FMA__
#define MULTIPLY_ADD(x, y, sum) __builtin_fmaf(x, y, sum)
#else
#define MULTIPLY_ADD(x, y, sum) ((x) * (y) + (sum))
#endif
#define HAS_REDUCTIONS 0
#define BLOCK PANEL
#define STACK_BYTES 0
#ifndef IS_NARROW
#define IS_NARROW 0
#endif
#define IS_SPLIT 0

struct args {
  const float *x0, *x1;
  float *y0;
  int64_t m, row_tasks, n, column_tasks, depth, group, depth_block, num_sums;
} __attribute__((packed));

struct position {
  int64_t i0;
};

INLINE struct tiling tiling_of(const struct args *p) {
  return (struct tiling){p->m, p->row_tasks, p->n, p->column_tasks, 64};
}

INLINE struct position position_of(const struct args *p, int64_t row, int64_t task) {
  (void)p, (void)task;
  return (struct position){row};
}

INLINE void advance(const struct args *p, struct position *at) {
  (void)p;
  ++at->i0;
}

INLINE int64_t rows_left(const struct args *p, const struct position *at) { return p->m - at->i0; }
INLINE int64_t lines_left(const struct args *p, const struct position *at) { return p->m - at->i0; }
INLINE int64_t group(const struct args *p) { return p->group; }
INLINE int64_t depth_block(const struct args *p) { return p->depth_block; }
INLINE int64_t num_sums(const struct args *p) { return p->num_sums; }

INLINE int64_t split_terms(const struct args *p) { return p->depth; }

INLINE ACC *parts(const struct args *p) {
  (void)p;
  return 0;
}

INLINE int64_t depth(const struct args *p, const int q) {
  (void)q;
  return p->depth;
}

INLINE int a_form(const int q) {
  (void)q;
  return 3;
}

INLINE int b_form(const int q) {
  (void)q;
  return 2;
}

INLINE int a_from(const int q) { return q; }

INLINE const float *a_at(const struct args *p, const struct position *at, const int q, int64_t k) {
  (void)q;
  return &p->x0[at->i0 * p->depth + k];
}

INLINE const float *b_at(const struct args *p, const struct position *at, const int q, int64_t k, int64_t j) {
  (void)at, (void)q;
  return &p->x1[k * p->n + j];
}

INLINE const void *b_line(const struct args *p, const struct position *at, const int q, int64_t k, int64_t j) {
  return b_at(p, at, q, k, j);
}

INLINE void read_a(const struct args *p, const struct position *at, const int q, int64_t k, int64_t count,
                   float *restrict out) {
  for (int64_t e = 0; e < count; ++e) out[e] = *a_at(p, at, q, k + e);
}

INLINE void read_b(const struct args *p, const struct position *at, const int q, int64_t k, int64_t j, int64_t count,
                   float *restrict out) {
  for (int64_t e = 0; e < count; ++e) out[e] = *b_at(p, at, q, k, j + e);
}

struct lanes {
  int64_t unused;
};

INLINE void start(struct lanes *lanes) { (void)lanes; }
INLINE void fold(const struct args *p, int64_t task, struct lanes *lanes) { (void)p, (void)task, (void)lanes; }

INLINE void epilogue(const struct args *p, const struct position *at, int64_t first, int64_t width,
                     ACC acc[][BLOCK], struct lanes *lanes) {
  (void)lanes;
  for (int64_t j = 0; j < width; ++j) p->y0[at->i0 * p->n + first + j] = acc[0][j];
}

INLINE void begin(const struct args *p, int64_t task) { (void)p, (void)task; }
INLINE void finish(const struct args *p, int64_t num_tasks) { (void)p, (void)num_tasks; }
#endif /* alone */

#define IS_ALONG_K 1
#define IS_PLAIN 2
#define IS_BFLOAT 4
#define TILE_ROWS 6      /* six pointers to rows fit the integer registers */
#define NARROW_ROWS 16
#define CHUNK_ROWS (IS_NARROW ? NARROW_ROWS : 48) /* rows that are written into the buffer together: of whole tiles */
#define SHORT 384        /* terms that are added up one by one */
#define LINE 64          /* factors of a column that are read together */
#define SUM_ROWS 960     /* rows whose sums are kept between blocks of depth: a multiple of CHUNK_ROWS */
#define ROW_GAP (64 / (int64_t)sizeof(FACTOR)) /* behind a row in the buffer: keeps rows off the 4 KiB grid */

typedef ACC vec __attribute__((vector_size(VECTOR_BYTES)));
typedef ACC vec_anywhere __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(FACTOR)), may_alias));

INLINE vec load(const FACTOR *at) { return *(const vec_anywhere *)at; }
INLINE void store(FACTOR *at, vec x) { *(vec_anywhere *)at = x; }
INLINE vec load_sums(const ACC *at) { return *(const vec_anywhere *)at; }
INLINE void store_sums(ACC *at, vec x) { *(vec_anywhere *)at = x; }
INLINE vec spread(FACTOR x) { return (ACC)x - (vec){0}; } /* minus 0 keeps -0 */
INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE vec multiply_add(vec x, vec y, vec sum) {
  vec made;
#pragma omp simd
  for (int i = 0; i < LANES; ++i) made[i] = MULTIPLY_ADD(x[i], y[i], sum[i]);
  return made;
}

INLINE void transpose(vec *r) { TRANSPOSE(r) }

/* What a thread works on: panels of B, rows of A and sums. */
struct memory {
  FACTOR *panels, *rows;
  ACC *sums;
  struct lanes *lanes;
  int64_t term, past_term; /* of products: what the task adds up */
  ACC *part;               /* where to, if other tasks add up other terms */
  const struct args *block; /* for functions that are not inlined: a local copy whose address is known to nobody else
                               stays in registers, and loops that read through its pointers get vectors */
};

INLINE FACTOR *panels_of(const struct args *p, const struct memory *m, const int q) {
  return m->panels + q * group(p) * depth_block(p);
}

INLINE int64_t row_stride(const struct args *p) { return depth_block(p) + ROW_GAP; }

INLINE FACTOR *rows_of(const struct args *p, const struct memory *m, const int q) {
  return m->rows + a_from(q) * CHUNK_ROWS * row_stride(p);
}

INLINE struct memory memory_of(const struct args *p, const struct args *block, void *scratch, struct lanes *lanes) {
  struct memory m = {.panels = scratch, .lanes = lanes, .block = block};
  m.sums = (ACC *)(m.panels + (IS_NARROW ? 0 : PRODUCTS * group(p) * depth_block(p)));
  m.rows = (FACTOR *)(m.sums + num_sums(p));
  return m;
}

/* LANES lines, of which `num_lines` hold `count` factors and the rest counts as 0, written as columns. */
INLINE void write_columns(FACTOR (*lines)[LINE], int64_t num_lines, int64_t count, FACTOR *out, int64_t stride) {
  for (int64_t i = 0; i < LANES; ++i)
    for (int64_t e = i < num_lines ? count : 0; e < (count + LANES - 1) / LANES * LANES; ++e) lines[i][e] = 0;
  for (int64_t e = 0; e < count; e += LANES) {
    vec r[LANES];
    UNROLL for (int i = 0; i < LANES; ++i) r[i] = load(lines[i] + e);
    transpose(r);
    UNROLL for (int i = 0; i < LANES; ++i) if (e + i < count) store(out + (e + i) * stride, r[i]);
  }
}

/* Factors of A for some rows, at most CHUNK_ROWS, as rows of the buffer. */
INLINE void write_rows(const struct args *p, struct position at, const int q, int64_t k0, int64_t terms,
                       int64_t num_rows, FACTOR *out) {
  if (a_form(q) & IS_ALONG_K) {
    for (int64_t r = 0; r < num_rows; ++r, advance(p, &at)) read_a(p, &at, q, k0, terms, out + r * row_stride(p));
    return;
  }
  while (num_rows > 0) {
    const int64_t count = min_of(num_rows, lines_left(p, &at));
    for (int64_t k = 0; k < terms; k += LANES) {
      const int64_t columns = min_of(LANES, terms - k);
      int64_t r = 0;
      if (a_form(q) & IS_PLAIN && columns == LANES)
        for (; r + LANES <= count; r += LANES) {
          vec x[LANES];
          UNROLL for (int i = 0; i < LANES; ++i) x[i] = load(a_at(p, &at, q, k0 + k + i) + r);
          transpose(x);
          UNROLL for (int i = 0; i < LANES; ++i) store(out + (r + i) * row_stride(p) + k, x[i]);
        }
      if (r == count) continue;
      FACTOR lines[LANES][LINE];
      for (int64_t i = 0; i < columns; ++i) read_a(p, &at, q, k0 + k + i, count, lines[i]);
      write_columns(lines, columns, count, out + k, row_stride(p));
    }
    out += count * row_stride(p);
    num_rows -= count;
    for (int64_t r = 0; r < count; ++r) advance(p, &at);
  }
}

/* Apart from the loop over terms: constants of the epilogue would take the registers of its sums. The block is copied,
 * so that no store can change it. */
static NOINLINE void finish_tile(const struct args *block, const struct position *at, int64_t num_rows, int64_t first,
                                 int64_t width, ACC *sums, struct lanes *lanes) {
  const struct args p = *block;
  for (int64_t r = 0; r < num_rows; ++r) {
    const struct position row = at[r];
    epilogue(&p, &row, first, width, (ACC(*)[BLOCK])sums + r * PRODUCTS, lanes);
  }
}

INLINE int64_t deepest(const struct args *p) {
  int64_t most = 0;
#define DEEPER(q) most = depth(p, q) > most ? depth(p, q) : most;
  EACH_PRODUCT(DEEPER)
  return most;
}

#if IS_NARROW
#define PAIR (2 * LANES)
#define TERMS (VECTOR_BYTES == 64 ? 8 : 4) /* of a panel that are added together: rows of B often lie on one set of the
                                              first cache */
#define BYTES_AHEAD 1024 /* of a column that are asked for from memory */
#define DOT_COLUMNS 8
#define DOT_TERMS 512 /* of some rows that are read once for all columns: they stay in the first cache */
#define DOT_ROWS (VECTOR_BYTES == 64 ? 8 : 4)

typedef uint32_t bits __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t bits_anywhere __attribute__((vector_size(VECTOR_BYTES), aligned(2), may_alias));

/* One of two vectors of factors from memory of B: neighbours, or of bfloat16 those in even and those in odd places. */
INLINE vec load_half(const int form, const char *at, const int half) {
  if (!(form & IS_BFLOAT)) return load((const FACTOR *)at + half * LANES);
  const bits two = *(const bits_anywhere *)at;
  return (vec)(half ? two & 0xffff0000u : two << 16);
}

/* PAIR neighbours as those in even places, then those in odd ones. */
INLINE void part(FACTOR *at) {
  FACTOR parted[PAIR];
  for (int i = 0; i < LANES; ++i) parted[i] = at[2 * i], parted[LANES + i] = at[2 * i + 1];
  memcpy(at, parted, sizeof parted);
}

INLINE void join(ACC *at) {
  ACC joined[PAIR];
  for (int i = 0; i < LANES; ++i) joined[2 * i] = at[i], joined[2 * i + 1] = at[LANES + i];
  memcpy(at, joined, sizeof joined);
}

INLINE const char *bytes_of_b(const struct args *p, const struct position *at, const int q, int64_t k, int64_t j) {
  return b_form(q) & IS_BFLOAT ? b_line(p, at, q, k, j) : (const char *)b_at(p, at, q, k, j);
}

INLINE int64_t size_of_b(const int q) { return b_form(q) & IS_BFLOAT ? 2 : sizeof(FACTOR); }

/* Sums of all rows with some columns of a panel over `count` terms; x holds TERMS factors of each row. */
INLINE void add_terms(const int form, int64_t num_rows, const FACTOR *x, const int count, const char *const *b,
                      int64_t offset, ACC *sums) {
  vec y[TERMS][2];
  UNROLL for (int e = 0; e < count; ++e) {
    y[e][0] = load_half(form, b[e] + offset, 0);
    y[e][1] = load_half(form, b[e] + offset, 1);
  }
  for (int64_t r = 0; r < num_rows; ++r, sums += PRODUCTS * PANEL, x += TERMS) {
    vec c = load_sums(sums), d = load_sums(sums + LANES);
    UNROLL for (int e = 0; e < count; ++e) {
      const vec factor = spread(x[e]);
      c = multiply_add(factor, y[e][0], c);
      d = multiply_add(factor, y[e][1], d);
    }
    store_sums(sums, c);
    store_sums(sums + LANES, d);
  }
}

/* Columns that are neighbours: terms k to k + terms of all of them. */
INLINE void add_rows_of_b(const struct args *p, const struct position *at, const int q, int64_t num_rows,
                          const FACTOR *const *rows, int64_t k0, int64_t terms, int64_t first, int64_t width,
                          ACC *sums) {
  const int is_direct = b_form(q) & (IS_PLAIN | IS_BFLOAT);
  for (int64_t k = 0, count; k < terms; k += count) {
    count = terms - k < TERMS ? 1 : TERMS;
    FACTOR x[NARROW_ROWS * TERMS];
    for (int64_t r = 0; r < num_rows; ++r)
      for (int64_t e = 0; e < count; ++e) x[r * TERMS + e] = rows[r][k + e];
    const char *whole[TERMS];
    for (int64_t e = 0; e < count; ++e) whole[e] = is_direct ? bytes_of_b(p, at, q, k0 + k + e, first) : 0;
    for (int64_t c = 0; c < width; c += PANEL) {
      const int64_t columns = min_of(PANEL, width - c);
      ACC *out = sums + c * num_rows * PRODUCTS;
      const char *b[TERMS];
      if (is_direct && columns == PANEL) {
        const int64_t size = size_of_b(q);
        if (count == TERMS) {
          UNROLL for (int e = 0; e < TERMS; ++e) b[e] = whole[e] + c * size;
          UNROLL for (int v = 0; v < PANEL; v += PAIR)
            add_terms(b_form(q), num_rows, x, TERMS, b, v * size, out + v);
        } else {
          b[0] = whole[0] + c * size;
          for (int v = 0; v < PANEL; v += PAIR) add_terms(b_form(q), num_rows, x, 1, b, v * size, out + v);
        }
        continue;
      }
      FACTOR lines[TERMS][PANEL];
      for (int64_t e = 0; e < count; ++e) {
        const int64_t ahead = k0 + min_of(k + e + TERMS, terms - 1);
        const char *line = b_line(p, at, q, ahead, first + c), *past = b_line(p, at, q, ahead, first + c + columns);
        for (; line < past; line += 64) __builtin_prefetch(line);
        read_b(p, at, q, k0 + k + e, first + c, columns, lines[e]);
        for (int64_t j = columns; j % PAIR; ++j) lines[e][j] = 0;
        b[e] = (const char *)lines[e];
      }
      for (int64_t v = 0; v < columns; v += PAIR)
        if (count == TERMS)
          add_terms(0, num_rows, x, TERMS, b, v * (int64_t)sizeof(FACTOR), out + v);
        else
          add_terms(0, num_rows, x, 1, b, v * (int64_t)sizeof(FACTOR), out + v);
    }
  }
}

/* Dot products of `num_rows` rows with `num_columns` columns over some terms, a multiple of PAIR. */
INLINE void add_dots(const int form, const int num_rows, const int num_columns, const FACTOR *const *rows, int64_t k,
                     int64_t terms, const char *const *b, vec (*dots)[DOT_COLUMNS]) {
  const int64_t size = form & IS_BFLOAT ? 2 : sizeof(FACTOR);
  vec sums[DOT_ROWS][DOT_COLUMNS][2];
  UNROLL for (int i = 0; i < num_rows; ++i) UNROLL for (int j = 0; j < num_columns; ++j) sums[i][j][0] = dots[i][j];
  if (num_rows == 1) UNROLL for (int j = 0; j < num_columns; ++j) sums[0][j][1] = (vec){0};
  for (int64_t e = 0; e < terms; e += PAIR) {
    UNROLL for (int j = 0; j < num_columns; ++j)
      UNROLL for (int i = 0; i < PAIR * size; i += 64) __builtin_prefetch(b[j] + e * size + i + BYTES_AHEAD);
    UNROLL for (int half = 0; half < 2; ++half) {
      vec y[DOT_COLUMNS];
      UNROLL for (int j = 0; j < num_columns; ++j) y[j] = load_half(form, b[j] + e * size, half);
      UNROLL for (int i = 0; i < num_rows; ++i) {
        const vec x = load(rows[i] + k + e + half * LANES);
        const int h = num_rows == 1 ? half : 0; /* more sums than one row has columns hide how long one takes */
        UNROLL for (int j = 0; j < num_columns; ++j) sums[i][j][h] = multiply_add(x, y[j], sums[i][j][h]);
      }
    }
  }
  if (num_rows == 1) UNROLL for (int j = 0; j < num_columns; ++j) sums[0][j][0] += sums[0][j][1];
  UNROLL for (int i = 0; i < num_rows; ++i) UNROLL for (int j = 0; j < num_columns; ++j) dots[i][j] = sums[i][j][0];
}

/* The same of all rows with `columns` columns, at most DOT_COLUMNS; rows behind the last one hold its factors. */
INLINE void add_dots_of_rows(const int form, int64_t num_rows, int64_t columns, const FACTOR *const *rows, int64_t k,
                             int64_t terms, const char *const *b, vec (*dots)[DOT_COLUMNS]) {
#define ADD_DOTS(ROWS, COLUMNS) \
  add_dots(form, ROWS, COLUMNS, rows + r, k, terms, b + j, (vec(*)[DOT_COLUMNS])(dots[r] + j))
  for (int64_t r = 0; r < num_rows; r += DOT_ROWS) {
    const int64_t left = num_rows - r;
    for (int64_t j = 0; j < columns; j += left > 2 ? 2 : 4)
      if (left == 1)
        ADD_DOTS(1, 4);
      else if (left == 2)
        ADD_DOTS(2, 4);
      else if (left <= 4 || DOT_ROWS == 4)
        ADD_DOTS(4, 2);
      else
        ADD_DOTS(DOT_ROWS, 2);
  }
}

/* Terms that are neighbours: dot products over terms k to k + terms, whose rows go on with zeros up to PAIR. */
INLINE void add_columns_of_b(const struct args *p, const struct position *at, const int q, int64_t num_rows,
                             const FACTOR *const *rows, int64_t k0, int64_t terms, int64_t first, int64_t width,
                             ACC *sums) {
  const int is_direct = b_form(q) & (IS_PLAIN | IS_BFLOAT);
  const int64_t most = !is_direct ? LINE : num_rows > 2 ? DOT_TERMS : terms;
  for (int64_t c = 0; c < width; c += DOT_COLUMNS) {
    const int64_t columns = min_of(DOT_COLUMNS, width - c);
    vec dots[NARROW_ROWS + LANES][DOT_COLUMNS];
    for (int64_t r = 0; r < num_rows + LANES; ++r) for (int j = 0; j < DOT_COLUMNS; ++j) dots[r][j] = (vec){0};
    for (int64_t k = 0, count; k < terms; k += count) {
      count = min_of(most, terms - k);
      if (is_direct && count > PAIR) count -= count % PAIR;
      const char *b[DOT_COLUMNS];
      FACTOR lines[DOT_COLUMNS][LINE];
      if (is_direct && count % PAIR == 0) {
        for (int j = 0; j < DOT_COLUMNS; ++j) b[j] = bytes_of_b(p, at, q, k0 + k, first + c + min_of(j, columns - 1));
        add_dots_of_rows(b_form(q), num_rows, columns, rows, k, count, b, dots);
        continue;
      }
      const int64_t padded = (count + PAIR - 1) / PAIR * PAIR;
      for (int j = 0; j < DOT_COLUMNS; ++j) {
        read_b(p, at, q, k0 + k, first + c + min_of(j, columns - 1), count, lines[j]);
        for (int64_t e = count; e < padded; ++e) lines[j][e] = 0;
        if (b_form(q) & IS_BFLOAT)
          for (int64_t e = 0; e < padded; e += PAIR) part(lines[j] + e);
        b[j] = (const char *)lines[j];
      }
      add_dots_of_rows(0, num_rows, columns, rows, k, padded, b, dots);
    }
    for (int64_t i = 0; i < num_rows * DOT_COLUMNS; i += LANES) { /* lane j of the sum is the sum of dots[i + j] */
      vec *turned = dots[0] + i, sum = {0};
      transpose(turned);
      UNROLL for (int j = 0; j < LANES; ++j) sum += turned[j];
      for (int64_t j = i; j < i + LANES && j < num_rows * DOT_COLUMNS; ++j) {
        const int64_t row = j / DOT_COLUMNS, column = c + j % DOT_COLUMNS, panel = column / PANEL;
        if (column < width) sums[((panel * num_rows + row) * PRODUCTS) * PANEL + column % PANEL] += sum[j - i];
      }
    }
  }
}

/* The sums of one product over a block of depth. */
INLINE void add_product(const struct args *p, const struct memory *m, const struct position *at, const int q,
                        int64_t num_rows, int64_t k, int64_t first, int64_t width, ACC *sums) {
  const int64_t terms = min_of(min_of(depth(p, q), m->past_term) - k, depth_block(p));
  const int64_t rest = b_form(q) & IS_ALONG_K ? -terms & (PAIR - 1) : 0;
  const FACTOR *rows[NARROW_ROWS + DOT_ROWS];
  const int is_parted = (b_form(q) & (IS_ALONG_K | IS_BFLOAT)) == (IS_ALONG_K | IS_BFLOAT);
  const int is_direct = a_form(q) == (IS_ALONG_K | IS_PLAIN) && rest == 0 && !is_parted;
  if (!is_direct) write_rows(p, *at, q, k, terms, num_rows, rows_of(p, m, q));
  for (int64_t r = 0; r < num_rows; ++r) {
    FACTOR *row = rows_of(p, m, q) + r * row_stride(p);
    for (int64_t e = terms; e < terms + rest; ++e) row[e] = 0;
    if (is_parted)
      for (int64_t e = 0; e < terms + rest; e += PAIR) part(row + e);
    rows[r] = is_direct ? a_at(p, at + r, q, k) : row;
  }
  for (int i = 0; i < DOT_ROWS; ++i) rows[num_rows + i] = rows[num_rows - 1];
  if (b_form(q) & IS_ALONG_K)
    add_columns_of_b(p, at, q, num_rows, rows, k, terms, first, width, sums);
  else
    add_rows_of_b(p, at, q, num_rows, rows, k, terms, first, width, sums);
}

/* Sums of whole panels of columns that were read in pairs of bfloat16, in the columns' order. */
INLINE void join_sums(const int q, int64_t num_rows, int64_t width, ACC *sums) {
  if ((b_form(q) & (IS_ALONG_K | IS_BFLOAT)) != IS_BFLOAT) return;
  for (int64_t row = 0; row < width / PANEL * num_rows; ++row)
    for (int j = 0; j < PANEL; j += PAIR) join(sums + row * PRODUCTS * PANEL + j);
}

/* The epilogue of few rows with some columns. */
INLINE void finish_group(const struct args *block, const struct position *positions, int64_t num_rows, int64_t first,
                         int64_t width, ACC *sums, struct lanes *lanes) {
#define JOIN_SUMS(q) join_sums(q, num_rows, width, sums + q * PANEL);
  EACH_PRODUCT(JOIN_SUMS)
  for (int64_t c = 0; c < width; c += PANEL)
    finish_tile(block, positions, num_rows, first + c, min_of(PANEL, width - c), sums + c * num_rows * PRODUCTS, lanes);
}

INLINE void positions_of(const struct args *p, const struct position *start, int64_t num_rows,
                         struct position positions[NARROW_ROWS]) {
  positions[0] = *start;
  for (int64_t r = 1; r < num_rows; ++r) positions[r] = positions[r - 1], advance(p, &positions[r]);
}

/* Few rows, which have the same B, with some columns. */
INLINE void multiply_group(const struct args *p, const struct memory *m, const struct position *start,
                           int64_t num_rows, int64_t first, int64_t width) {
  const int64_t num_sums = (width + PANEL - 1) / PANEL * PANEL * num_rows * PRODUCTS;
  struct position positions[NARROW_ROWS];
  positions_of(p, start, num_rows, positions);
  ACC *kept = IS_SPLIT ? m->part + first * num_rows * PRODUCTS : m->sums;
  for (int64_t k = m->term; k < m->past_term; k += depth_block(p)) {
    ACC *sums = k == m->term ? kept : IS_SPLIT ? m->sums : m->sums + num_sums;
    for (int64_t i = 0; i < num_sums; i += LANES) store_sums(sums + i, (vec){0});
#define ADD_PRODUCT(q) if (k < depth(p, q)) add_product(p, m, positions, q, num_rows, k, first, width, sums + q * PANEL);
    EACH_PRODUCT(ADD_PRODUCT)
    if (sums != kept)
      for (int64_t i = 0; i < num_sums; i += LANES) store_sums(kept + i, load_sums(kept + i) + load_sums(sums + i));
  }
  if (!IS_SPLIT) finish_group(m->block, positions, num_rows, first, width, kept, m->lanes);
}

#if IS_SPLIT
/* Sums of one task of those that divide the terms. */
INLINE int64_t part_size(const struct args *p) {
  const struct tiling all = tiling_of(p);
  return (all.num_columns + PANEL - 1) / PANEL * PANEL * all.num_rows * PRODUCTS;
}

/* Adds up the sums of all tasks, in the order of their terms. */
static NOINLINE void finish_parts(const struct args *block) {
  const struct args p = *block;
  const struct tiling all = tiling_of(&p);
  const struct position start_position = position_of(&p, 0, 0);
  struct position positions[NARROW_ROWS];
  positions_of(&p, &start_position, all.num_rows, positions);
  struct lanes lanes;
  start(&lanes);
  for (int64_t c = 0; c < all.num_columns; c += PANEL) {
    ACC *sums = parts(&p) + c * all.num_rows * PRODUCTS;
    for (int64_t i = 0; i < PANEL * all.num_rows * PRODUCTS; i += LANES) {
      vec total = load_sums(sums + i);
      for (int64_t k = split_terms(&p), at = part_size(&p); k < deepest(&p); k += split_terms(&p), at += part_size(&p))
        total += load_sums(sums + at + i);
      store_sums(sums + i, total);
    }
    finish_group(block, positions, all.num_rows, c, min_of(PANEL, all.num_columns - c), sums, &lanes);
  }
}
#endif

#else
/* Factors of B for `width` columns and `terms` terms. */
INLINE void pack_b(const struct args *p, const struct position *at, const int q, int64_t k0, int64_t terms,
                   int64_t first, int64_t width, FACTOR *panels) {
  if (!(b_form(q) & IS_ALONG_K)) {
    for (int64_t c = 0; c < width; c += PANEL) {
      FACTOR *out = panels + c * depth_block(p);
      const int64_t columns = min_of(PANEL, width - c);
      if (b_form(q) & IS_PLAIN && columns == PANEL) {
        for (int64_t k = 0; k < terms; ++k, out += PANEL) {
          const FACTOR *line = b_at(p, at, q, k0 + k, first + c);
          UNROLL for (int v = 0; v < PANEL; v += LANES) store(out + v, load(line + v));
        }
        continue;
      }
      for (int64_t k = 0; k < terms; ++k, out += PANEL) {
        if (columns == PANEL) {
          read_b(p, at, q, k0 + k, first + c, PANEL, out);
        } else {
          read_b(p, at, q, k0 + k, first + c, columns, out);
          for (int64_t j = columns; j < PANEL; ++j) out[j] = 0;
        }
      }
    }
    return;
  }
  for (int64_t c = 0; c < width; c += LANES) {
    FACTOR *out = panels + c / PANEL * PANEL * depth_block(p) + c % PANEL;
    const int64_t columns = min_of(LANES, width - c);
    int64_t k = 0;
    if (b_form(q) & IS_PLAIN && columns == LANES)
      for (; k + LANES <= terms; k += LANES) {
        vec r[LANES];
        UNROLL for (int i = 0; i < LANES; ++i) r[i] = load(b_at(p, at, q, k0 + k, first + c + i));
        transpose(r);
        UNROLL for (int i = 0; i < LANES; ++i) store(out + (k + i) * PANEL, r[i]);
      }
    for (; k < terms; k += LINE) {
      FACTOR lines[LANES][LINE];
      const int64_t count = min_of(LINE, terms - k);
      for (int64_t i = 0; i < columns; ++i) read_b(p, at, q, k0 + k, first + c + i, count, lines[i]);
      write_columns(lines, columns, count, out + k * PANEL, PANEL);
    }
  }
  for (int64_t c = (width + LANES - 1) / LANES * LANES; c % PANEL; c += LANES) /* what no column fills */
    for (int64_t k = 0; k < terms; ++k) store(panels + c / PANEL * PANEL * depth_block(p) + k * PANEL + c % PANEL, (vec){0});
}

/* Sums of a tile over some terms; the rows' factors lie next to each other. The stride of sums is that of a row. */
static NOINLINE void multiply_tile(int64_t terms, const FACTOR *const *rows, const FACTOR *panel, ACC *sums, int adds) {
  const FACTOR *a[TILE_ROWS];
  UNROLL for (int i = 0; i < TILE_ROWS; ++i) a[i] = rows[i];
  for (int64_t k = 0; k < terms; adds = 1) {
    const int64_t past_k = min_of(terms, k + SHORT);
    vec c[TILE_ROWS][PANEL_VECTORS];
    UNROLL for (int i = 0; i < TILE_ROWS; ++i) UNROLL for (int v = 0; v < PANEL_VECTORS; ++v) c[i][v] = (vec){0};
    for (; k < past_k; ++k, panel += PANEL) {
      vec b[PANEL_VECTORS];
      UNROLL for (int v = 0; v < PANEL_VECTORS; ++v) b[v] = load(panel + v * LANES);
      UNROLL for (int i = 0; i < TILE_ROWS; ++i) {
        const vec x = spread(a[i][k]);
        UNROLL for (int v = 0; v < PANEL_VECTORS; ++v) c[i][v] = multiply_add(x, b[v], c[i][v]);
      }
    }
    UNROLL for (int i = 0; i < TILE_ROWS; ++i) UNROLL for (int v = 0; v < PANEL_VECTORS; ++v) {
      ACC *sum = sums + i * PRODUCTS * PANEL + v * LANES;
      store_sums(sum, adds ? load_sums(sum) + c[i][v] : c[i][v]);
    }
  }
}

/* Asks for a part of the rows that come next, as far from these as these are from each other. */
INLINE void ask_for_rows(const FACTOR *const *rows, int64_t first, int64_t past) {
  for (int i = 0; i < TILE_ROWS; ++i)
    for (int64_t e = first; e < past; e += 64 / (int64_t)sizeof(FACTOR))
      __builtin_prefetch(rows[i] + TILE_ROWS * (rows[1] - rows[0]) + e);
}

/* Tiles of at most TILE_ROWS rows with all panels, over terms k to past_k. */
INLINE void multiply_rows(const struct args *p, const struct memory *m, struct position *at, int64_t row,
                          int64_t num_rows, int64_t first, int64_t width, int64_t k, ACC *sums) {
  struct position positions[TILE_ROWS];
  const FACTOR *a[PRODUCTS][TILE_ROWS];
  for (int i = 0; i < TILE_ROWS; ++i) {
    positions[i] = *at;
#define FACTORS_OF_ROW(q) \
  a[q][i] = a_form(q) == (IS_ALONG_K | IS_PLAIN) ? a_at(p, at, q, k) : rows_of(p, m, q) + row * row_stride(p);
    EACH_PRODUCT(FACTORS_OF_ROW)
    if (i < num_rows - 1) advance(p, at), ++row;
  }
  advance(p, at);
  const int is_last = k + depth_block(p) >= deepest(p);
  const int64_t terms = min_of(deepest(p) - k, depth_block(p));
  for (int64_t c = 0; c < width; c += PANEL) {
    if (a_form(0) == (IS_ALONG_K | IS_PLAIN)) ask_for_rows(a[0], terms * c / width, terms * (c + PANEL) / width);
#define MULTIPLY(q)                                                                             \
  if (k < depth(p, q))                                                                          \
    multiply_tile(min_of(depth(p, q) - k, depth_block(p)), a[q], panels_of(p, m, q) + c * depth_block(p), \
                  sums + q * PANEL, k > 0);
    EACH_PRODUCT(MULTIPLY)
    if (is_last) finish_tile(m->block, positions, num_rows, first + c, min_of(PANEL, width - c), sums, m->lanes);
    if (deepest(p) > depth_block(p)) sums += TILE_ROWS * PRODUCTS * PANEL;
  }
}

/* Some rows, which have the same B, with a group of columns. */
INLINE void multiply_group(const struct args *p, const struct memory *m, const struct position *start,
                           int64_t num_rows, int64_t first, int64_t width) {
  const int64_t padded = (width + PANEL - 1) / PANEL * PANEL;
  for (int64_t k = 0; k < deepest(p); k += depth_block(p)) {
#define PACK(q)           \
  if (k < depth(p, q))    \
    pack_b(p, start, q, k, min_of(depth(p, q) - k, depth_block(p)), first, width, panels_of(p, m, q));
    EACH_PRODUCT(PACK)
    struct position at = *start;
    ACC *sums = m->sums;
    for (int64_t row = 0; row < num_rows; row += CHUNK_ROWS) {
      const int64_t chunk = min_of(CHUNK_ROWS, num_rows - row);
#define WRITE_ROWS(q)                                                                    \
  if (a_form(q) != (IS_ALONG_K | IS_PLAIN) && a_from(q) == q && k < depth(p, q)) \
    write_rows(p, at, q, k, min_of(depth(p, q) - k, depth_block(p)), chunk, rows_of(p, m, q));
      EACH_PRODUCT(WRITE_ROWS)
      for (int64_t r = 0; r < chunk; r += TILE_ROWS) {
        multiply_rows(p, m, &at, r, min_of(TILE_ROWS, chunk - r), first, width, k, sums);
        if (deepest(p) > depth_block(p)) sums += TILE_ROWS * PRODUCTS * padded;
      }
    }
  }
}
#endif /* IS_NARROW */

static NOINLINE void run_task(const struct args *block, int64_t t, void *scratch) {
  const struct args p = *block;
#if STACK_BYTES
  char own[STACK_BYTES] __attribute__((aligned(64)));
  scratch = own;
#endif
  struct lanes lanes;
  start(&lanes);
  struct memory m = memory_of(&p, block, scratch, &lanes);
  const struct tiling tiling = tiling_of(&p);
  m.past_term = deepest(&p);
#if IS_SPLIT
  const int64_t split = t / (tiling.row_tasks * tiling.column_tasks);
  m.term = split * split_terms(&p);
  m.past_term = min_of(m.past_term, m.term + split_terms(&p));
  m.part = parts(&p) + split * part_size(&p);
  const struct tile tile = tile_of(tiling, t % (tiling.row_tasks * tiling.column_tasks));
#else
  const struct tile tile = tile_of(tiling, t);
#endif
  const int64_t most_rows = deepest(&p) > depth_block(&p) ? SUM_ROWS : INT64_MAX;
  if (HAS_REDUCTIONS) begin(&p, t);
  for (int64_t row = tile.row, num_rows; row < tile.past_row; row += num_rows) {
    const struct position at = position_of(&p, row, t);
    num_rows = min_of(min_of(tile.past_row - row, rows_left(&p, &at)), most_rows);
    for (int64_t j = tile.column; j < tile.past_column; j += group(&p))
      multiply_group(&p, &m, &at, num_rows, j, min_of(group(&p), tile.past_column - j));
  }
  fold(&p, t, &lanes);
}

int KERNEL(const void *block, const struct fp_task *task);
int KERNEL(const void *block, const struct fp_task *task) {
  const struct args p = *(const struct args *)block;
  for (int64_t t; (t = fp_next(task)) >= 0;) {
    run_task(block, t, task->scratch);
#if IS_SPLIT
    if (fp_is_last(task)) finish_parts(block);
#endif
    if (HAS_REDUCTIONS && fp_is_last(task)) finish(&p, task->num_tasks);
  }
  return 0;
}
