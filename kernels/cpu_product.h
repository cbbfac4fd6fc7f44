/* Products of few rows, float32 activations, for cpu.c.
 *
 * A weight lies in panels of 32 outputs: [panel][K][32], so that lanes are outputs and a row's sum runs over k in order, in one
 * accumulator. Hence a row's result never depends on the rows beside it. Rows are tiled so that accumulators fill the registers;
 * a panel is read from memory once and is then in cache.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
extern int omp_get_thread_num(void);
extern int omp_get_num_threads(void);
#else
static int omp_get_thread_num(void) { return 0; }
static int omp_get_num_threads(void) { return 1; }
#endif

typedef float v16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t i16x __attribute__((vector_size(64), aligned(4), may_alias));
typedef int16_t s16 __attribute__((vector_size(32), may_alias));
typedef uint16_t h16 __attribute__((vector_size(32), aligned(2), may_alias));
typedef int8_t b16 __attribute__((vector_size(16), aligned(1), may_alias));
#define INLINE static inline __attribute__((always_inline))
#define P 32 /* outputs of a panel */
#define AHEAD 2048 /* bytes */
#ifdef __AVX512F__
#define TILE 12 /* rows of one panel whose sums fit into registers */
#else
#define TILE 3
#endif

enum { F32, BF16, I8 };

typedef struct {
    const void *w;      /* [N/32][K][32] */
    const float *scale; /* [N padded]; I8 only */
    const float *bias;  /* [N padded], or nothing */
    int32_t n, k, kind, pad;
} Mat;

/* What becomes of a product: stored; added to what is there; lanes 0..15 of a panel are gates of lanes 16..31; its GELU. */
enum { STORE, ADD, GATED, GELU };

/* Not 0 + x: that makes 0 of -0, so it is an addition and a shuffle for each number of a row, and products took half again as
 * long. */
INLINE v16 splat(float x) { return x - (v16){}; }

INLINE v16 pick(i16x mask, v16 yes, v16 no) { return (v16)((mask & (i16x)yes) | (~mask & (i16x)no)); }

INLINE v16 exp16(v16 x) {
    /* 2^n e^r, |r| <= ln 2 / 2, e^r by its series to r^7: 2 ulp. Below -87 the answer is 0. */
    const v16 low = splat(-87.0f), high = splat(88.0f);
    i16x under = x < low;
    x = pick(under, low, x);
    x = pick(x > high, high, x);
    v16 magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to a whole number in the low bits */
    v16 t = x * 1.4426950408889634f + magic;
    i16x n = (i16x)t - (i16x)magic;
    v16 k = t - magic;
    v16 r = x - k * 0.693359375f;
    r = r + k * 2.12194440e-4f;
    v16 y = splat(1.0f / 5040.0f);
    y = y * r + 1.0f / 720.0f;
    y = y * r + 1.0f / 120.0f;
    y = y * r + 1.0f / 24.0f;
    y = y * r + 1.0f / 6.0f;
    y = y * r + 0.5f;
    y = y * r + 1.0f;
    y = y * r + 1.0f;
    y = (v16)((i16x)y + (n << 23));
    return pick(under, (v16){}, y);
}

/* Lanes i and i + 8, of what is found i and i + 4, and so on: lane 0 is that of all. */
INLINE v16 upper(v16 v, const int n) {
    if (n == 8) return __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
    if (n == 4) return __builtin_shufflevector(v, v, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7);
    if (n == 2) return __builtin_shufflevector(v, v, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3);
    return __builtin_shufflevector(v, v, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1);
}

INLINE float sum16(v16 v) {
    v += upper(v, 8);
    v += upper(v, 4);
    v += upper(v, 2);
    return (v + upper(v, 1))[0];
}

INLINE float most16(v16 v) {
#pragma GCC unroll 4
    for (int n = 8; n; n /= 2) {
        v16 w = upper(v, n);
        v = pick(w > v, w, v);
    }
    return v[0];
}

INLINE v16 silu16(v16 x) { return x / (1.0f + exp16(-x)); }

/* x/2 (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3) */
INLINE v16 gelu16(v16 x) { return x / (1.0f + exp16(x * (-1.5957691216f - 0.0713548163f * (x * x)))); }

INLINE v16 weights(const void *w, long at, const int kind) {
    if (kind == F32) return *(const v16 *)((const float *)w + at);
    if (kind == BF16) {
        i16x wide = __builtin_convertvector(*(const h16 *)((const uint16_t *)w + at), i16x);
        return (v16)(wide << 16);
    }
    /* Width by width: in one go the compiler converts a lane at a time. */
    s16 wide = __builtin_convertvector(*(const b16 *)((const int8_t *)w + at), s16);
    return __builtin_convertvector(__builtin_convertvector(wide, i16x), v16);
}

