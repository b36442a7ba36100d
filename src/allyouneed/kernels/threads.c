/* Share the panels of a product among a few threads.

   A step of one row is limited by how fast weights arrive from memory, and one core cannot use all of the bandwidth. The
   threads of the team spin for some microseconds after a product, because the next one follows at once, and then sleep.
   Each panel is computed by one thread in the usual order: the result does not depend on the number of threads.

   If another process has taken the core of a thread, all wait for it. So a caller that has waited long computes alone for
   a while: on a busy machine a step takes about as long as with one thread.

   One caller at a time has the team; others compute alone. `state` is the only word that both sides change: a generation
   for each product, whether it is open, and how many threads are in it. A thread joins by compare-and-swap while the
   product is open. The caller closes it and waits until all have left, so a late thread cannot see half a product. */

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "team.h"

/* SPINS: of a thread without work before it sleeps, and of a caller that waits before it gives up the team for ALONE
   nanoseconds. */
enum { MOST = 64, SPINS = 2000, ALONE = 200 * 1000 * 1000 };
static const uint64_t OPEN = 1u << 16, MEMBERS = (1u << 16) - 1;

static struct {
    pthread_mutex_t taken, sleep;
    pthread_cond_t wake;
    _Atomic uint64_t state;
    _Atomic int64_t next, sleeping;
    share_work work;
    const void *job;
    i64 count, piece, threads, alone_until;
    pthread_t thread[MOST];
} team = {.taken = PTHREAD_MUTEX_INITIALIZER, .sleep = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static _Thread_local i64 wanted = 1;

static inline void rest(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Use this many threads for the products of the calling thread. */
void use_threads(i64 threads) { wanted = threads < 1 ? 1 : threads > MOST ? MOST : threads; }

static void take_pieces(void) {
    for (;;) {
        i64 begin = atomic_fetch_add(&team.next, 1) * team.piece;
        if (begin >= team.count) return;
        team.work(team.job, begin, min_i64(begin + team.piece, team.count));
    }
}

static void *member(void *unused) {
    (void)unused;
    uint64_t last = 0;
    for (;;) {
        uint64_t now = 0;
        for (int spin = 0; spin < SPINS; spin++, rest()) {
            now = atomic_load(&team.state);
            if ((now & OPEN) && now >> 32 != last) break;
        }
        if (!(now & OPEN) || now >> 32 == last) {
            pthread_mutex_lock(&team.sleep);
            atomic_fetch_add(&team.sleeping, 1);
            while (!((now = atomic_load(&team.state)) & OPEN) || now >> 32 == last) {
                pthread_cond_wait(&team.wake, &team.sleep);
            }
            atomic_fetch_sub(&team.sleeping, 1);
            pthread_mutex_unlock(&team.sleep);
        }
        if (!atomic_compare_exchange_strong(&team.state, &now, now + 1)) continue;
        last = now >> 32;
        take_pieces();
        atomic_fetch_sub(&team.state, 1);
    }
    return NULL;
}

/* The threads do not exist in a forked process. */
static void forget(void) {
    team.threads = 0;
    atomic_store(&team.state, 0);
    atomic_store(&team.sleeping, 0);
    pthread_mutex_init(&team.taken, NULL);
    pthread_mutex_init(&team.sleep, NULL);
    pthread_cond_init(&team.wake, NULL);
}

static void grow(i64 threads) {
    static bool registered;
    if (!registered) registered = !pthread_atfork(NULL, NULL, forget);
    while (team.threads < threads - 1) {
        if (pthread_create(&team.thread[team.threads], NULL, member, NULL)) return;
        pthread_detach(team.thread[team.threads++]);
    }
}

static i64 now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * (i64)1000000000 + now.tv_nsec;
}

/* Wait until all threads have left the product. */
static void wait_for_team(void) {
    for (i64 spin = 0; atomic_load(&team.state) & MEMBERS; spin++) {
        if (spin < SPINS) {
            rest();
        } else {
            if (spin == SPINS) team.alone_until = now_ns() + ALONE;
            sched_yield();
        }
    }
}

void share(share_work work, const void *job, i64 count, i64 bytes) {
    /* Below this size waking the others takes longer than the product. */
    if (wanted < 2 || bytes < 1 << 18 || count < 2 || pthread_mutex_trylock(&team.taken)) {
        work(job, 0, count);
        return;
    }
    if (now_ns() < team.alone_until) {
        pthread_mutex_unlock(&team.taken);
        work(job, 0, count);
        return;
    }
    grow(wanted);
    team.work = work, team.job = job, team.count = count;
    team.piece = max_i64(1, count / (4 * wanted));
    atomic_store(&team.next, 0);
    atomic_store(&team.state, ((atomic_load(&team.state) >> 32) + 1) << 32 | OPEN);
    if (atomic_load(&team.sleeping)) {
        pthread_mutex_lock(&team.sleep);
        pthread_cond_broadcast(&team.wake);
        pthread_mutex_unlock(&team.sleep);
    }
    take_pieces();
    atomic_fetch_and(&team.state, ~OPEN);
    wait_for_team();
    pthread_mutex_unlock(&team.taken);
}
