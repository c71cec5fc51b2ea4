/* matmul_bf16.c: products of bfloat16 factors in tile registers (AMX), sums in float; for the rest as matmul.c.
 *
 * The instruction takes two terms at a time: terms k and k + 1 of a row or column are a pair, a word of 32 bits with k
 * in its low half. A task takes a group of columns and a block of depth at a time. The factors of rows are read where
 * they are if TILE_ROWS rows lie evenly and their terms fill whole steps, else they are written into a buffer. Then, for
 * each panel of BLOCK columns, the pairs of B are written as [pair][BLOCK]; they stay in the first cache while all rows
 * walk over them in tiles of TILE_ROWS x BLOCK sums. Each block of depth is summed from zero by itself. Behind the last
 * term of rows and columns stand zeros up to a whole step; what stands for rows and columns that are not there is never
 * looked at.
 * Holes: those of matmul.c but IS_NARROW and MULTIPLY_ADD, with ACC float and FACTOR uint16_t, and
 *   chunk_rows(p)      rows, whole tiles and at most NUM_TILES, whose positions, factors and sums are kept together
 */
#ifndef KERNEL /* alone: C = A B for packed matrices */
#include <stdint.h>

#include "../../../runtime/team/task.h"
#include "tiles.h"
#include "vectors.h"
#define KERNEL matmul_bf16
#define PRODUCTS 1
#define EACH_PRODUCT(DO) DO(0)
#define ACC float
#define FACTOR uint16_t
#define HAS_REDUCTIONS 0
#define BLOCK 32
#define STACK_BYTES 0
#ifndef A_FORM
#define A_FORM 3
#define B_FORM 2
#endif

struct args { /* a factor of A is x0[m * row + k * term], one of B is x1[k * line + n * column] */
  const uint16_t *x0, *x1;
  float *y0;
  int64_t m, row_tasks, n, column_tasks, depth, group, depth_block, chunk_rows, num_sums, row, term, line, column;
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
INLINE int64_t chunk_rows(const struct args *p) { return p->chunk_rows; }
INLINE int64_t num_sums(const struct args *p) { return p->num_sums; }

INLINE int64_t depth(const struct args *p, const int q) {
  (void)q;
  return p->depth;
}

INLINE int a_form(const int q) {
  (void)q;
  return A_FORM;
}

INLINE int b_form(const int q) {
  (void)q;
  return B_FORM;
}

INLINE int a_from(const int q) { return q; }

INLINE const uint16_t *a_at(const struct args *p, const struct position *at, const int q, int64_t k) {
  (void)q;
  return &p->x0[at->i0 * p->row + k * p->term];
}

INLINE const uint16_t *b_at(const struct args *p, const struct position *at, const int q, int64_t k, int64_t j) {
  (void)at, (void)q;
  return &p->x1[k * p->line + j * p->column];
}

INLINE void read_a(const struct args *p, const struct position *at, const int q, int64_t k, int64_t count,
                   uint16_t *restrict out) {
  for (int64_t e = 0; e < count; ++e) out[e] = a_at(p, at, q, k)[e * (A_FORM & 1 ? p->term : p->row)];
}

INLINE void read_b(const struct args *p, const struct position *at, const int q, int64_t k, int64_t j, int64_t count,
                   uint16_t *restrict out) {
  for (int64_t e = 0; e < count; ++e) out[e] = b_at(p, at, q, k, j)[e * (B_FORM & 1 ? p->line : p->column)];
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
#define TILE_ROWS 32
#define STEP 32      /* terms of a step: what a tile register holds of a row */
#define NUM_TILES 16 /* that chunk_rows(p) are at most */
#define ROW_GAP 32   /* behind a row in the buffer: keeps rows off the 4 KiB grid */
#define TILE_SUMS (TILE_ROWS * PRODUCTS * BLOCK)

typedef uint32_t words __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t words_anywhere __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(FACTOR)), may_alias));

INLINE words load(const void *at) { return *(const words_anywhere *)at; }
INLINE void store(void *at, words x) { *(words_anywhere *)at = x; }
INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t whole_steps(int64_t terms) { return (terms + STEP - 1) / STEP * STEP; }
INLINE uint32_t pair(FACTOR low, FACTOR high) { return low | (uint32_t)high << 16; }

