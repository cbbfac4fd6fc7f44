/* Token loops on a CPU: products, and whole decoder layers of a ragged batch, float32 activations.
 *
 * Every kernel computes a row, a head or a position by itself and in one order. So a row's result never depends on the rows
 * beside it, on how a prompt was cut, or on the number of threads. `cpu.py` and `experts/decoder_cpu.py` call this.
 */
#include "cpu_product.h"
#include "cpu_threads.h"

static const float **rows_of(const float *x, long ldx, long rows) {
    const float **at = malloc(rows * sizeof *at);
    if (!at) abort();
    for (long r = 0; r < rows; r++) at[r] = x + r * ldx;
    return at;
}

void omni_linear(const Mat *m, const float *x, long ldx, float *y, long ldy, long rows, int how, int threads) {
    const float **at = rows_of(x, ldx, rows); /* not on the stack: a clip has a hundred thousand rows */
#pragma omp parallel num_threads(threads) if (threads > 1)
    share(m, at, y, ldy, how, rows, omp_get_thread_num(), omp_get_num_threads());
    free(at);
}

/* ---- a decoder layer ---- */

typedef struct {
    const float *norm, *ffn_norm, *q_norm, *k_norm; /* the last two may be nothing */
    Mat qkv, out;
    Mat gate_up, down;                   /* dense, or the shared expert */
    Mat router, shared_gate;             /* of a mixture; n = 0 where there is none */
    const Mat *expert_gate_up, *expert_down; /* one an expert */
    int32_t experts, chosen, normalise, number; /* number: of the layer in the caches */
} Layer;

typedef struct {
    float *kv;           /* keys of layer l at kv + 2 l layer, values one `layer` further: [K][S][E] each */
    int64_t layer, head; /* elements from one to the next */
} Cache;

typedef struct {
    int32_t rows, width, heads, kv_heads, head_dim, hidden, threads, moe_hidden;
    float eps, scale;
    const Cache *caches;
    const int32_t *sequence, *position; /* by row: its cache, and where it stands */
    const float *cos, *sin;             /* [rows][E]; the sign of the sine is in it */
    float *x;                           /* [rows][width]: in and out */
    float *h, *qkv, *mixed, *act;       /* room: [rows] of width, of qkv, of heads x E, of hidden */
    float *pairs;                       /* of a mixture: [rows x chosen][width] */
    float *pair_act;                    /* [rows x chosen][moe_hidden] */
    float *route;                       /* [rows][experts] */
    float *weight;                      /* [rows][chosen] */
    int32_t *expert, *place;            /* [rows x chosen] each */
    int32_t *starts;                    /* [experts + 1] */
    const float **picked, **acted;      /* [rows x chosen] each */
} Batch;

static void norm_row(const float *x, const float *w, float *y, int n, float eps) {
    v16 sum = {};
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        v16 v = *(const v16 *)(x + i);
        sum += v * v;
    }
    float total = sum16(sum);
    for (; i < n; i++) total += x[i] * x[i];
    float scale = 1.0f / sqrtf(total / n + eps);
    for (i = 0; i + 16 <= n; i += 16) *(v16 *)(y + i) = *(const v16 *)(x + i) * scale * *(const v16 *)(w + i);
    for (; i < n; i++) y[i] = x[i] * scale * w[i];
}

/* (a, b) of a head turn to (a cos - b sin, b cos + a sin). */
static void turn_row(const float *x, const float *cos, const float *sin, float *y, int n) {
    int half = n / 2;
    for (int i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        y[i] = a * cos[i] + b * sin[i];
        y[i + half] = b * cos[i + half] + a * sin[i + half];
    }
}

/* Queries of a row turned in place, its key and value put into the cache. */
static void place_row(const Batch *b, const Layer *l, long row) {
    const int E = b->head_dim;
    float *q = b->qkv + row * (b->heads + 2 * b->kv_heads) * (long)E, kept[E];
    const float *cos = b->cos + row * E, *sin = b->sin + row * E;
    const Cache *c = b->caches + b->sequence[row];
    for (int h = 0; h < b->heads; h++, q += E) {
        if (l->q_norm) norm_row(q, l->q_norm, q, E, b->eps);
        turn_row(q, cos, sin, q, E);
    }
    float *k = c->kv + 2 * l->number * c->layer + b->position[row] * (long)E, *v = k + c->layer;
    for (int h = 0; h < b->kv_heads; h++, q += E, k += c->head) {
        const float *from = q;
        if (l->k_norm) norm_row(q, l->k_norm, kept, E, b->eps), from = kept;
        turn_row(from, cos, sin, k, E);
    }
    for (int h = 0; h < b->kv_heads; h++, q += E, v += c->head) memcpy(v, q, E * sizeof(float));
}

