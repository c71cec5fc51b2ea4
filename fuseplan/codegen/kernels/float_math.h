/* float_math.h: functions of floats without branches and calls, so that loops over them become vector code.
 *
 * Largest errors in units of the last place, measured over all exponents: exp 1.1, log 0.8, log1p 1.3, tanh 1.3, erf 1.0,
 * sin, cos and tan 0.6. The parts are separated by blank lines; a kernel carries those that it calls. */

/* e^r - 1 for r at most ln(2) / 2 away from 0 */
static inline float exp_tail(float r) {
  float p = MADD_F32(1.387075172e-3f, r, 8.366634138e-3f);
  p = MADD_F32(p, r, 4.166743904e-2f);
  p = MADD_F32(p, r, 1.666654348e-1f);
  p = MADD_F32(p, r, 4.999999702e-1f);
  return MADD_F32(p, r * r, r);
}

/* x / ln(2), rounded to an integer by the addition of 1.5 * 2^23, whose low bits then hold it */
static inline float exp_shifted(float x) { return MADD_F32(x, 1.44269504f, 0x1.8p23f); }

/* what is left of x without n times ln(2) */
static inline float exp_rest(float x, float n) {
  return MADD_F32(n, -1.42860677e-6f, MADD_F32(n, -0.693145752f, x));
}

/* the power of two of an integer from -126 to 127 */
static inline float power_of_2(int32_t n) { return float_of((uint32_t)(n + 127) << 23); }

/* x / y, rounded once: the double product is nearer to the quotient than any tie of floats, and wide divisions are slow */
static inline float quotient(float x, float y, double inverse_of_y) {
#ifdef __AVX512F__
  (void)y;
  return (float)((double)x * inverse_of_y);
#else
  (void)inverse_of_y;
  return x / y;
#endif
}

/* a power of two that keeps 1 / (y times it) among the normal numbers */
static inline float divisor_scale(float y) {
  const float small = fabsf(y) < 0x1p-64f ? 0x1p64f : 1.0f;
  return fabsf(y) > 0x1p64f ? 0x1p-64f : small;
}

/* floats in the order of integers, compared in one instruction */
static inline int32_t key_of(float x) {
  const int32_t u = (int32_t)bits_of(x);
  return u ^ (int32_t)((uint32_t)(u >> 31) >> 1);
}

/* moved so far that a NaN of either sign, which lies beyond the infinities, is the largest, or with the other sign the smallest */
static inline int32_t max_key(float x) { return (int32_t)((uint32_t)key_of(x) - 0x7fffffu); }

static inline int32_t min_key(float x) { return (int32_t)((uint32_t)key_of(x) + 0x7fffffu); }

static inline float of_key(int32_t key) { return float_of((uint32_t)(key ^ (int32_t)((uint32_t)(key >> 31) >> 1))); }

static inline float of_max_key(int32_t key) { return of_key((int32_t)((uint32_t)key + 0x7fffffu)); }

static inline float of_min_key(int32_t key) { return of_key((int32_t)((uint32_t)key - 0x7fffffu)); }

/* the smaller of two numbers that are not negative, which a NaN is not: as integers, which is one instruction */
static inline float smaller_of(float x, float y) { return float_of(bits_of(x) < bits_of(y) ? bits_of(x) : bits_of(y)); }

/* bounded as integers, by which NaN is lost; scaled in two steps, so that results may be infinite or denormal */
static inline float exp_f32(float x) {
  const int32_t high = (int32_t)bits_of(x), below = high < 0x42b20000 ? high : 0x42b20000; /* 89 */
  const uint32_t bits = (uint32_t)below < 0xc2d00000u ? (uint32_t)below : 0xc2d00000u;     /* -104 */
  const float bounded = float_of(bits), shifted = exp_shifted(bounded), tail = exp_tail(exp_rest(bounded, shifted - 0x1.8p23f));
  const int32_t n = (int32_t)(bits_of(shifted) << 23), first = n > -100 * 0x800000 ? n : -100 * 0x800000;
  const float half = float_of(bits_of(MADD_F32(tail, 0.5f, 0.5f)) + (uint32_t)first);
  const uint32_t no_number = x != x ? 0xffffffffu : 0;
  return half * float_of(((uint32_t)(n - first) + 0x40000000u) | no_number);
}

/* the same of an x that is not positive, or NaN: the power of two is 2^32 times too large, then never denormal */
static inline float exp_down_f32(float x) {
  const float bounded = x < -104.0f ? -104.0f : x, magic = 0x1.8p23f + 159.0f; /* 159: bias of the exponent, and 32 */
  const float shifted = MADD_F32(bounded, 1.44269504f, magic), tail = exp_tail(exp_rest(bounded, shifted - magic));
  const float power = float_of(bits_of(shifted) << 23);
  return MADD_F32(tail, power, power) * 0x1p-32f;
}

