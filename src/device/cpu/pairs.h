/* Pairs of bf16 as terms of dot products: two consecutive elements of the sum in one 32-bit word. Part of
 * kernels_all.h, after tile.h; empty if the instruction set has no dot products of pairs.
 *
 * The words are moved as if they were fp32 numbers, but no arithmetic is done on them. If the number of
 * elements is odd, the last pair has a zero as its second element. */
#if VEC_PAIRS

/* Stores the pair of from[0] and from[step], or of from[0] and zero if there is no second element. */
INLINE void put_pair(const uint16_t *from, int64_t step, bool second, float *to) {
    uint32_t pair = from[0] | (second ? (uint32_t)from[step] << 16 : 0);
    memcpy(to, &pair, sizeof pair);
}

/* Pairs of neighbours within a row of bf16, transposed: to[(cols + 1) / 2][to_row], of which the first `rows`
 * columns are written. */
INLINE void transpose_pairs(MatrixView from, float *to, int64_t to_row) {
    enum { QUADS = 8, LINE = 32 }; /* elements in 16 bytes, and in a line of the cache */
    const int64_t full_rows = from.rows / 4 * 4, whole = from.cols / QUADS * QUADS;
    const uint16_t *at = from.at;
    for (int64_t i = 0; i < whole; i += LINE) {
        const QuadRows lines = {(const char *)(at + i), from.rows, min_i64(LINE, whole - i) / QUADS,
                                from.row * 2};
        transpose_lines(lines, to + i / 2 * to_row, to_row, 1, DTYPE_F32);
    }
    for (int64_t r = 0; r < from.rows; r++)
        for (int64_t i = r < full_rows ? whole : 0; i < from.cols; i += 2)
            put_pair(at + r * from.row + i, 1, i + 1 < from.cols, to + i / 2 * to_row + r);
}

/* Pairs of neighbours in a column: VLEN elements of a row, of which `left` exist, each with the element below
 * it if `second`, else with zero. */
INLINE Vec pairs_of_rows(const uint16_t *from, int64_t row, int64_t left, bool second) {
    __mmask16 here = (__mmask16)(left >= VLEN ? 0xffff : left > 0 ? (1u << left) - 1 : 0);
    __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(here, from));
    __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(second ? here : 0, from + row));
    return (Vec)_mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/* Pairs of the lanes of two fp32 vectors. The processor rounds them to bf16 and flushes numbers below 2^-126
 * to zero. */
INLINE Vec pairs_across(Vec one, Vec next) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                           7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512bh both = _mm512_cvtne2ps_pbh((__m512)next, (__m512)one);
    return (Vec)_mm512_permutexvar_epi16(order, (__m512i)both);
}

#endif
