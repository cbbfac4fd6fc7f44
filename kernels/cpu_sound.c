/* Stretches of sound on a CPU: convolutions over time, upsampling, filtered Snake activations, float32. `cpu_sound.py` calls
 * this.
 *
 * Lanes are positions. A sum runs over channels, then over taps, in one accumulator that begins with the bias. What is beyond the
 * ends is put there before, so that no position knows whether it is near one. Hence a value never depends on the stretch that was
 * asked for, on where tiles begin, or on the number of threads.
 */
#include "cpu_product.h"

#define GROUP 8 /* outputs whose weights lie side by side */
#ifdef __AVX512F__
#define OUTPUTS 8 /* outputs x vectors of a tile: their sums fit into registers */
#define VECTORS 3
#else
#define OUTPUTS 4
#define VECTORS 1
#endif
#define WIDE (16 * VECTORS) /* positions of a tile */

/* ---- activations ---- */

#define LIMIT 30000.0f /* as far as three parts of pi reach */

/* sin(y)^2: y less the nearest multiple of pi, whose sign does not matter, then a polynomial of degree 9, 1e-7 of it. */
INLINE v16 squared_sine(v16 y) {
    const v16 magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to a whole number */
    v16 n = y * 0.31830988618379067f + magic - magic;
    v16 r = y - n * 3.140625f;
    r = r - n * 9.67502593994140625e-4f;
    r = r - n * 1.509957990978376432e-7f;
    v16 s = r * r;
    v16 p = s * 2.605181407488999e-06f + -0.00019809346122201532f; /* of least greatest error up to pi / 2, 6e-9 */
    p = p * s + 0.008333062753081322f;
    p = p * s + -0.16666659712791443f;
    r = r + r * s * p;
    return r * r;
}

INLINE i16x wild_of(v16 y) {
    v16 size = (v16)((i16x)y & 0x7fffffff);
    return ~(size <= LIMIT);
}

INLINE int any(i16x mask) {
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++) mask[i] |= mask[i + n];
    return mask[0];
}

INLINE v16 snake16(v16 x, float rate, float share, const int careful, i16x *wild) {
    v16 y = x * rate, s = squared_sine(y);
    *wild |= wild_of(y);
    if (careful)
        for (int i = 0; i < 16; i++)
            if (!(fabsf(y[i]) <= LIMIT)) s[i] = sinf(y[i]) * sinf(y[i]);
    return x + s * share;
}

/* Sixteen values, or as many as there are. */
INLINE v16 take(const float *x, long there) {
    if (there >= 16) return *(const v16 *)x;
    v16 found = {};
    memcpy(&found, x, there * sizeof *x);
    return found;
}

INLINE void give(float *y, v16 value, long there) {
    if (there >= 16) *(v16 *)y = value;
    else memcpy(y, &value, there * sizeof *y);
}

#define CHUNK 512 /* positions of an activation that are made at a time */
#define NEAR 3    /* positions on each side that a filter sees */
#define ROOM (CHUNK + 4 * NEAR + 32)

/* Positions 2i and 2i + 1 at twice the rate, for `count` i; x begins NEAR before. Whether one was out of the sine's reach. */
INLINE int twice(const float *x, float *even, float *odd, long count, const float *filter, float rate, float share,
                 const int careful) {
    i16x wild = {};
    for (long i = 0; i < count; i += 16) {
        v16 a = {}, b = {};
#pragma GCC unroll 6
        for (int j = 0; j < 6; j++) {
            a += *(const v16 *)(x + i + j) * (2.0f * filter[11 - 2 * j]);
            b += *(const v16 *)(x + i + j + 1) * (2.0f * filter[10 - 2 * j]);
        }
        *(v16 *)(even + i) = snake16(a, rate, share, careful, &wild);
        *(v16 *)(odd + i) = snake16(b, rate, share, careful, &wild);
    }
    return any(wild);
}

