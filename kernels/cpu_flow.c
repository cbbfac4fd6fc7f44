/* The transformer of a flow on a CPU, as one call: mel frames of a batch of windows in, their velocities out.
 *
 * Its definition is `Flow.velocity` of experts/qwen25_flow.py; `experts/flow_cpu.py` calls this. A window is one strand of
 * frames, or two with guidance. There are no rows for frames that are not there: the last block of a strand is as long as it
 * is. Every number is computed in an order of its own, so it depends neither on the windows beside it nor on the threads.
 */
#include "cpu_product.h"
#include "cpu_threads.h"

typedef struct {
    Mat qkv, out, wide, narrow;
    int32_t back, ahead; /* number of it among the layers that see the block before, or -1; whether it sees the next one */
} FlowLayer;

typedef struct {
    const FlowLayer *layers;
    Mat in, out;
    const float *codes; /* [codes][width] */
    int32_t count, width, heads, head_dim, hidden, mels, block, repeats;
    float eps, scale;
} FlowModel;

typedef struct {
    const float *x;     /* [frames][mels] */
    float *velocity;    /* [frames][mels] */
    const int32_t *code;
    const float *voice; /* [2][width]: added to all frames of a branch */
    const float *turns; /* [frames][2][E / 2]: cosines, sines */
    const float *told;  /* of its time, by layer [6][width]: shift, scale, gate, the same of the MLP; then scale, shift */
    const float *past;  /* keys and values of the block before, [backs][2][past_branches][H][B][E], or nothing */
    float *kept;        /* the same of block `keep`, [backs][2][branches][H][B][E], or nothing */
    int32_t frames, branches, past_branches, keep;
    float guidance;
    int32_t first; /* row of its first frame in the batch */
} FlowWindow;

typedef struct {
    const FlowWindow *windows;
    int64_t rows; /* frames of all strands */
    int32_t count, threads;
    float *x, *h, *qkv, *act; /* room: [rows] of width, of width, of 3 x heads x E, of hidden or mels if they are more */
} FlowBatch;

typedef struct {
    int32_t window, branch, block;
} Place; /* of a block */

/* ---- rows ---- */

/* x += gate · y where there is a gate, then h = (x - mean) / sqrt(variance + eps) · (1 + scale) + shift. */
static void modulate_row(float *x, const float *y, const float *gate, const float *shift, const float *scale, float *h, long n,
                         float eps) {
    v16 sum = {}, square = {};
    float rest = 0.0f, rest2 = 0.0f;
    long i = 0;
    for (; i + 16 <= n; i += 16) {
        v16 v = *(v16 *)(x + i);
        if (gate) *(v16 *)(x + i) = v += *(const v16 *)(gate + i) * *(const v16 *)(y + i);
        sum += v;
    }
    for (; i < n; i++) {
        if (gate) x[i] += gate[i] * y[i];
        rest += x[i];
    }
    const float mean = (sum16(sum) + rest) / n;
    for (i = 0; i + 16 <= n; i += 16) {
        v16 v = *(v16 *)(x + i) - mean;
        square += v * v;
    }
    for (; i < n; i++) rest2 += (x[i] - mean) * (x[i] - mean);
    const float by = 1.0f / sqrtf((sum16(square) + rest2) / n + eps);
    for (i = 0; i + 16 <= n; i += 16)
        *(v16 *)(h + i) = (*(v16 *)(x + i) - mean) * by * (1.0f + *(const v16 *)(scale + i)) + *(const v16 *)(shift + i);
    for (; i < n; i++) h[i] = (x[i] - mean) * by * (1.0f + scale[i]) + shift[i];
}

/* ---- attention ---- */

/* c[rows][16 vecs] = a[rows][k] b[k][16 vecs]: a sum runs over k in order. */
INLINE void patch(const float *a, long lda, const float *b, long ldb, long k, float *c, long ldc, const int rows,
                  const int vecs) {
    v16 sum[8][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int j = 0; j < vecs; j++) sum[r][j] = (v16){};
    for (long i = 0; i < k; i++) {
        v16 w[2];
#pragma GCC unroll 2
        for (int j = 0; j < vecs; j++) w[j] = *(const v16 *)(b + i * ldb + 16 * j);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int j = 0; j < vecs; j++) sum[r][j] += w[j] * splat(a[r * lda + i]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int j = 0; j < vecs; j++) *(v16 *)(c + r * ldc + 16 * j) = sum[r][j];
}

static void multiply(const float *a, long lda, const float *b, long ldb, long k, float *c, long ldc, long rows, long lanes) {
    long n = 0;
    for (; n + 32 <= lanes; n += 32) {
        long r = 0;
        for (; r + 8 <= rows; r += 8) patch(a + r * lda, lda, b + n, ldb, k, c + r * ldc + n, ldc, 8, 2);
        for (; r < rows; r++) patch(a + r * lda, lda, b + n, ldb, k, c + r * ldc + n, ldc, 1, 2);
    }
    if (n < lanes) {
        long r = 0;
        for (; r + 8 <= rows; r += 8) patch(a + r * lda, lda, b + n, ldb, k, c + r * ldc + n, ldc, 8, 1);
        for (; r < rows; r++) patch(a + r * lda, lda, b + n, ldb, k, c + r * ldc + n, ldc, 1, 1);
    }
}

