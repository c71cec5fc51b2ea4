/* A stand-in for cuBLASLt on host memory, with float and bfloat16 matrices: the few entries that the engine calls. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { NOT_SUPPORTED = 15, INVALID = 7 };

struct layout { int type; uint64_t rows, columns; int64_t leading; int32_t batch; int64_t stride; };
struct operation { int32_t turned[2]; };
struct preference { uint64_t workspace; uint32_t schemes, alignment[4]; };
struct algorithm { uint64_t data[8]; size_t workspace; int state; float waves; int reserved[4]; };

int64_t alive; /* descriptions that were made and not destroyed */

size_t cublasLtGetVersion(void) { return 130100; }

int cublasLtCreate(void **made) { return *made = malloc(1), 0; }

int cublasLtMatmulDescCreate(struct operation **made, int compute, int scale) {
  if (compute != 68 || scale != 0) return INVALID;
  return *made = calloc(1, sizeof **made), ++alive, 0;
}

int cublasLtMatmulDescSetAttribute(struct operation *o, int attribute, const void *value, size_t size) {
  if (size != 4 || (attribute != 3 && attribute != 4)) return INVALID;
  return memcpy(&o->turned[attribute - 3], value, size), 0;
}

int cublasLtMatmulDescDestroy(struct operation *o) { return free(o), --alive, 0; }

int cublasLtMatrixLayoutCreate(struct layout **made, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  if (leading < (int64_t)rows) return INVALID;
  *made = calloc(1, sizeof **made);
  **made = (struct layout){type, rows, columns, leading, 1, 0};
  return ++alive, 0;
}

int cublasLtMatrixLayoutSetAttribute(struct layout *l, int attribute, const void *value, size_t size) {
  if (attribute == 5 && size == 4) return memcpy(&l->batch, value, size), 0;
  if (attribute == 6 && size == 8) return memcpy(&l->stride, value, size), 0;
  return INVALID;
}

int cublasLtMatrixLayoutDestroy(struct layout *l) { return free(l), --alive, 0; }

int cublasLtMatmulPreferenceCreate(struct preference **made) {
  return *made = calloc(1, sizeof **made), ++alive, 0;
}

int cublasLtMatmulPreferenceSetAttribute(struct preference *p, int attribute, const void *value, size_t size) {
  if (attribute == 1 && size == 8) return memcpy(&p->workspace, value, size), 0;
  if (attribute == 3 && size == 4) return memcpy(&p->schemes, value, size), 0;
  if (attribute >= 5 && attribute <= 8 && size == 4) return memcpy(&p->alignment[attribute - 5], value, size), 0;
  return INVALID;
}

int cublasLtMatmulPreferenceDestroy(struct preference *p) { return free(p), --alive, 0; }

static int64_t rows_of(const struct layout *l, int turned) { return turned ? l->columns : l->rows; }
static int64_t columns_of(const struct layout *l, int turned) { return turned ? l->rows : l->columns; }

static int fits(const struct operation *o, const struct layout *a, const struct layout *b, const struct layout *d) {
  const int one_batch = a->batch == d->batch && b->batch == d->batch;
  return one_batch && rows_of(a, o->turned[0]) == (int64_t)d->rows && columns_of(b, o->turned[1]) == (int64_t)d->columns &&
         columns_of(a, o->turned[0]) == rows_of(b, o->turned[1]);
}

/* Two algorithms for aligned addresses, the second with a workspace; one for others; none for products of 13 terms. */
int cublasLtMatmulAlgoGetHeuristic(void *handle, const struct operation *o, const struct layout *a,
                                   const struct layout *b, const struct layout *c, const struct layout *d,
                                   const struct preference *p, int most, struct algorithm *found, int *count) {
  if (!handle || c != d || !fits(o, a, b, d) || p->schemes != 2) return INVALID;
  *count = 0;
  if (columns_of(a, o->turned[0]) == 13) return NOT_SUPPORTED;
  memset(found, 0, most * sizeof *found);
  found[(*count)++].data[0] = 1;
  if (p->alignment[0] < 16 || p->alignment[3] < 16) return 0;
  found[*count].data[0] = 2, found[(*count)++].workspace = 256;
  return 0;
}

static double element(const void *at, int type, int64_t i) {
  if (type == 0) return ((const float *)at)[i];
  const uint32_t bits = (uint32_t)((const uint16_t *)at)[i] << 16;
  float x;
  return memcpy(&x, &bits, 4), x;
}

static void put(void *at, int type, int64_t i, double sum) {
  float x = (float)sum;
  if (type == 0) { ((float *)at)[i] = x; return; }
  uint32_t bits;
  memcpy(&bits, &x, 4);
  ((uint16_t *)at)[i] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

int cublasLtMatmul(void *handle, const struct operation *o, const float *alpha, const void *a, const struct layout *la,
                   const void *b, const struct layout *lb, const float *beta, const void *c, const struct layout *lc,
                   void *d, const struct layout *ld, const uint64_t *algorithm, void *workspace, size_t bytes,
                   void *stream) {
  if (stream) return 13; /* a stream that fails */
  if (!handle || *alpha != 1 || *beta != 0 || c != d || lc != ld || !fits(o, la, lb, ld)) return INVALID;
  if (algorithm[0] == 2) memset(workspace, 7, bytes);
  const int64_t terms = columns_of(la, o->turned[0]);
  for (int64_t z = 0; z < ld->batch; ++z)
    for (int64_t j = 0; j < (int64_t)ld->columns; ++j)
      for (int64_t i = 0; i < (int64_t)ld->rows; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < terms; ++k) {
          const int64_t in_a = o->turned[0] ? k + i * la->leading : i + k * la->leading;
          const int64_t in_b = o->turned[1] ? j + k * lb->leading : k + j * lb->leading;
          sum += element(a, la->type, z * la->stride + in_a) * element(b, lb->type, z * lb->stride + in_b);
        }
        put(d, ld->type, z * ld->stride + i + j * ld->leading, sum);
      }
  return 0;
}
