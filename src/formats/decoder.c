/* zstd by libzstd, gzip by zlib. Both work with windows of a fixed size, so memory does not depend on how far
 * a file expands: 32 KiB for gzip, up to 128 MiB for zstd (as the zstd program accepts them). */
#include "formats/decoder.h"

#include <limits.h>
#include <stdlib.h>
#define ZLIB_CONST
#include <zlib.h>
#include <zstd.h>

#include "base/text.h"

/* ---- zstd ---- */

static void *zstd_open(void) { return ZSTD_createDStream(); }
static void zstd_close(void *state) { ZSTD_freeDStream(state); }

/* A file is one or more frames. The decoder returns 0 exactly between two of them. */
static const char *zstd_run(void *state, DecoderBytes *b, bool *whole) {
    ZSTD_inBuffer in = {b->in, b->in_size, b->in_at};
    ZSTD_outBuffer out = {b->out, b->out_size, b->out_at};
    size_t pending = ZSTD_decompressStream(state, &out, &in);
    b->in_at = in.pos;
    b->out_at = out.pos;
    *whole = pending == 0;
    return ZSTD_isError(pending) ? ZSTD_getErrorName(pending) : NULL;
}

/* ---- gzip ---- */

typedef struct Gzip {
    z_stream z;
    bool between; /* behind a member: another may follow, or zeros, or the end of the file */
} Gzip;

static void gzip_close(void *state) {
    Gzip *g = state;
    if (g) inflateEnd(&g->z);
    free(g);
}

/* 16: a gzip header and trailer, whose checksum and length zlib compares. */
static void *gzip_open(void) {
    Gzip *g = mem_alloc(sizeof *g);
    if (inflateInit2(&g->z, 16 + MAX_WBITS) == Z_OK) return g;
    free(g);
    return NULL;
}

/* Tapes and block devices leave zeros behind the last member; gzip and Python accept them, too. */
static const char *next_member(Gzip *g, DecoderBytes *b) {
    while (b->in_at < b->in_size && b->in[b->in_at] == 0) b->in_at++;
    if (b->in_at == b->in_size) return NULL;
    if (b->in[b->in_at] != 0x1f) return "bytes that are not gzip follow its last member";
    g->between = false;
    return inflateReset(&g->z) == Z_OK ? NULL : "zlib cannot start another member";
}

static unsigned at_most_uint(size_t n) { return n < UINT_MAX ? (unsigned)n : UINT_MAX; }

static const char *inflate_some(Gzip *g, DecoderBytes *b) {
    z_stream *z = &g->z;
    unsigned in = at_most_uint(b->in_size - b->in_at), out = at_most_uint(b->out_size - b->out_at);
    z->next_in = (const Bytef *)b->in + b->in_at;
    z->avail_in = in;
    z->next_out = (Bytef *)b->out + b->out_at;
    z->avail_out = out;
    int code = inflate(z, Z_NO_FLUSH);
    b->in_at += in - z->avail_in;
    b->out_at += out - z->avail_out;
    g->between = code == Z_STREAM_END;
    if (code == Z_OK || code == Z_STREAM_END) return NULL;
    return z->msg ? z->msg : zError(code);
}

/* A file is one member or several, as bgzip, pigz and cat write them; an empty member is not the end. */
static const char *gzip_run(void *state, DecoderBytes *b, bool *whole) {
    Gzip *g = state;
    const char *wrong = NULL;
    if (g->between) wrong = next_member(g, b);
    if (!wrong && !g->between) wrong = inflate_some(g, b);
    *whole = g->between;
    return wrong;
}

/* ---- the table ---- */

static const struct {
    FileKind kind;
    Decoder decoder;
} decoders[] = {
    {KIND_ZSTD, {"zstd", zstd_open, zstd_close, zstd_run}},
    {KIND_GZIP, {"gzip", gzip_open, gzip_close, gzip_run}},
};

const Decoder *decoder_of(FileKind kind) {
    for (size_t i = 0; i < sizeof decoders / sizeof *decoders; i++)
        if (decoders[i].kind == kind) return &decoders[i].decoder;
    return NULL;
}