/* Scale, bias, and what becomes of 32 sums: y is the row. */
static __attribute__((noinline)) void store(const Mat *m, long panel, const v16 *sums, float *y, int how) {
    const long n = panel * P;
    v16 a = sums[0], b = sums[1];
    if (m->kind == I8) {
        a *= *(const v16 *)(m->scale + n);
        b *= *(const v16 *)(m->scale + n + 16);
    }
    if (m->bias) {
        a += *(const v16 *)(m->bias + n);
        b += *(const v16 *)(m->bias + n + 16);
    }
    if (how == GATED) { /* n counts gates and ups */
        a = silu16(a) * b;
        long left = m->n / 2 - n / 2;
        if (left >= 16) *(v16 *)(y + n / 2) = a;
        else memcpy(y + n / 2, &a, left * sizeof(float));
        return;
    }
    if (how == GELU) a = gelu16(a), b = gelu16(b);
    float *to = y + n;
    long left = m->n - n;
    if (left >= P) {
        if (how == ADD) a += *(v16 *)to, b += *(v16 *)(to + 16);
        *(v16 *)to = a;
        *(v16 *)(to + 16) = b;
        return;
    }
    float kept[P];
    *(v16 *)kept = a;
    *(v16 *)(kept + 16) = b;
    for (long i = 0; i < left; i++) to[i] = how == ADD ? to[i] + kept[i] : kept[i];
}

/* The same; what most are is done in place, without a call. */
INLINE void put(const Mat *m, long panel, const v16 *sums, float *y, int how, const int kind) {
    const long n = panel * P;
    if (kind != F32 || how > ADD || m->n - n < P) return store(m, panel, sums, y, how);
    v16 a = sums[0], b = sums[1];
    if (m->bias) a += *(const v16 *)(m->bias + n), b += *(const v16 *)(m->bias + n + 16);
    if (how == ADD) a += *(v16 *)(y + n), b += *(v16 *)(y + n + 16);
    *(v16 *)(y + n) = a;
    *(v16 *)(y + n + 16) = b;
}

/* Room of the calling thread, at least so many floats; two of them. It is kept: the largest call says how much. */
static float *room(int which, size_t floats) {
    static _Thread_local float *kept[2];
    static _Thread_local size_t size[2];
    if (size[which] < floats) {
        free(kept[which]);
        kept[which] = malloc(floats * sizeof(float));
        if (!kept[which]) abort(); /* a thread that cannot have a few MB cannot go on */
        size[which] = floats;
    }
    return kept[which];
}

/* Sums of `rows` rows and `panels` panels from panel `first` on, into rows of y. x[k * step + r * apart] is element k of row r */
INLINE void tile(const Mat *m, int first, const float *x, const long step, const long apart, float *y, long ldy, int how,
                 const int rows, const int panels, const int kind) {
    v16 sum[TILE][8]; /* fixed, or they would live in memory: 4 times as slow */
    const long K = m->k, stride = K * P, base = first * stride;
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int j = 0; j < 2 * panels; j++) sum[r][j] = (v16){};
    const long size = kind == F32 ? 4 : kind == BF16 ? 2 : 1;
    for (long k = 0; k < K; k++) {
        v16 w[8];
        for (int p = 0; p < panels; p++)
            for (long line = 0; line < P * size; line += 64)
                __builtin_prefetch((const char *)m->w + (base + p * stride + k * P) * size + line + AHEAD);
#pragma GCC unroll 8
        for (int j = 0; j < 2 * panels; j++) w[j] = weights(m->w, base + (j / 2) * stride + k * P + (j % 2) * 16, kind);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            v16 b = splat(x[k * step + r * apart]);
#pragma GCC unroll 8
            for (int j = 0; j < 2 * panels; j++) sum[r][j] += w[j] * b;
        }
    }
    v16 found[TILE][8];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int j = 0; j < 2 * panels; j++) found[r][j] = sum[r][j];
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < panels; p++) put(m, first + p, found[r] + 2 * p, y + r * ldy, how, kind);
}

/* Panels from..to for the rows of a block, x[k][rows]; as many panels at a time as the registers have sums for. */
#define ROWS(r, n)                                                                                  \
    case r:                                                                                         \
        for (; p + n <= to; p += n) tile(m, p, x, r, 1, y, ldy, how, r, n, kind);                   \
        for (; p < to; p++) tile(m, p, x, r, 1, y, ldy, how, r, 1, kind);                           \
        break;

