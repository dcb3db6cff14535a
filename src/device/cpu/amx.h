/* AMX tiles: registers of 16 rows of 64 bytes. Part of kernels_all.h, after pairs.h; empty if the instruction
 * set has none.
 *
 *     _tile_dpbf16ps(c, a, b)     c [16][16] fp32 += a [16][32] bf16 x b [16 pairs][16], 16 cycles
 *
 * b holds the 32 elements of a column as 16 pairs, one below the other (see pairs.h). For each element of c,
 * the instruction sums the products of the pairs' first elements in one chain that starts at 0, and those of
 * the second elements in another. It adds the two sums to each other, then to c. This order is the same
 * everywhere in the tile. Numbers below 2^-126 count as zero. A sum over more than 32 elements is therefore a
 * chain of groups of 32; the last group is padded with zeros.
 *
 * A thread calls amx_begin before it uses tiles and amx_end after, so that the operating system need not save
 * tile state for threads that do not use it. Tile numbers are constants: tile 2 * i + j holds the (i, j)-th
 * of four sums, tiles 4 and 5 hold a, tiles 6 and 7 hold b.
 *
 * gcc does not know which memory a tile instruction reads. Code that writes operands must call amx_written
 * before tiles are loaded from them. */
#if VEC_AMX

enum { AMX_SIDE = 16, AMX_GROUP = 32, AMX_BYTES = 1024, AMX_WORDS = AMX_BYTES / 4 };

/* Groups that hold so many elements; the last one may be padded. */
INLINE int64_t amx_groups(int64_t elements) { return (elements + AMX_GROUP - 1) / AMX_GROUP; }

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

/* Zero, load or store the sums of `down` x `across` tiles (1 or 2 each). The second tile in each direction
 * lies 16 rows below or 16 columns to the right. `row`: floats between rows. */
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

/* Memory to prefetch: `lines` cache lines with each group, `row` bytes apart. Those of the next group lie
 * `step` bytes further on. */
typedef struct AmxAhead {
    const char *at;
    int64_t lines, row, step;
} AmxAhead;
static const AmxAhead amx_nothing = {.at = ""};

/* Where the tiles of A lie. Strides in bytes: from row to row, from group to group, and from a tile to the
 * one below it. */
typedef struct AmxTiles {
    const char *at;
    int64_t line, group, below;
} AmxTiles;

#define amx_load_b(tile, b, row, passing)         \
    do {                                          \
        if (passing)                              \
            _tile_stream_loadd(tile, b, (row)*4); \
        else                                      \
            _tile_loadd(tile, b, (row)*4);        \
    } while (0)

/* Operands of a chain of `groups` groups. b has 16 rows per group, b_row words apart; its two tiles lie side
 * by side. */
typedef struct AmxOperands {
    AmxTiles a;
    const float *b;
    int64_t b_row, groups;
} AmxOperands;

/* Adds the product to the sums in tiles 0-3. passing: b is not read again soon, so load it without displacing
 * a from the L1 cache. Each product is issued as soon as its operands are loaded, because the next group
 * reuses the same registers. */
