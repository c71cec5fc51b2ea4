/* What the instructions of tile registers do, in plain C: for kernels of matmul_bf16.c on CPUs without them.
 *
 * As on the CPU: factors and sums that are denormal count as 0, and a sum takes the two products of a pair one after
 * the other. What a kernel may not do ends the process: registers that were not configured, or are not released. */
#ifndef TILE_OPERATIONS
#define TILE_OPERATIONS
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct stand_in_tile {
  uint32_t words[16][16];
};

static __thread struct stand_in_tile stand_in_tiles[8];
static __thread int stand_in_is_configured;

static inline float stand_in_flushed(float x) { return fabsf(x) < 0x1p-126f ? 0 * x : x; }

static inline float stand_in_factor(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return stand_in_flushed(x);
}

/* The sum of a word's two products and what was there. */
static inline float stand_in_pair(float sum, uint32_t a, uint32_t b) {
  sum = stand_in_flushed(fmaf(stand_in_factor(a & 0xffff0000u), stand_in_factor(b & 0xffff0000u), sum));
  return stand_in_flushed(fmaf(stand_in_factor(a << 16), stand_in_factor(b << 16), sum));
}

static inline void stand_in_configure(const void *config) {
  const uint8_t *bytes = config;
  if (bytes[0] != 1) abort();
  for (int t = 0; t < 8; ++t) /* each tile register holds 16 rows of 64 bytes */
    if (bytes[16 + 2 * t] != 64 || bytes[17 + 2 * t] != 0 || bytes[48 + t] != 16) abort();
  stand_in_is_configured = 1;
}

static inline void stand_in_release(void) {
  if (!stand_in_is_configured) abort();
  stand_in_is_configured = 0;
}

static inline struct stand_in_tile *stand_in_tile_of(int t) {
  if (!stand_in_is_configured) abort();
  return &stand_in_tiles[t];
}

static inline void stand_in_load(int t, const void *at, int64_t bytes) {
  for (int r = 0; r < 16; ++r) memcpy(stand_in_tile_of(t)->words[r], (const char *)at + r * bytes, 64);
}

static inline void stand_in_store(int t, void *at, int64_t bytes) {
  for (int r = 0; r < 16; ++r) memcpy((char *)at + r * bytes, stand_in_tile_of(t)->words[r], 64);
}

static inline void stand_in_multiply(int sums, int a, int b) {
  struct stand_in_tile *c = stand_in_tile_of(sums);
  for (int r = 0; r < 16; ++r)
    for (int k = 0; k < 16; ++k)
      for (int j = 0; j < 16; ++j) {
        float sum;
        memcpy(&sum, &c->words[r][j], 4);
        sum = stand_in_pair(sum, stand_in_tiles[a].words[r][k], stand_in_tiles[b].words[k][j]);
        memcpy(&c->words[r][j], &sum, 4);
      }
}

#define LOAD_CONFIG(config) stand_in_configure(&(config))
#define RELEASE_TILES() stand_in_release()
#define ZERO_TILE(t) memset(stand_in_tile_of(t), 0, sizeof(struct stand_in_tile))
#define LOAD_TILE(t, at, bytes) stand_in_load(t, at, bytes)
#define STORE_TILE(t, at, bytes) stand_in_store(t, at, bytes)
#define MULTIPLY_TILES(sums, a, b) stand_in_multiply(sums, a, b)
#endif