INLINE void block(const Mat *m, int p, int to, const float *x, float *y, long ldy, int how, int rows, const int kind) {
    switch (rows) {
#if TILE > 3
        ROWS(1, 4) ROWS(2, 4) ROWS(3, 2) ROWS(4, 2) ROWS(5, 2) ROWS(6, 2)
        ROWS(7, 1) ROWS(8, 1) ROWS(9, 1) ROWS(10, 1) ROWS(11, 1) ROWS(12, 1)
#else
        ROWS(1, 2) ROWS(2, 1) ROWS(3, 1)
#endif
    }
}

/* Rows are laid out by block first, [block][K][rows of it], so that a block is read through one pointer. One panel is read by all
 * blocks before the next, or several rows would read all weights several times. */
static void product(const Mat *m, int from, int to, const float *const *x, float *y, long ldy, int how, long rows) {
    const long K = m->k, most = TILE > 6 && rows > 4 * TILE ? 6 : TILE, blocks = (rows + most - 1) / most;
    const float *packed = x[0];
    if (rows > 1) {
        float *at = room(0, rows * K);
        packed = at;
        for (long i = 0; i < blocks; i++) {
            long first = rows * i / blocks, count = rows * (i + 1) / blocks - first;
            for (long r = 0; r < count; r++)
                for (long k = 0; k < K; k++) at[k * count + r] = x[first + r][k];
            at += K * count;
        }
    }
    const int several = blocks == 1 ? to - from : most < TILE ? 2 : 1;
    for (int p = from; p < to; p += several)
        for (long i = 0; i < blocks; i++) {
            long first = rows * i / blocks, count = rows * (i + 1) / blocks - first;
            const float *at = packed + first * K;
            float *into = y + first * ldy;
            if (m->kind == F32) block(m, p, p + several < to ? p + several : to, at, into, ldy, how, (int)count, F32);
            else if (m->kind == BF16) block(m, p, p + several < to ? p + several : to, at, into, ldy, how, (int)count, BF16);
            else block(m, p, p + several < to ? p + several : to, at, into, ldy, how, (int)count, I8);
        }
}

/* A thread's share of a product: whole panels, side by side. */
static __attribute__((unused)) void share(const Mat *m, const float *const *x, float *y, long ldy, int how, long rows, int me,
                                          int all) {
    long count = (m->n + P - 1) / P, from = count * me / all, to = count * (me + 1) / all;
    if (from < to) product(m, (int)from, (int)to, x, y, ldy, how, rows);
}

/* The same for many rows that lie evenly. They are read where they are: with six rows and two panels the copy costs more than it
 * saves (206 GFLOP/s against 193 for 24 rows). Stretches of rows stay in cache while all panels pass. */
#define NEAR (TILE > 6 ? 6 : TILE)
#define STRETCH 384

INLINE void near(const Mat *m, int from, int to, const float *x, long ldx, float *y, long ldy, int how, long rows,
                 const int kind) {
    const int several = TILE > 6 ? 2 : 1;
    for (int p = from; p < to; p += several) {
        const int both = p + several <= to;
        long r = 0;
        for (; r + NEAR <= rows; r += NEAR)
            if (both) tile(m, p, x + r * ldx, 1, ldx, y + r * ldy, ldy, how, NEAR, several, kind);
            else tile(m, p, x + r * ldx, 1, ldx, y + r * ldy, ldy, how, NEAR, 1, kind);
        for (; r < rows; r++)
            if (both) tile(m, p, x + r * ldx, 1, ldx, y + r * ldy, ldy, how, 1, several, kind);
            else tile(m, p, x + r * ldx, 1, ldx, y + r * ldy, ldy, how, 1, 1, kind);
    }
}

static __attribute__((unused)) void share_rows(const Mat *m, const float *x, long ldx, float *y, long ldy, int how, long rows,
                                               int me, int all) {
    long count = (m->n + P - 1) / P;
    int from = (int)(count * me / all), to = (int)(count * (me + 1) / all);
    for (long r = 0; r < rows; r += STRETCH) {
        long some = rows - r < STRETCH ? rows - r : STRETCH;
        const float *at = x + r * ldx;
        float *into = y + r * ldy;
        if (m->kind == F32) near(m, from, to, at, ldx, into, ldy, how, some, F32);
        else if (m->kind == BF16) near(m, from, to, at, ldx, into, ldy, how, some, BF16);
        else near(m, from, to, at, ldx, into, ldy, how, some, I8);
    }
}