INLINE void transpose(words *r) { TRANSPOSE(r) }

/* What a thread works on: the panels of B at hand, rows of A, sums, and where the rows are. */
struct memory {
  uint32_t *panels;
  FACTOR *rows;
  ACC *sums, *kept;
  struct position *positions;
  struct lanes *lanes;
  const struct args *block; /* as in matmul.c */
};

INLINE int64_t row_stride(const struct args *p) { return depth_block(p) + ROW_GAP; }

INLINE FACTOR *rows_of(const struct args *p, const struct memory *m, const int q) {
  return m->rows + a_from(q) * chunk_rows(p) * row_stride(p);
}

INLINE uint32_t *panel_of(const struct args *p, const struct memory *m, const int q) {
  return m->panels + q * depth_block(p) / 2 * BLOCK;
}

INLINE struct memory memory_of(const struct args *p, const struct args *block, void *scratch, struct lanes *lanes) {
  struct memory m = {.panels = scratch, .lanes = lanes, .block = block};
  m.sums = (ACC *)panel_of(p, &m, PRODUCTS);
  m.kept = m.sums + 2 * TILE_SUMS;
  m.rows = (FACTOR *)(m.kept + num_sums(p));
  m.positions = (struct position *)(m.rows + PRODUCTS * chunk_rows(p) * row_stride(p));
  return m;
}

INLINE int64_t deepest(const struct args *p) {
  int64_t most = 0;
#define DEEPER(q) most = depth(p, q) > most ? depth(p, q) : most;
  EACH_PRODUCT(DEEPER)
  return most;
}

/* Terms of a block of depth that starts at k. */
INLINE int64_t terms_at(const struct args *p, const int q, int64_t k) { return min_of(depth(p, q) - k, depth_block(p)); }

/* Pairs of a panel from lines of columns, one for each term. */
INLINE void pack_lines(const struct args *p, const struct position *at, const int q, int64_t k0, int64_t terms,
                       int64_t first, int64_t columns, uint32_t *panel) {
  for (int64_t k = 0; k < whole_steps(terms); k += 2, panel += BLOCK) {
    FACTOR lines[2][BLOCK];
    const FACTOR *low = lines[0], *high = lines[1];
    if (b_form(q) & IS_PLAIN && columns == BLOCK && k + 2 <= terms) {
      low = b_at(p, at, q, k0 + k, first);
      high = b_at(p, at, q, k0 + k + 1, first);
    } else {
      for (int j = 0; j < BLOCK; ++j) lines[0][j] = lines[1][j] = 0;
      if (k < terms) read_b(p, at, q, k0 + k, first, columns, lines[0]);
      if (k + 1 < terms) read_b(p, at, q, k0 + k + 1, first, columns, lines[1]);
    }
#pragma omp simd
    for (int j = 0; j < BLOCK; ++j) panel[j] = pair(low[j], high[j]);
  }
}

/* Pairs of a panel from lines of terms, one for each column. */
INLINE void pack_columns(const struct args *p, const struct position *at, const int q, int64_t k0, int64_t terms,
                         int64_t first, int64_t columns, uint32_t *panel) {
  for (int64_t c = 0; c < BLOCK; c += LANES)
    for (int64_t k = 0; k < whole_steps(terms); k += 2 * LANES) {
      words r[LANES];
      if (b_form(q) & IS_PLAIN && c + LANES <= columns && k + 2 * LANES <= terms) {
        UNROLL for (int i = 0; i < LANES; ++i) r[i] = load(b_at(p, at, q, k0 + k, first + c + i));
      } else {
        FACTOR lines[LANES][2 * LANES] = {{0}};
        const int64_t count = min_of(2 * LANES, terms - k);
        for (int64_t i = 0; i < LANES && c + i < columns; ++i)
          if (count > 0) read_b(p, at, q, k0 + k, first + c + i, count, lines[i]);
        UNROLL for (int i = 0; i < LANES; ++i) r[i] = load(lines[i]);
      }
      transpose(r);
      UNROLL for (int i = 0; i < LANES; ++i) store(panel + (k / 2 + i) * BLOCK + c, r[i]);
    }
}