/* to[e][lane] = from[lane][e] of 16 lanes and 16 e. */
INLINE void across(const float *const *from, float *to, long ldt) {
    v16 a[16], b[16];
#define LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define WEAVE(x, y)                                                                                      \
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) y[2 * i] = __builtin_shufflevector(x[i], x[i + 8], LOW), \
                                                    y[2 * i + 1] = __builtin_shufflevector(x[i], x[i + 8], HIGH);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = *(const v16 *)from[i];
    WEAVE(a, b) WEAVE(b, a) WEAVE(a, b) WEAVE(b, a)
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) *(v16 *)(to + i * ldt) = a[i];
}

/* The halves (a, b) of a head become (a cos - b sin, b cos + a sin). */
static void turn_head(const float *x, const float *turn, float *y, long E) {
    const long half = E / 2;
    for (long i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        y[i] = a * turn[i] - b * turn[i + half];
        y[i + half] = b * turn[i] + a * turn[i + half];
    }
}

/* scores[rows][lanes], of which `count` are of keys, become shares. */
static void soften(float *scores, long rows, long count, long lanes, float scale) {
    for (long r = 0; r < rows; r++) {
        float *s = scores + r * lanes;
        v16 top = splat(-INFINITY), total = {};
        for (long j = 0; j < lanes; j += 16) {
            *(v16 *)(s + j) *= scale;
            if (j + 16 > count)
                for (long i = count; i < j + 16; i++) s[i] = -INFINITY;
            v16 v = *(v16 *)(s + j);
            top = pick(v > top, v, top);
        }
        const float most = most16(top);
        for (long j = 0; j < lanes; j += 16) {
            v16 p = exp16(*(v16 *)(s + j) - most);
            *(v16 *)(s + j) = p;
            total += p;
        }
        const float share = 1.0f / sum16(total);
        for (long j = 0; j < lanes; j += 16) *(v16 *)(s + j) *= share;
    }
}

typedef struct {
    const float *key, *value, *turn; /* turn: of the first frame, or nothing where keys are not to be turned, or are already */
    long step, frames;
} Seen;

/* One head of one block: what it sees is the block before, itself and the next one, as far as the layer looks and they are there.
 * The answer takes the place of its queries. */
static void attention(const FlowModel *m, const FlowLayer *l, const FlowBatch *b, const Place *at, long head) {
    const FlowWindow *w = b->windows + at->window;
    const long E = m->head_dim, B = m->block, A = m->heads * E, step = 3 * A, start = at->block * B;
    const long frames = w->frames - start < B ? w->frames - start : B, blocks = (w->frames + B - 1) / B;
    float *q = b->qkv + (w->first + (long)at->branch * w->frames + start) * step + head * E;
    const float *k = q + A, *turn = head ? NULL : w->turns + start * E;
    Seen seen[3];
    int parts = 0;
    if (l->back >= 0 && at->block) seen[parts++] = (Seen){k - B * step, k - B * step + A, turn ? turn - B * E : NULL, step, B};
    else if (l->back >= 0 && w->past) {
        const long size = m->heads * B * E;
        const float *past = w->past + ((2L * l->back * w->past_branches + at->branch) * m->heads + head) * B * E;
        seen[parts++] = (Seen){past, past + w->past_branches * size, NULL, E, B};
    }
    const int own = parts;
    seen[parts++] = (Seen){k, k + A, turn, step, frames};
    if (l->ahead && at->block + 1 < blocks) {
        const long left = w->frames - start - B;
        seen[parts++] = (Seen){k + B * step, k + B * step + A, turn ? turn + B * E : NULL, step, left < B ? left : B};
    }
    long count = 0;
    for (int p = 0; p < parts; p++) count += seen[p].frames;
    const long lanes = (count + 15) / 16 * 16;
    float *keys = room(0, lanes * E + 2 * count * E + frames * (lanes + E));
    float *values = keys + lanes * E, *own_keys = values + count * E;
    float *scores = own_keys + count * E, *turned = scores + frames * lanes;
    const float **rows = (const float **)room(1, lanes * (sizeof *rows / sizeof(float)));
    const int keeps = w->kept && l->back >= 0 && at->block + 1 == w->keep;
    float *kept = keeps ? w->kept + ((2L * l->back * w->branches + at->branch) * m->heads + head) * B * E : NULL;
    long j = 0;
    for (int p = 0; p < parts; p++)
        for (long i = 0; i < seen[p].frames; i++, j++) {
            const float *value = seen[p].value + i * seen[p].step;
            rows[j] = seen[p].key + i * seen[p].step;
            if (seen[p].turn) {
                turn_head(rows[j], seen[p].turn + i * E, own_keys + j * E, E);
                rows[j] = own_keys + j * E;
            }
            memcpy(values + j * E, value, E * sizeof(float));
            if (keeps && p == own) {
                memcpy(kept + i * E, rows[j], E * sizeof(float));
                memcpy(kept + (long)w->branches * m->heads * B * E + i * E, value, E * sizeof(float));
            }
        }
    for (; j < lanes; j++) rows[j] = rows[0]; /* lanes of nobody: any number does */
    for (j = 0; j < lanes; j += 16)
        for (long e = 0; e < E; e += 16) {
            const float *some[16];
            for (int i = 0; i < 16; i++) some[i] = rows[j + i] + e;
            across(some, keys + e * lanes + j, lanes);
        }
    const float *asked = q;
    if (turn) {
        for (long i = 0; i < frames; i++) turn_head(q + i * step, turn + i * E, turned + i * E, E);
        asked = turned;
    }
    multiply(asked, turn ? E : step, keys, lanes, E, scores, lanes, frames, lanes);
    soften(scores, frames, count, lanes, m->scale);
    multiply(scores, lanes, values, E, count, q, step, frames, E);
}