/* Positions low .. low + size of a channel that is `count` long, through both filters with the sine between them. */
static void smooth(const float *x, long count, float *y, long low, long size, const float *filter, float rate, float share) {
    float given[ROOM], even[ROOM], odd[ROOM];
    const long first = low - 2 * NEAR, some = (size + 2 * NEAR + 15) / 16 * 16, all = some + 2 * NEAR + 1;
    long from = first < 0 ? -first : 0, to = first + all > count ? count - first : all;
    for (long i = 0; i < from; i++) given[i] = x[0];
    memcpy(given + from, x + first + from, (to - from) * sizeof *x);
    for (long i = to; i < all; i++) given[i] = x[count - 1];
    if (twice(given, even, odd, some, filter, rate, share, 0)) twice(given, even, odd, some, filter, rate, share, 1);
    from = low < NEAR ? NEAR - low : 0; /* beyond the ends the first and the last go on for ever */
    for (long i = 0; i < from; i++) even[i] = odd[i] = even[from];
    to = count - 1 - (low - NEAR);
    for (long i = to + 1; i < some; i++) even[i] = odd[i] = odd[to];
    for (long i = 0; i < size; i += 16) {
        v16 a = {}, b = {};
#pragma GCC unroll 6
        for (int j = 0; j < 6; j++) {
            a += *(const v16 *)(odd + i + j) * filter[2 * j];
            b += *(const v16 *)(even + i + 1 + j) * filter[2 * j + 1];
        }
        give(y + i, a + b, size - i);
    }
}

/* Without filters, in place: ld is a multiple of 16. */
INLINE int bent(float *x, float *y, long ld, float rate, float share, const int careful) {
    i16x wild = {};
    for (long t = 0; t < ld; t += 16) *(v16 *)(y + t) = snake16(*(const v16 *)(x + t), rate, share, careful, &wild);
    return any(wild);
}

static void snake(float *x, long ld, float rate, float share) {
    float made[CHUNK];
    for (long t = 0; t < ld; t += CHUNK, x += CHUNK) {
        const long here = ld - t < CHUNK ? ld - t : CHUNK;
        if (bent(x, made, here, rate, share, 0)) bent(x, made, here, rate, share, 1);
        memcpy(x, made, here * sizeof *x);
    }
}

/* ---- sums ---- */

/* y[o][n] = bias[o] + sum over c, m of w[c][o][r + m rate] x[c][q - m dilation], where n + cut = q rate + r. That is an
 * upsampling;
 * with rate 1 it is a convolution whose taps were turned round. Positions n low .. high are made. */
typedef struct {
    const float *w;    /* by remainder r and group of outputs: [in][taps of r, the last first][8] */
    const float *bias; /* [groups][8] */
    const float *filter;         /* of an activation that x goes through first, or nothing */
    const float *often, *much;   /* [in]: its sine's rate and share; or those of one without filter; or nothing */
    int32_t in, out, taps, dilation, rate, cut; /* taps: of the kernel, which are shared out among remainders */
} Conv;

INLINE long taps_of(const Conv *c, long r) { return (c->taps - r + c->rate - 1) / c->rate; }

/* Where the first n of `low` or more stands that has remainder r: its q. */
INLINE long first_of(const Conv *c, long low, long r) { return (low + c->cut - r + c->rate - 1) / c->rate; }

typedef struct {
    float *y;         /* what position `low` of output 0 goes to */
    const float *add; /* likewise, what is added; or nothing */
    long ldy, ldadd, step; /* step: from a position of the tile to the next */
} Place;

/* A tile is put where it belongs: `outputs` rows of `count` positions. */
static __attribute__((noinline)) void put16(const float *found, const Place *p, long outputs, long count) {
    for (long o = 0; o < outputs; o++, found += WIDE) {
        float *y = p->y + o * p->ldy;
        const float *add = p->add ? p->add + o * p->ldadd : 0;
        if (p->step == 1 && count == WIDE) {
            for (int v = 0; v < WIDE; v += 16) {
                v16 sum = *(const v16 *)(found + v);
                if (add) sum += *(const v16 *)(add + v);
                *(v16 *)(y + v) = sum;
            }
            continue;
        }
        for (long t = 0; t < count; t++) y[t * p->step] = add ? found[t] + add[t * p->step] : found[t];
    }
}