/* Factors of A for some rows, at most TILE_ROWS, whose terms are neighbours. */
INLINE void write_rows(const struct args *p, const struct position *at, const int q, int64_t k0, int64_t terms,
                       int64_t num_rows, FACTOR *out) {
  for (int64_t r = 0; r < num_rows; ++r, out += row_stride(p)) {
    read_a(p, at + r, q, k0, terms, out);
    for (int64_t k = terms; k < whole_steps(terms); ++k) out[k] = 0;
  }
}

/* The same where rows are neighbours, LANES of them that follow each other on the axis M. */
INLINE void turn_rows(const struct args *p, const struct position *at, const int q, int64_t k0, int64_t terms,
                      int64_t num_rows, FACTOR *out) {
  for (int64_t k = 0; k < whole_steps(terms); k += 2 * LANES) {
    uint32_t pairs[LANES][LANES];
    for (int i = 0; i < LANES; ++i) {
      FACTOR lines[2][LANES];
      const FACTOR *low = lines[0], *high = lines[1];
      if (a_form(q) & IS_PLAIN && num_rows == LANES && k + 2 * i + 2 <= terms) {
        low = a_at(p, at, q, k0 + k + 2 * i);
        high = a_at(p, at, q, k0 + k + 2 * i + 1);
      } else {
        for (int j = 0; j < LANES; ++j) lines[0][j] = lines[1][j] = 0;
        if (k + 2 * i < terms) read_a(p, at, q, k0 + k + 2 * i, num_rows, lines[0]);
        if (k + 2 * i + 1 < terms) read_a(p, at, q, k0 + k + 2 * i + 1, num_rows, lines[1]);
      }
#pragma omp simd
      for (int j = 0; j < LANES; ++j) pairs[i][j] = pair(low[j], high[j]);
    }
    words r[LANES];
    UNROLL for (int i = 0; i < LANES; ++i) r[i] = load(pairs[i]);
    transpose(r);
    UNROLL for (int i = 0; i < LANES; ++i) if (i < num_rows) store(out + i * row_stride(p) + k, r[i]);
  }
}

/* The factors of up to TILE_ROWS rows: where they are, or in the buffer. */
struct rows {
  const FACTOR *at;
  int64_t stride;
};

INLINE struct rows rows_at(const struct args *p, const struct position *at, const int q, int64_t k, int64_t num_rows,
                           FACTOR *buffer) {
  const int64_t terms = terms_at(p, q, k);
  if (a_form(q) == (IS_ALONG_K | IS_PLAIN) && terms % STEP == 0 && num_rows == TILE_ROWS &&
      lines_left(p, at) >= TILE_ROWS) {
    const FACTOR *first = a_at(p, at, q, k);
    return (struct rows){first, a_at(p, at + 1, q, k) - first};
  }
  if (a_form(q) & IS_ALONG_K)
    write_rows(p, at, q, k, terms, num_rows, buffer);
  else
    for (int64_t r = 0, count; r < num_rows; r += count) {
      count = min_of(min_of(LANES, num_rows - r), lines_left(p, at + r));
      turn_rows(p, at + r, q, k, terms, count, buffer + r * row_stride(p));
    }
  return (struct rows){buffer, row_stride(p)};
}

/* A tile of sums whose rows are being finished: from `done` on, they are still to be handed to the epilogue. */
struct unfinished {
  const struct args *block;
  struct lanes *lanes;
  const struct position *at;
  ACC *sums;
  int64_t done, num_rows, first, width;
};

/* Apart from the main loop and with a block of its own, as in matmul.c. */
static NOINLINE void finish_rows(struct unfinished *tile, int64_t count) {
  const struct args p = *tile->block;
  const int64_t past = min_of(tile->num_rows, tile->done + count);
  for (int64_t r = tile->done; r < past; ++r) {
    const struct position row = tile->at[r];
    epilogue(&p, &row, tile->first, tile->width, (ACC(*)[BLOCK])tile->sums + r * PRODUCTS, tile->lanes);
  }
  tile->done = past;
}

