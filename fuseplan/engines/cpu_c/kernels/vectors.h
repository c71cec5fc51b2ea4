/* Vectors of the target's width, from the compiler's vector types: one source for AVX-512, AVX2, SSE and NEON. */
#ifndef FUSEPLAN_VECTORS_H
#define FUSEPLAN_VECTORS_H

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

/* on every loop over an array of accumulators, or gcc keeps the array in memory */
#define UNROLL _Pragma("GCC unroll 64")

/* A panel is so wide that a tile of 6 rows takes 12 of 16 vector registers, or 24 of 32. */
#if VECTOR_BYTES == 64 || defined(__aarch64__)
#define PANEL_VECTORS 4
#else
#define PANEL_VECTORS 2
#endif
#define LANES ((int)(VECTOR_BYTES / sizeof(ACC)))
#define PANEL (PANEL_VECTORS * LANES)

/* The body of a function that transposes LANES vectors of LANES elements, in place: in stage S, lanes whose numbers
 * differ in bit S change places. */
#ifdef __clang__
#define TRANSPOSE(r)                           \
  for (int i = 0; i < LANES; ++i)              \
    for (int j = 0; j < i; ++j) {              \
      const __typeof__((r)[i][j]) x = r[i][j]; \
      r[i][j] = r[j][i];                       \
      r[j][i] = x;                             \
    }
#else
#define STAGE(r, S)                                        \
  if (LANES > S) {                                         \
    __typeof__((r)[0] == (r)[0]) low, high;                \
    UNROLL for (int j = 0; j < LANES; ++j) {               \
      low[j] = j & S ? LANES + j - S : j;                  \
      high[j] = j & S ? LANES + j : j + S;                 \
    }                                                      \
    UNROLL for (int i = 0; i < LANES; ++i) if (!(i & S)) { \
      const __typeof__((r)[0]) x = r[i], y = r[i + S];     \
      r[i] = __builtin_shuffle(x, y, low);                 \
      r[i + S] = __builtin_shuffle(x, y, high);            \
    }                                                      \
  }
#define TRANSPOSE(r) STAGE(r, 1) STAGE(r, 2) STAGE(r, 4) STAGE(r, 8)
#endif
#endif
