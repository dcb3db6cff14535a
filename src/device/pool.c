/* Invariant: a pool is dry (base NULL, requests only counted) or committed (base taken from the device,
 * used <= planned).
 *
 * A pool is one piece of memory, given back whole: there is no freeing within it, and so nothing to
 * fragment or to leak. The order and sizes of requests are all that an address depends on.
 *
 * Elsewhere called: allocator; there is no caching allocator, since nothing is allocated in a step. */
#include "device/pool.h"

#include "base/text.h"

/* Laid out twice by the same code: dry, which counts, then committed, which gives addresses. So the plan
 * cannot say another number than is used; that is the only reason for the two phases. */
void *pool_take(Pool *p, size_t bytes) {
    /* A plan too large to count sticks at the top, where pool_commit refuses it. */
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

/* Asked before it is taken: a system that promises more than it has would end the process half way. */
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

/* Whichever way it fails, the pool stays dry and holds nothing. */
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

/* Of a dry pool, too. It may be laid out anew afterwards. */
void pool_free(Pool *p) {
    if (p->base) p->device->runtime.give(p->device, p->base, p->planned);
    p->device = NULL;
    p->base = NULL;
    p->planned = p->used = 0;
}