#ifndef TILE_OPERATIONS /* a test has others */
/* The assembler's text: gcc takes its own functions for ones that do not touch memory. */
#define LOAD_CONFIG(config) __asm__ volatile("ldtilecfg %0" ::"m"(config))
#define RELEASE_TILES() __asm__ volatile("tilerelease" ::: "memory")
#define ZERO_TILE(t) __asm__ volatile("tilezero %%tmm" #t ::: "memory")
#define LOAD_TILE(t, at, bytes) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(at), "r"((int64_t)(bytes)) : "memory")
#define STORE_TILE(t, at, bytes) \
  __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(at), "r"((int64_t)(bytes)) : "memory")
#define MULTIPLY_TILES(sums, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sums ::: "memory")
#endif

struct tile_config {
  uint8_t palette, start_row, unused[14];
  uint16_t row_bytes[16];
  uint8_t num_rows[16];
};

INLINE void begin_tiles(void) {
  struct tile_config config = {.palette = 1};
  for (int t = 0; t < 8; ++t) config.row_bytes[t] = 2 * STEP, config.num_rows[t] = TILE_ROWS / 2;
  LOAD_CONFIG(config);
}

INLINE void end_tiles(void) { RELEASE_TILES(); }

/* Sums of a tile over some steps, in four registers; the lower half has no rows if there are few. Loads of tiles take
 * so long that rows of the tile before are finished meanwhile, some at each step. */
INLINE void multiply_halves(int64_t steps, struct rows a, const uint32_t *panel, ACC *sums, struct unfinished *before,
                            const int has_lower) {
  const int64_t share = (before->num_rows - before->done + steps - 1) / steps;
  const FACTOR *lower = a.at + TILE_ROWS / 2 * a.stride;
  ZERO_TILE(0);
  ZERO_TILE(1);
  ZERO_TILE(2);
  ZERO_TILE(3);
  for (int64_t s = 0; s < steps; ++s, a.at += STEP, lower += STEP, panel += STEP / 2 * BLOCK) {
    LOAD_TILE(4, a.at, 2 * a.stride);
    LOAD_TILE(6, panel, 4 * BLOCK);
    MULTIPLY_TILES(0, 4, 6);
    LOAD_TILE(7, panel + BLOCK / 2, 4 * BLOCK);
    MULTIPLY_TILES(1, 4, 7);
    if (has_lower) {
      LOAD_TILE(5, lower, 2 * a.stride);
      MULTIPLY_TILES(2, 5, 6);
      MULTIPLY_TILES(3, 5, 7);
    }
    if (share > 0) finish_rows(before, share);
  }
  const int64_t row_bytes = PRODUCTS * BLOCK * (int64_t)sizeof(ACC);
  STORE_TILE(0, sums, row_bytes);
  STORE_TILE(1, sums + BLOCK / 2, row_bytes);
  if (!has_lower) return;
  sums += TILE_SUMS / 2;
  STORE_TILE(2, sums, row_bytes);
  STORE_TILE(3, sums + BLOCK / 2, row_bytes);
}

static NOINLINE void multiply_tile(int64_t num_rows, int64_t steps, struct rows a, const uint32_t *panel, ACC *sums,
                                   struct unfinished *before) {
  if (num_rows > TILE_ROWS / 2)
    multiply_halves(steps, a, panel, sums, before, 1);
  else
    multiply_halves(steps, a, panel, sums, before, 0);
}

/* All rows with one panel, over a block of depth that starts at k; `kept` are the panel's sums of other blocks. The
 * tile before the first one is in `tile`, and in the end the last one. */