INLINE void sums(const float *x, const long ld, const float *w, const float *bias, const long in, const long taps,
                 const long dilation, const Place *p, long outputs, long count, const int rows, const int vectors) {
    v16 sum[OUTPUTS][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++) sum[r][v] = splat(bias[r]);
    for (long c = 0; c < in; c++, x += ld) {
        const float *at = x;
        for (long k = 0; k < taps; k++, at += dilation, w += GROUP) {
            v16 given[VECTORS];
#pragma GCC unroll 3
            for (int v = 0; v < vectors; v++) given[v] = *(const v16 *)(at + 16 * v);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                v16 b = splat(w[r]);
#pragma GCC unroll 3
                for (int v = 0; v < vectors; v++) sum[r][v] += b * given[v];
            }
        }
    }
    float found[OUTPUTS * WIDE];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++) *(v16 *)(found + r * WIDE + 16 * v) = sum[r][v];
    put16(found, p, outputs < rows ? outputs : rows, count);
}

/* Up to OUTPUTS outputs of one tile. Those of a group that are not there are zeros: computed, not put. */
static void tile_of(const float *x, long ld, const float *w, const float *bias, long in, long taps, long dilation, const Place *p,
                    long outputs, long count) {
#define SUMS(rows, vectors) sums(x, ld, w, bias, in, taps, dilation, p, outputs, count, rows, vectors)
#if VECTORS == 3
    const long vectors = (count + 15) / 16;
    if (outputs == 1) vectors == 3 ? SUMS(1, 3) : vectors == 2 ? SUMS(1, 2) : SUMS(1, 1);
    else if (outputs <= 4) vectors == 3 ? SUMS(4, 3) : vectors == 2 ? SUMS(4, 2) : SUMS(4, 1);
    else vectors == 3 ? SUMS(8, 3) : vectors == 2 ? SUMS(8, 2) : SUMS(8, 1);
#else
    if (outputs == 1) SUMS(1, 1);
    else SUMS(4, 1);
#endif
}

typedef struct {
    const float *x, *kept, *add; /* [rows][in][count]; the `past` positions before them, if any; what is added, if anything */
    float *y;                    /* [rows][out][high - low] */
    int64_t x_row, x_channel, kept_row, kept_channel, add_row, add_channel, y_row, y_channel; /* from one to the next */
    int64_t rows, count, past, low, high;
} Given;

/* Of a row, what the sums see of positions from .. from + ld, channel by channel; zeros where there are none. */
static void lay_out(const Conv *c, const Given *g, long row, long from, long ld, float *to) {
    const long past = c->filter ? 0 : g->past, end = from + ld; /* a filter sees the first value, not what was kept */
    const long first = from < -past ? -past : from, last = end > g->count ? g->count : end;
    for (long i = 0; i < c->in; i++, to += ld) {
        const float *x = g->x + row * g->x_row + i * g->x_channel;
        if (first >= last) {
            memset(to, 0, ld * sizeof *to);
            continue;
        }
        float *at = to + (first - from);
        memset(to, 0, (first - from) * sizeof *to);
        memset(to + (last - from), 0, (end - last) * sizeof *to);
        if (c->filter) {
            for (long t = first; t < last; t += CHUNK, at += CHUNK)
                smooth(x, g->count, at, t, last - t < CHUNK ? last - t : CHUNK, c->filter, c->often[i], c->much[i]);
            continue;
        }
        const long old = first >= 0 ? 0 : last < 0 ? last - first : -first;
        if (old) memcpy(at, g->kept + row * g->kept_row + i * g->kept_channel + first + past, old * sizeof *at);
        memcpy(at + old, x + first + old, (last - first - old) * sizeof *at);
        if (c->often) snake(to, ld, c->often[i], c->much[i]);
    }
}

#define HELD 131072    /* inputs of a block: half of a megabyte stays in the cache while all weights pass */
#define TOGETHER 524288 /* inputs of all blocks of all rows: so few are laid out at once, and weights are read once */

