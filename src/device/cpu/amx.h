/* Tiles of AMX: registers of 16 lines of 64 bytes. Part of kernels_all.h, after pairs.h; empty where there
 * are none.
 *
 *     amx_dot(c, a, b)     c [16][16] fp32 += a [16][32] bf16 x b [16 pairs][16], 16 cycles
 *
 * b has the 32 elements of a column as pairs, one below the other, as everything in pairs.h has. An element
 * of c gets the sum of the products of all first elements of pairs, and that of all second ones, each a chain
 * that begins with 0, added to each other and then to c: whatever its place in the tile. Numbers below 2^-126
 * are zeros. So a sum over more than 32 elements is a chain of groups of 32, the last one filled up with
 * zeros.
 *
 * A thread says amx_begin before it uses tiles and amx_end after it: what a thread that does not use them
 * need not save costs nothing. Names of tiles are constants: AMX_C + 2 * i + j is the (i, j)-th of four sums.
 *
 * Compilers do not know what memory an instruction on tiles reads (gcc): who has written it says amx_written.
 */
#if VEC_AMX

enum { AMX_SIDE = 16, AMX_GROUP = 32, AMX_BYTES = 1024 };

typedef struct AmxConfig {
    uint8_t palette, start, none[14];
    uint16_t line_bytes[16];
    uint8_t lines[16];
} AmxConfig;

INLINE void amx_begin(void) {
    AmxConfig all = {.palette = 1};
    for (int i = 0; i < 8; i++) all.line_bytes[i] = 64, all.lines[i] = AMX_SIDE;
    __asm__ volatile("" ::"m"(all));
    _tile_loadconfig(&all);
}
INLINE void amx_end(void) { _tile_release(); }
INLINE void amx_written(void) { __asm__ volatile("" ::: "memory"); }

/* Sums of `down` x `across` tiles (one or two each way), the second ones 16 lines below, 16 numbers to the
 * right; `row` numbers from one line to the next. */
INLINE void amx_zero(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}
INLINE void amx_load(const float *c, int64_t row, const int down, const int across) {
    _tile_loadd(0, c, row * 4);
    if (across > 1) _tile_loadd(1, c + AMX_SIDE, row * 4);
    if (down > 1) _tile_loadd(2, c + AMX_SIDE * row, row * 4);
    if (down > 1 && across > 1) _tile_loadd(3, c + AMX_SIDE * row + AMX_SIDE, row * 4);
}
INLINE void amx_store(float *c, int64_t row, const int down, const int across) {
    _tile_stored(0, c, row * 4);
    if (across > 1) _tile_stored(1, c + AMX_SIDE, row * 4);
    if (down > 1) _tile_stored(2, c + AMX_SIDE * row, row * 4);
    if (down > 1 && across > 1) _tile_stored(3, c + AMX_SIDE * row + AMX_SIDE, row * 4);
}

/* Lines of memory that will be wanted: with each group `lines` of them, `row` bytes apart; those of the next
 * group lie `step` bytes further on. */
typedef struct AmxAhead {
    const char *at;
    int64_t lines, row, step;
} AmxAhead;

/* To those sums, of `groups` groups: a is [groups][down tiles], a tile after the other; lines of b lie b_row
 * words apart, 16 to a group, its tiles beside each other. */
INLINE void amx_chain(const char *a, const float *b, int64_t b_row, int64_t groups, const AmxAhead *next,
                      const int down, const int across) {
    const char *ahead = next->at;
    for (int64_t g = 0; g < groups; g++, a += down * AMX_BYTES, b += AMX_SIDE * b_row, ahead += next->step) {
        for (int64_t i = 0; i < next->lines; i++) __builtin_prefetch(ahead + i * next->row, 0, 2);
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, b_row * 4);
        if (across > 1) _tile_loadd(7, b + AMX_SIDE, b_row * 4);
        if (down > 1) _tile_loadd(5, a + AMX_BYTES, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (across > 1) _tile_dpbf16ps(1, 4, 7);
        if (down > 1) _tile_dpbf16ps(2, 5, 6);
        if (down > 1 && across > 1) _tile_dpbf16ps(3, 5, 7);
    }
}

/* What a core could do at most, as product_limit. Of numbers that differ: with zeros, which take less power,
 * it is more than any product could have. */
static double amx_limit(int64_t rounds, float *sums) {
    uint16_t x[AMX_BYTES / 2];
    for (int i = 0; i < AMX_BYTES / 2; i++) x[i] = (uint16_t)(0x3c00 + i * 7919 % 0x300);
    amx_begin();
    amx_written();
    amx_zero();
    _tile_loadd(4, x, 64);
    _tile_loadd(5, x, 64);
    _tile_loadd(6, x, 64);
    _tile_loadd(7, x, 64);
    for (int64_t i = 0; i < rounds; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, 64);
    amx_end();
    return 4.0 * (double)rounds * 2 * AMX_SIDE * AMX_SIDE * AMX_GROUP;
}

#endif