/* log(2^n (1 + f)) for 1 + f from sqrt(1/2) to sqrt(2) */
static inline float log_of_parts(float n, float f) {
  const float f2 = f * f;
  float p = MADD_F32(6.750956178e-2f, f, -1.167144924e-1f);
  p = MADD_F32(p, f, 1.188356802e-1f);
  p = MADD_F32(p, f, -1.240603179e-1f);
  p = MADD_F32(p, f, 1.422032714e-1f);
  p = MADD_F32(p, f, -1.666799635e-1f);
  p = MADD_F32(p, f, 2.000207305e-1f);
  p = MADD_F32(p, f, -2.500000894e-1f);
  p = MADD_F32(p, f, 3.333331347e-1f);
  p = MADD_F32(p * f, f2, n * 1.42860677e-6f);
  p = MADD_F32(f2, -0.5f, p);
  return MADD_F32(n, 0.693145752f, f + p);
}

/* the exponent of a positive x whose mantissa is taken from sqrt(1/2) to sqrt(2) */
static inline int32_t exponent_of(float x) { return (int32_t)(bits_of(x) - 0x3f3504f3u) >> 23; }

/* what a logarithm is where it is no finite number; x is the argument */
static inline float log_at_ends(float x, float result) {
  const float high = x == INFINITY ? x : result, zero = x == 0.0f ? -INFINITY : high;
  return x >= 0.0f ? zero : NAN;
}

static inline float log_f32(float x) {
  const int32_t is_small = x < 0x1p-126f;
  const float y = is_small ? x * 0x1p23f : x;
  const int32_t n = exponent_of(y);
  const float f = float_of(bits_of(y) - ((uint32_t)n << 23)) - 1.0f;
  return log_at_ends(x, log_of_parts((float)(is_small ? n - 23 : n), f));
}

/* what 1 + x loses by rounding is added to the mantissa again */
static inline float log1p_f32(float x) {
  const float y = 1.0f + x, lost = x < 1.0f ? x - (y - 1.0f) : 1.0f - (y - x);
  const int32_t n = exponent_of(y);
  const uint32_t shift = (uint32_t)n << 23;
  const float f = (float_of(bits_of(y) - shift) - 1.0f) + lost * 0.5f * float_of(0x40000000u - shift);
  const float result = log_at_ends(y, log_of_parts((float)n, f));
  return x == 0.0f ? x : result;
}

/* near 0 an odd polynomial, elsewhere 1 - 2 / (e^2|x| + 1) */
static inline float tanh_f32(float x) {
  const float a = fabsf(x), s = x * x, bounded = smaller_of(a + a, 18.1f);
  const float shifted = exp_shifted(bounded), scale = power_of_2((int32_t)bits_of(shifted) - 0x4b400000);
  const float e = MADD_F32(exp_tail(exp_rest(bounded, shifted - 0x1.8p23f)), scale, scale);
  float p = MADD_F32(2.157635754e-3f, s, -8.195086382e-3f);
  p = MADD_F32(p, s, 2.170874923e-2f);
  p = MADD_F32(p, s, -5.394846201e-2f);
  p = MADD_F32(p, s, 1.333322227e-1f);
  p = MADD_F32(p, s, -3.333333135e-1f);
  const float far = copysignf(1.0f - 2.0f / (e + 1.0f), x);
  return a > 0.625f ? far : x * MADD_F32(p, s, 1.0f);
}

/* near 0 an odd polynomial, elsewhere 1 - e^(a polynomial) */
static inline float erf_f32(float x) {
  const float a = fabsf(x), s = x * x, u = smaller_of(a, 4.0f);
  float r = MADD_F32(-1.152186087e-5f, u, 3.256496566e-4f);
  r = MADD_F32(r, u, -3.653758438e-3f);
  r = MADD_F32(r, u, 2.378535084e-2f);
  r = MADD_F32(r, u, -1.062631682e-1f);
  r = MADD_F32(r, u, -6.351358891e-1f);
  r = MADD_F32(r, u, -1.286521703e-1f);
  r = MADD_F32(r, u, -u);
  const float shifted = exp_shifted(r), scale = power_of_2((int32_t)bits_of(shifted) - 0x4b400000);
  const float far = 1.0f - MADD_F32(exp_tail(exp_rest(r, shifted - 0x1.8p23f)), scale, scale);
  float p = MADD_F32(-5.959063419e-4f, s, 4.987261724e-3f);
  p = MADD_F32(p, s, -2.676291764e-2f);
  p = MADD_F32(p, s, 1.128173023e-1f);
  p = MADD_F32(p, s, -3.761248887e-1f);
  p = MADD_F32(p, s, 1.283791512e-1f);
  return a > 0.93f ? copysignf(far, x) : MADD_F32(p, x, x);
}