/* Sixteen sums of sixteen lanes each, lane i of the answer that of v[i]. */
INLINE v16 sums16(v16 *v) {
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#pragma GCC unroll 4
    for (int n = 8; n; n /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < n; i++)
            v[i] = __builtin_shufflevector(v[2 * i], v[2 * i + 1], EVEN) + __builtin_shufflevector(v[2 * i], v[2 * i + 1], ODD);
    return v[0];
}

/* One query head of a row over the positions up to its own: softmax(q k / sqrt(E)) v, keys in blocks of 16 from position 0. */
static void attend(const float *q, const float *k, const float *v, long count, const int E, float scale, float *s, float *out) {
    v16 top = splat(-INFINITY), total = {};
    for (long j = 0; j < count; j += 16) {
        v16 dot[16];
        for (int i = 0; i < 16; i++) {
            const float *key = k + (j + i < count ? j + i : count - 1) * E;
            v16 sum = {};
            int e = 0;
            for (; e + 16 <= E; e += 16) sum += *(const v16 *)(q + e) * *(const v16 *)(key + e);
            for (; e < E; e++) sum[0] += q[e] * key[e];
            dot[i] = sum;
        }
        v16 found = sums16(dot) * scale;
        *(v16 *)(s + j) = found;
        if (j + 16 > count)
            for (long i = count; i < j + 16; i++) s[i] = -INFINITY;
        found = *(const v16 *)(s + j);
        top = pick(found > top, found, top);
    }
    float most = top[0];
    for (int i = 1; i < 16; i++) most = top[i] > most ? top[i] : most;
    for (long j = 0; j < count; j += 16) {
        v16 p = exp16(*(const v16 *)(s + j) - most);
        *(v16 *)(s + j) = p;
        total += p;
    }
    float share = 1.0f / sum16(total);
    for (int e = 0; e < E; e += 64) {
        if (E - e >= 64) {
            v16 a = {}, b = {}, c = {}, d = {};
            for (long j = 0; j < count; j++) {
                const float *at = v + j * E + e;
                v16 p = splat(s[j]);
                a += p * *(const v16 *)at, b += p * *(const v16 *)(at + 16);
                c += p * *(const v16 *)(at + 32), d += p * *(const v16 *)(at + 48);
            }
            *(v16 *)(out + e) = a * share, *(v16 *)(out + e + 16) = b * share;
            *(v16 *)(out + e + 32) = c * share, *(v16 *)(out + e + 48) = d * share;
            continue;
        }
        int f = e;
        for (; f + 16 <= E; f += 16) {
            v16 a = {};
            for (long j = 0; j < count; j++) a += splat(s[j]) * *(const v16 *)(v + j * E + f);
            *(v16 *)(out + f) = a * share;
        }
        for (; f < E; f++) {
            float a = 0.0f;
            for (long j = 0; j < count; j++) a += s[j] * v[j * E + f];
            out[f] = a * share;
        }
    }
}

static void attention(const Batch *b, const Layer *l, long item) {
    const int E = b->head_dim, group = b->heads / b->kv_heads;
    long row = item / b->kv_heads, g = item % b->kv_heads;
    const Cache *c = b->caches + b->sequence[row];
    const float *k = c->kv + 2 * l->number * c->layer + g * c->head, *v = k + c->layer;
    const float *q = b->qkv + (row * (b->heads + 2 * b->kv_heads) + g * group) * E;
    float *out = b->mixed + (row * b->heads + g * group) * E, *scores = room(1, b->position[row] + 17);
    for (int h = 0; h < group; h++) attend(q + h * E, k, v, b->position[row] + 1, E, b->scale, scores, out + h * E);
}

/* What a row of queries sees: `count` positions, keys of head g at k + g head, values likewise. */
typedef struct {
    const float *k, *v;
    int64_t head, count;
} Seen;

/* Attention of rows that see different positions, [rows][heads][E] from rows of q `ldq` apart. */
void omni_attend(const Seen *seen, const float *q, long ldq, float *out, long rows, int heads, int kv_heads, int E, float scale,
                 int threads) {
    const int group = heads / kv_heads;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long item = 0; item < rows * kv_heads; item++) {
        long row = item / kv_heads, g = item % kv_heads;
        const Seen *at = seen + row;
        float *scores = room(1, at->count + 16);
        for (int h = g * group; h < (g + 1) * group; h++)
            attend(q + row * ldq + h * E, at->k + g * at->head, at->v + g * at->head, at->count, E, scale, scores,
                   out + (row * heads + h) * E);
    }
}

/* The experts that a row prefers, likeliest first; of equals the one with the smaller number. A row of NaN prefers the
 * first: what is chosen is an index in any case. */
static void choose(const Batch *b, const Layer *l, long row) {
    const int X = l->experts, C = l->chosen;
    float *p = b->route + row * X, *w = b->weight + row * C, most = p[0], total = 0.0f, sum = 0.0f;
    for (int i = 1; i < X; i++) most = p[i] > most ? p[i] : most;
    for (int i = 0; i < X; i++) total += p[i] = expf(p[i] - most);
    for (int c = 0; c < C; c++) {
        int best = -1;
        for (int i = 0; i < X; i++)
            if (p[i] != -1.0f && (best < 0 || p[i] > p[best])) best = i;
        w[c] = p[best] / total;
        sum += w[c];
        p[best] = -1.0f;
        b->expert[row * C + c] = best;
    }
    if (l->normalise)
        for (int c = 0; c < C; c++) w[c] /= sum;
}