/* ---- the whole ---- */

/* Where blocks and rows are: in `row` the window and the branch of each row, as 2 window + branch. */
static long lay_out(const FlowModel *m, const FlowBatch *b, Place *places, int32_t *row) {
    long blocks = 0;
    for (int n = 0; n < b->count; n++)
        for (int branch = 0; branch < b->windows[n].branches; branch++) {
            for (long i = 0; i < b->windows[n].frames; i++) *row++ = 2 * n + branch;
            for (long i = 0; i * m->block < b->windows[n].frames; i++) places[blocks++] = (Place){n, branch, (int)i};
        }
    return blocks;
}

static void *many(long count, size_t size) {
    void *found = malloc(count * size);
    if (!found) abort();
    return found;
}

void omni_flow(const FlowModel *m, const FlowBatch *b) {
    Barrier barrier = {};
    const long R = b->rows, D = m->width, A = (long)m->heads * m->head_dim, M = m->mels, F = m->hidden;
    Place *places = many(R, sizeof *places);
    int32_t *row = many(R, sizeof *row);
    const long blocks = lay_out(m, b, places, row);
#pragma omp parallel num_threads(b->threads) if (b->threads > 1)
    {
        const long me = omp_get_thread_num(), all = omp_get_num_threads();
        /* Both branches of a window hear the same frames: their product is made once, into the first rows of each. */
        for (int n = 0; n < b->count; n++) {
            const FlowWindow *w = b->windows + n;
            share_rows(&m->in, w->x, M, b->h + w->first * D, D, STORE, w->frames, me, all);
        }
        ALL;
        EACH(R) {
            const FlowWindow *w = b->windows + row[i] / 2;
            const int branch = row[i] % 2;
            const long frame = i - w->first - (long)branch * w->frames;
            const float *in = b->h + (w->first + frame) * D, *voice = w->voice + branch * D;
            const float *code = m->codes + (branch ? 0 : w->code[frame / m->repeats]) * D; /* 0: nobody's */
            for (long d = 0; d < D; d++) b->x[i * D + d] = in[d] + code[d] + voice[d];
        }
        ALL;
        float *x = b->x, *h = b->h; /* what a product of h makes and what x is to gain may lie in h: it has been read by then */
        for (int n = 0; n <= m->count; n++) {
            EACH(R) {
                const float *told = b->windows[row[i] / 2].told + 6L * n * D, *gate = n ? told - D : NULL;
                const float *shift = n < m->count ? told : told + D, *scale = n < m->count ? told + D : told;
                modulate_row(x + i * D, h + i * D, gate, shift, scale, h + i * D, D, m->eps);
            }
            ALL;
            if (n == m->count) break;
            const FlowLayer *l = m->layers + n;
            share_rows(&l->qkv, h, D, b->qkv, 3 * A, STORE, R, me, all);
            ALL;
            for (long i = me; i < blocks * m->heads; i += all) attention(m, l, b, places + i / m->heads, i % m->heads);
            ALL;
            share_rows(&l->out, b->qkv, 3 * A, h, D, STORE, R, me, all);
            ALL;
            EACH(R) {
                const float *told = b->windows[row[i] / 2].told + 6L * n * D;
                modulate_row(x + i * D, h + i * D, told + 2 * D, told + 3 * D, told + 4 * D, h + i * D, D, m->eps);
            }
            ALL;
            share_rows(&l->wide, h, D, b->act, F, GELU, R, me, all);
            ALL;
            share_rows(&l->narrow, b->act, F, h, D, STORE, R, me, all);
            ALL;
        }
        share_rows(&m->out, h, D, b->act, M, STORE, R, me, all);
        ALL;
        for (int n = 0; n < b->count; n++) {
            const FlowWindow *w = b->windows + n;
            const float *told = b->act + w->first * M, *nobody = told + w->frames * M;
            EACH(w->frames * M) w->velocity[i] = w->branches > 1 ? told[i] + (told[i] - nobody[i]) * w->guidance : told[i];
        }
    }
    free(places);
    free(row);
}