static inline uint64_t bits_of_double(double x) {
  uint64_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}

static inline double double_of(uint64_t u) {
  double x;
  memcpy(&x, &u, sizeof x);
  return x;
}

/* one of four numbers for an x below 2^55, 2^87, 2^119 and beyond */
static inline double by_size(float x, double a, double b, double c, double d) {
  const double from_87 = fabsf(x) < 0x1p119f ? c : d, from_55 = fabsf(x) < 0x1p87f ? b : from_87;
  return fabsf(x) < 0x1p55f ? a : from_55;
}

static inline double less_fours(double x) { return x - 4.0 * rint(x * 0.25); }

/* x without a power of 2^32, below 2^55 */
static inline double scaled(float x) { return (double)x * by_size(x, 1.0, 0x1p-32, 0x1p-64, 0x1p-96); }

/* Three parts of x in quarter turns, where multiples of 4 do not count. The quarter turns of that power stand here in
 * pieces of 29 bits, so that their products with a float's 24 are exact. */
static inline double quarters_1(float x) {
  const double piece = by_size(x, 0x1.45f306cp-1, 0x1.27220a9p+1, 0x1.fc2757cp+0, 0x1.f534ddcp+0);
  return less_fours(scaled(x) * piece);
}

static inline double quarters_2(float x) {
  const double piece = by_size(x, 0x1.c9c882ap-29, 0x1.3f84eaep-29, 0x1.1f534ddp-28, 0x1.b6c52ap-33);
  return less_fours(scaled(x) * piece);
}

static inline double quarters_3(float x) {
  return scaled(x) * by_size(x, 0x1.4fe13a8p-59, 0x1.a3ea69bp-57, 0x1.81b6c52p-57, 0x1.3278872p-57);
}

/* x in quarter turns, rounded to whole ones, which the low bits hold */
static inline double quarters_of(float x) { return (quarters_1(x) + quarters_2(x)) + quarters_3(x) + 0x1.8p52; }

/* the angle that is left without them, at most pi / 4 */
static inline double angle_left(float x, double quarters) {
  const double piece = by_size(x, 0x1.f47d4d377036ep-86, 0x1.7036d8a5664f1p-86, 0x1.664f10e4107f9p-86, 0x1.07f9458eaf7afp-90);
  const double left = ((quarters_1(x) - (quarters - 0x1.8p52)) + quarters_2(x)) + quarters_3(x);
  return fabsf(x) < 0.5f ? (double)x : MADD_F64(scaled(x), piece, left) * 0x1.921fb54442d18p+0;
}

static inline double sin_near_0(double r) {
  const double s = r * r;
  double p = MADD_F64(s, 2.7557319223985893e-06, -1.9841269841269841e-04);
  p = MADD_F64(p, s, 8.3333333333333332e-03);
  p = MADD_F64(p, s, -1.6666666666666666e-01);
  return r * MADD_F64(p, s, 1.0);
}

static inline double cos_near_0(double r) {
  const double s = r * r;
  double p = MADD_F64(s, -2.7557319223985888e-07, 2.4801587301587302e-05);
  p = MADD_F64(p, s, -1.3888888888888889e-03);
  p = MADD_F64(p, s, 4.1666666666666664e-02);
  p = MADD_F64(p, s, -0.5);
  return MADD_F64(p, s, 1.0);
}

/* the sine of x and `shift` quarter turns */
static inline float shifted_sin(float x, uint64_t shift) {
  const double quarters = quarters_of(x), r = angle_left(x, quarters), s = sin_near_0(r), c = cos_near_0(r);
  const uint64_t q = bits_of_double(quarters) + shift;
  return (float)double_of(bits_of_double((q & 1) != 0 ? c : s) ^ (q & 2) << 62);
}

static inline float sin_f32(float x) { return shifted_sin(x, 0); }

static inline float cos_f32(float x) { return shifted_sin(x, 1); }

static inline float tan_f32(float x) {
  const double quarters = quarters_of(x), r = angle_left(x, quarters), s = sin_near_0(r), c = cos_near_0(r);
  const int is_odd = (bits_of_double(quarters) & 1) != 0;
  return (float)((is_odd ? -c : s) / (is_odd ? s : c));
}