/* Pairs of row and expert, by expert: their rows of h, and their rows of what is made of them. */
static void sort(const Batch *b, const Layer *l) {
    const long pairs = (long)b->rows * l->chosen;
    int32_t *start = b->starts;
    memset(start, 0, (l->experts + 1) * sizeof(int32_t));
    for (long i = 0; i < pairs; i++) start[b->expert[i] + 1]++;
    for (int e = 0; e < l->experts; e++) start[e + 1] += start[e];
    for (long i = 0; i < pairs; i++) {
        long at = start[b->expert[i]]++;
        b->place[i] = (int32_t)at;
        b->picked[at] = b->h + i / l->chosen * b->width;
        b->acted[at] = b->pair_act + at * b->moe_hidden;
    }
    for (int e = l->experts; e; e--) start[e] = start[e - 1];
    start[0] = 0;
}

/* A thread's share of all experts' products, of rows x by pair. */
static void mixture(const Batch *b, const Mat *mats, int count, const float *const *x, float *to, long ldy, int how, int me,
                    int all) {
    for (int e = 0; e < count; e++) {
        long first = b->starts[e], rows = b->starts[e + 1] - first;
        if (rows) share(mats + e, x + first, to + first * ldy, ldy, how, rows, me, all);
    }
}

/* Layers first..last of all rows, in place. */
void omni_layers(const Layer *layers, int first, int last, const Batch *b) {
    Barrier barrier = {};
    const long R = b->rows, D = b->width;
    const long QKV = (long)(b->heads + 2 * b->kv_heads) * b->head_dim, A = (long)b->heads * b->head_dim;
    const float **hs = rows_of(b->h, D, R), **as = rows_of(b->mixed, A, R), **acts = rows_of(b->act, b->hidden, R);
#pragma omp parallel num_threads(b->threads) if (b->threads > 1)
    {
        const long me = omp_get_thread_num(), all = omp_get_num_threads();
        for (int n = first; n < last; n++) {
            const Layer *l = layers + n;
            EACH(R) norm_row(b->x + i * D, l->norm, b->h + i * D, D, b->eps);
            ALL;
            share(&l->qkv, hs, b->qkv, QKV, STORE, R, me, all);
            ALL;
            EACH(R) place_row(b, l, i);
            ALL;
            for (long i = me; i < R * b->kv_heads; i += all) attention(b, l, i);
            ALL;
            share(&l->out, as, b->x, D, ADD, R, me, all);
            ALL;
            EACH(R) norm_row(b->x + i * D, l->ffn_norm, b->h + i * D, D, b->eps);
            ALL;
            if (l->gate_up.n) share(&l->gate_up, hs, b->act, b->hidden, GATED, R, me, all);
            if (l->experts) {
                share(&l->router, hs, b->route, l->experts, STORE, R, me, all);
                ALL;
                EACH(R) choose(b, l, i);
                ALL;
                if (!me) sort(b, l);
                ALL;
                mixture(b, l->expert_gate_up, l->experts, b->picked, b->pair_act, b->moe_hidden, GATED, me, all);
                ALL;
                mixture(b, l->expert_down, l->experts, b->acted, b->pairs, D, STORE, me, all);
                if (l->shared_gate.n) { /* the shared expert: its gate into column 0 of route, its answer into qkv's room */
                    ALL;
                    share(&l->shared_gate, hs, b->route, l->experts, STORE, R, me, all);
                    share(&l->down, acts, b->mixed, D, STORE, R, me, all);
                }
                ALL;
                EACH(R) {
                    float *x = b->x + i * D;
                    for (int c = 0; c < l->chosen; c++) {
                        const float *y = b->pairs + b->place[i * l->chosen + c] * D, w = b->weight[i * l->chosen + c];
                        for (long d = 0; d < D; d++) x[d] += w * y[d];
                    }
                    if (l->shared_gate.n) {
                        const float *y = b->mixed + i * D, w = 1.0f / (1.0f + expf(-b->route[i * l->experts]));
                        for (long d = 0; d < D; d++) x[d] += w * y[d];
                    }
                }
            } else {
                ALL;
                share(&l->down, acts, b->x, D, ADD, R, me, all);
            }
            ALL;
        }
    }
    free(hs);
    free(as);
    free(acts);
}

/* RMSNorm of rows, as inside the layers. */
void omni_norm(const float *x, const float *w, float *y, long rows, int n, float eps) {
    for (long i = 0; i < rows; i++) norm_row(x + i * n, w, y + i * n, n, eps);
}