INLINE void amx_chain(AmxOperands o, const AmxAhead *next, const int down, const int across,
                      const bool passing) {
    const char *a = o.a.at, *ahead = next->at;
    const float *b = o.b;
    for (int64_t g = 0; g < o.groups; g++, a += o.a.group, b += AMX_SIDE * o.b_row, ahead += next->step) {
        for (int64_t i = 0; i < next->lines; i++) __builtin_prefetch(ahead + i * next->row, 0, 2);
        _tile_loadd(4, a, o.a.line);
        amx_load_b(6, b, o.b_row, passing);
        _tile_dpbf16ps(0, 4, 6);
        if (across > 1) {
            amx_load_b(7, b + AMX_SIDE, o.b_row, passing);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (down > 1) {
            _tile_loadd(5, a + o.a.below, o.a.line);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (down > 1 && across > 1) _tile_dpbf16ps(3, 5, 7);
    }
}
#undef amx_load_b

/* Mask of the elements that exist among the next 32, of which `left` >= 1 remain. */
INLINE __mmask32 amx_mask(int64_t left) { return left >= AMX_GROUP ? 0xffffffff : (1u << left) - 1; }

/* Pairs of two rows of at most 32 elements. Unpacking works on 4 elements in each 16 bytes, so `to` gets the
 * pairs of elements 0-3, 8-11, 16-19 and 24-27 first, then those of 4-7, 12-15, 20-23 and 28-31. */
INLINE void amx_pairs(const uint16_t *from, int64_t row, int64_t rows, __mmask32 here, float *to) {
    __m512i one = _mm512_maskz_loadu_epi16(rows > 0 ? here : 0, from);
    __m512i next = _mm512_maskz_loadu_epi16(rows > 1 ? here : 0, from + row);
    _mm512_storeu_si512(to, _mm512_unpacklo_epi16(one, next));
    _mm512_storeu_si512(to + VLEN, _mm512_unpackhi_epi16(one, next));
}

/* Packs one or two tiles of A when its rows are columns in memory: pairs of two memory rows, transposed.
 * `group` and `tile` are strides in words between groups and between tiles. Missing rows and elements become
 * zeros. */
static void amx_tiles_across(MatrixView from, float *to, int64_t group, int64_t tile) {
    enum { FOUR = 4, PAIR = 2 * VLEN };
    const uint16_t *memory = from.at;
    const int64_t lines = from.cols;
    float pairs[AMX_SIDE * PAIR];
    __mmask32 here = amx_mask(lines);
    for (int64_t first = 0; first < from.rows; first += AMX_GROUP, to += group) {
        for (int64_t p = 0, at = first; p < AMX_SIDE; p++, at += 2)
            amx_pairs(memory + (at < from.rows ? at * from.row : 0), from.row, from.rows - at, here,
                      pairs + p * PAIR);
        for (int64_t i = 0; i < lines; i += FOUR)
            transpose_16((const char *)(pairs + i / FOUR % 2 * VLEN + i / 8 * FOUR), PAIR * 4,
                         to + i / AMX_SIDE * tile + i % AMX_SIDE * AMX_SIDE, AMX_SIDE, 1, DTYPE_F32);
        for (int64_t i = (lines + FOUR - 1) / FOUR * FOUR; i % AMX_SIDE; i++)
            vec_store(to + i / AMX_SIDE * tile + i % AMX_SIDE * AMX_SIDE, (Vec){0});
    }
}

/* C [m][n] = (add ? C : 0) + A B. n is a multiple of a tile's width; rows from m on that the last tiles
 * compute are dropped. A may be the sum of `parts` matrices, `part` bytes apart. Each element is one chain,
 * starting from C or zero, over the groups of the first part, then of the next; the order depends on neither
 * its position nor the shape. */
typedef struct TileProduct {
    int64_t m, n, groups;
    AmxTiles a;
    int parts;
    int64_t part;
    const float *b;
    int64_t b_row;
    float *c;
    int64_t c_row;
    bool add;
    Ahead *ahead; /* or NULL */
} TileProduct;

enum { AMX_FOUR = 2 * AMX_SIDE }; /* rows and columns of four sums */

INLINE void amx_copy(const float *from, int64_t from_row, int64_t rows, int64_t cols, float *to,
                     int64_t to_row) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i += VLEN)
            vec_store(to + r * to_row + i, vec_load(from + r * from_row + i));
}

/* Partial tiles of rows go through a buffer on the stack. */
INLINE void amx_product_at(const TileProduct *p, int64_t i, int64_t j, const int down, const int across) {
    float some[AMX_FOUR * AMX_FOUR], *c = p->c + i * p->c_row + j, *to = c;
    int64_t rows = min_i64(down * AMX_SIDE, p->m - i), to_row = p->c_row;
    bool whole = rows == down * AMX_SIDE;
    if (!whole) to = some, to_row = AMX_FOUR;
    if (!p->add) {
        amx_zero();
    } else {
        if (!whole) amx_copy(c, p->c_row, rows, across * AMX_SIDE, some, AMX_FOUR);
        amx_written();
        amx_load(to, to_row, down, across);
    }
    for (int part = 0; part < p->parts; part++) {
        AmxTiles a = p->a;
        a.at += i / AMX_SIDE * a.below + part * p->part;
        amx_chain((AmxOperands){a, p->b + j, p->b_row, p->groups}, &amx_nothing, down, across, false);
    }
    amx_store(to, to_row, down, across);
    if (!whole) amx_copy(some, AMX_FOUR, rows, across * AMX_SIDE, c, p->c_row);
}

static void amx_product(TileProduct p) {
    enum { AHEAD = 8 };
    amx_written();
    for (int64_t i = 0; i < p.m; i += AMX_FOUR)
        for (int64_t j = 0; j < p.n; j += AMX_FOUR) {
            bool down = p.m - i > AMX_SIDE, across = p.n - j > AMX_SIDE;
            for (int k = 0; k < AHEAD; k++) ahead_step(p.ahead);
            if (down && across)
                amx_product_at(&p, i, j, 2, 2);
            else if (down)
                amx_product_at(&p, i, j, 2, 1);
            else if (across)
                amx_product_at(&p, i, j, 1, 2);
            else
                amx_product_at(&p, i, j, 1, 1);
        }
}

/* Upper bound of a core, as product_limit. The operands are varied numbers: zeros take less power, and the
 * bound would be higher than any real product can reach. */
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