void omni_conv(const Conv *c, const Given *g, int threads) {
    if (g->low >= g->high) return;
    const long groups = (c->out + GROUP - 1) / GROUP, panels = groups * c->rate, most = taps_of(c, 0);
    const long start = (g->low + c->cut) / c->rate, stop = (g->high + c->cut + c->rate - 1) / c->rate; /* of q */
    long size = HELD / c->in / WIDE * WIDE, blocks;
    size = size < 4 * WIDE ? 4 * WIDE : size > 32 * WIDE ? 32 * WIDE : size;
    blocks = (stop - start + size - 1) / size;
    if (panels < 8 * threads && stop - start >= threads * WIDE) blocks = (blocks + threads - 1) / threads * threads;
    size = ((stop - start + blocks - 1) / blocks + WIDE - 1) / WIDE * WIDE;
    const long before = (most - 1) * c->dilation, ld = ((size + before + 15) / 16 | 1) * 16; /* odd: rows in other cache sets */
    const long all_blocks = g->rows * blocks, items = all_blocks * panels;
    const int together = all_blocks * ld * c->in <= TOGETHER;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const long me = omp_get_thread_num(), all = omp_get_num_threads();
        float *packed = room(0, (together ? all_blocks : 1) * ld * c->in);
        long there = together ? 0 : -1; /* how many blocks are laid out; or which */
        for (long item = items * me / all; item < items * (me + 1) / all; item++) {
            const long number = together ? item % all_blocks : item / panels;
            const long panel = together ? item / all_blocks : item % panels;
            const long row = number / blocks, r = panel / groups, group = panel % groups, taps = taps_of(c, r);
            const long begin = start + number % blocks * size, end = begin + size < stop ? begin + size : stop;
            float *at = packed + (together ? number * ld * c->in : 0);
            /* A share may begin anywhere: its first items meet all blocks. */
            if (together ? there < all_blocks : there != number) {
                lay_out(c, g, row, begin - before, ld, at);
                there = together ? there + 1 : number;
            }
            long from = first_of(c, g->low, r), to = first_of(c, g->high, r), skipped = 0;
            from = from < begin ? begin : from;
            to = to > end ? end : to;
            for (long i = 0; i < r; i++) skipped += taps_of(c, i);
            const float *w = c->w + (skipped * groups + group * taps) * c->in * GROUP;
            for (long q = from; q < to; q += WIDE) {
                const long n = q * c->rate + r - c->cut - g->low, here = to - q < WIDE ? to - q : WIDE;
                for (long o = group * GROUP, part = 0; part < GROUP && o < c->out; part += OUTPUTS, o += OUTPUTS) {
                    const Place p = {g->y + row * g->y_row + o * g->y_channel + n,
                                     g->add ? g->add + row * g->add_row + o * g->add_channel + n : 0,
                                     g->y_channel, g->add_channel, c->rate};
                    const long left = c->out - o < OUTPUTS ? c->out - o : OUTPUTS;
                    tile_of(at + (q - begin) + (most - taps) * c->dilation, ld, w + part, c->bias + o, c->in, taps, c->dilation,
                            &p, left, here);
                }
            }
        }
    }
}

/* y[c][t] = bias[c] + sum over k of w[c][k] x[c][t + k]: a tap at a time, all of them from x[c][0 .. count + taps - 1). */
void omni_depthwise(const float *w, const float *bias, const float *x, float *y, long rows, long channels, long count, long taps,
                    int threads) {
    const long items = rows * channels;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const long me = omp_get_thread_num(), all = omp_get_num_threads();
        for (long item = items * me / all; item < items * (me + 1) / all; item++) {
            const float *from = x + item * (count + taps - 1), *weight = w + item % channels * taps;
            float *to = y + item * count;
            for (long t = 0; t < count; t += 16) {
                v16 sum = splat(bias[item % channels]);
                for (long k = 0; k < taps; k++) sum += weight[k] * take(from + t + k, count - t);
                give(to + t, sum, count - t);
            }
        }
    }
}
