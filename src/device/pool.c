/* Invariant: a pool is either dry (base is NULL, requests are only counted) or committed (base was taken from
 * the device, used <= planned).
 *
 * A pool is one block of memory that is given back as a whole. Nothing inside it is freed, so it cannot
 * fragment or leak, and an address depends only on the order and sizes of requests.
 *
 * Elsewhere called: allocator; there is no caching allocator, since a step takes no tensor memory. */
#include "device/pool.h"

#include "base/text.h"

/* The same layout code runs twice: dry, which counts, then committed, which returns addresses. So the plan
 * always equals what is used; that is the only reason for the two phases. */
void *pool_take(Pool *p, size_t bytes) {
    /* A plan too large to count saturates, and pool_commit refuses it. */
    size_t rounded = bytes > SIZE_MAX - (POOL_ALIGN - 1) ? SIZE_MAX : pool_round(bytes);
    if (!p->base) {
        if (__builtin_add_overflow(p->planned, rounded, &p->planned)) p->planned = SIZE_MAX;
        return NULL;
    }
    CHECK(rounded <= p->planned - p->used);
    char *memory = p->base + p->used;
    p->used += rounded;
    return memory;
}

/* Checked before memory is taken: a system that overcommits would kill the process half way. */
static ErrorCode check_available(const Pool *p, const Device *d, Error *err) {
    char size[32], available[32];
    size_t there = d->runtime.available(d);
    if (p->planned > PTRDIFF_MAX)
        return error_set(err, ERR_MEMORY, "pool \"%s\": its size is more than this machine can address",
                         p->name);
    if (there == 0 || p->planned <= there) return OK;
    return error_set(err, ERR_MEMORY,
                     "pool \"%s\" needs %s, found %s available; make the model or the batch smaller "
                     "(train.microbatch; --batch)",
                     p->name, text_bytes((double)p->planned, size), text_bytes((double)there, available));
}

/* On any failure the pool stays dry and holds nothing. */
ErrorCode pool_commit(Pool *p, Device *d, Error *err) {
    char size[32];
    CHECK(p->base == NULL);
    TRY(check_available(p, d, err));
    p->base = d->runtime.take(d, p->planned);
    if (!p->base)
        return error_set(err, ERR_MEMORY, "pool \"%s\": the system gave no memory for %s", p->name,
                         text_bytes((double)p->planned, size));
    p->device = d;
    p->used = 0;
    return OK;
}

/* Also frees a dry pool. The pool may be laid out again afterwards. */
void pool_free(Pool *p) {
    if (p->base) p->device->runtime.give(p->device, p->base, p->planned);
    p->device = NULL;
    p->base = NULL;
    p->planned = p->used = 0;
}