INLINE void multiply_panel(const struct args *p, const struct memory *m, struct rows (*rows)[NUM_TILES],
                           int64_t num_rows, int64_t first, int64_t width, int64_t k, ACC *kept,
                           struct unfinished *tile) {
  const int is_last = k + depth_block(p) >= deepest(p);
  const int is_kept = deepest(p) > depth_block(p);
  for (int64_t r = 0; r < num_rows; r += TILE_ROWS, kept += TILE_SUMS) {
    const int64_t count = min_of(TILE_ROWS, num_rows - r);
    ACC *sums = is_kept && k == 0 ? kept : tile->sums == m->sums ? m->sums + TILE_SUMS : m->sums;
#define MULTIPLY(q)                                                                                              \
  if (k < depth(p, q))                                                                                           \
    multiply_tile(count, whole_steps(terms_at(p, q, k)) / STEP, rows[a_from(q)][r / TILE_ROWS], panel_of(p, m, q), \
                  sums + q * BLOCK, tile);
    EACH_PRODUCT(MULTIPLY)
    finish_rows(tile, TILE_ROWS);
    if (is_kept && k > 0) {
#define ADD_TO_KEPT(q)                                                                                       \
  if (k < depth(p, q))                                                                                       \
    for (int64_t i = 0; i < count; ++i)                                                                      \
      for (int64_t j = 0; j < BLOCK; ++j) kept[(i * PRODUCTS + q) * BLOCK + j] += sums[(i * PRODUCTS + q) * BLOCK + j];
      EACH_PRODUCT(ADD_TO_KEPT)
      sums = kept;
    }
    if (is_last) *tile = (struct unfinished){m->block, m->lanes, m->positions + r, sums, 0, count, first, width};
  }
}

/* Some rows, which have the same B, with a group of columns. */
INLINE void multiply_group(const struct args *p, const struct memory *m, int64_t num_rows, int64_t first,
                           int64_t width) {
  struct rows rows[PRODUCTS][NUM_TILES];
  struct unfinished tile = {.block = m->block};
  for (int64_t k = 0; k < deepest(p); k += depth_block(p)) {
    for (int64_t r = 0; r < num_rows; r += TILE_ROWS) {
#define FACTORS_OF_ROWS(q)                                                                      \
  if (a_from(q) == q && k < depth(p, q))                                                        \
    rows[q][r / TILE_ROWS] = rows_at(p, m->positions + r, q, k, min_of(TILE_ROWS, num_rows - r), \
                                     rows_of(p, m, q) + r * row_stride(p));
      EACH_PRODUCT(FACTORS_OF_ROWS)
    }
    for (int64_t c = 0; c < width; c += BLOCK) {
      const int64_t columns = min_of(BLOCK, width - c);
#define PACK(q)                                                                                                    \
  if (k < depth(p, q)) {                                                                                           \
    if (b_form(q) & IS_ALONG_K)                                                                                    \
      pack_columns(p, m->positions, q, k, terms_at(p, q, k), first + c, columns, panel_of(p, m, q));               \
    else                                                                                                           \
      pack_lines(p, m->positions, q, k, terms_at(p, q, k), first + c, columns, panel_of(p, m, q));                 \
  }
      EACH_PRODUCT(PACK)
      const int64_t kept = c / BLOCK * (chunk_rows(p) / TILE_ROWS) * TILE_SUMS;
      multiply_panel(p, m, rows, num_rows, first + c, columns, k, m->kept + kept, &tile);
    }
  }
  finish_rows(&tile, TILE_ROWS);
}

static NOINLINE void run_task(const struct args *block, int64_t t, void *scratch) {
  const struct args p = *block;
#if STACK_BYTES
  char own[STACK_BYTES] __attribute__((aligned(64)));
  scratch = own;
#endif
  struct lanes lanes;
  start(&lanes);
  const struct memory m = memory_of(&p, block, scratch, &lanes);
  const struct tile tile = tile_of(tiling_of(&p), t);
  if (HAS_REDUCTIONS) begin(&p, t);
  begin_tiles();
  for (int64_t row = tile.row, num_rows; row < tile.past_row; row += num_rows) {
    struct position at = position_of(&p, row, t);
    num_rows = min_of(min_of(tile.past_row - row, rows_left(&p, &at)), chunk_rows(&p));
    for (int64_t r = 0; r < num_rows; ++r, advance(&p, &at)) m.positions[r] = at;
    for (int64_t j = tile.column; j < tile.past_column; j += group(&p))
      multiply_group(&p, &m, num_rows, j, min_of(group(&p), tile.past_column - j));
  }
  end_tiles();
  fold(&p, t, &lanes);
}

int KERNEL(const void *block, const struct fp_task *task);
int KERNEL(const void *block, const struct fp_task *task) {
  const struct args p = *(const struct args *)block;
  for (int64_t t; (t = fp_next(task)) >= 0;) {
    run_task(block, t, task->scratch);
    if (HAS_REDUCTIONS && fp_is_last(task)) finish(&p, task->num_tasks);
  }
  return 0;
}
