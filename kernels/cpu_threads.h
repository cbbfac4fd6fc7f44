/* How threads of one region share the phases of many layers: each has its part of one, and all meet before the next. */
#include <sched.h>
#include <stdatomic.h>

typedef struct {
    _Atomic int came, round;
} Barrier;

/* Everybody is here. Waits are microseconds, so they spin; where a neighbour took the core, they give it up. */
static void wait_all(Barrier *b, int all) {
    if (all == 1) return;
    int round = atomic_load_explicit(&b->round, memory_order_acquire);
    if (atomic_fetch_add_explicit(&b->came, 1, memory_order_acq_rel) == all - 1) {
        atomic_store_explicit(&b->came, 0, memory_order_relaxed);
        atomic_store_explicit(&b->round, round + 1, memory_order_release);
        return;
    }
    for (int spin = 0; atomic_load_explicit(&b->round, memory_order_acquire) == round; spin++)
        if (spin > 4000) sched_yield();
#if defined(__x86_64__)
        else __builtin_ia32_pause();
#endif
}

/* In a region, with `me`, `all` and `barrier`: this thread's part of so many items, and where everybody waits for everybody. */
#define EACH(count) for (long i = (count) * me / all; i < (count) * (me + 1) / all; i++)
#define ALL wait_all(&barrier, all)
