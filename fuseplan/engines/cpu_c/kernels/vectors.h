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
#endif
