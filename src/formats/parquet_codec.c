/* A page states how many bytes it decompresses to, and `times` bounds what can be true: so no memory is taken
 * for a page that could not fill it. */
#include "formats/parquet_codec.h"

#include <lz4.h>
#include <snappy-c.h>
#include <string.h>
#define ZLIB_CONST
#include <zlib.h>
#include <zstd.h>

#define OTHER_SIZE "it decompresses to another size than its page states"
static const char damaged[] = "its compressed bytes are damaged";

static const char *copy(const char *in, size_t in_size, char *out, size_t out_size) {
    if (in_size != out_size) return OTHER_SIZE;
    memcpy(out, in, in_size);
    return NULL;
}

/* The length at the front of the data is compared first: it may claim 4 GiB. */
static const char *snappy(const char *in, size_t in_size, char *out, size_t out_size) {
    size_t size = 0;
    if (snappy_uncompressed_length(in, in_size, &size) != SNAPPY_OK) return damaged;
    if (size != out_size) return OTHER_SIZE;
    return snappy_uncompress(in, in_size, out, &size) == SNAPPY_OK ? NULL : damaged;
}

/* 32: gzip or zlib, as some writers have it. A page may be several members. */
static const char *gzip(const char *in, size_t in_size, char *out, size_t out_size) {
    z_stream z = {.avail_in = (unsigned)in_size, .avail_out = (unsigned)out_size};
    z.next_in = (const Bytef *)in;
    z.next_out = (Bytef *)out;
    if (inflateInit2(&z, 32 + MAX_WBITS) != Z_OK) return "no memory for zlib";
    int code;
    do code = inflate(&z, Z_FINISH);
    while (code == Z_STREAM_END && z.avail_in > 0 && inflateReset(&z) == Z_OK);
    inflateEnd(&z);
    if (code == Z_BUF_ERROR && z.avail_out == 0) return OTHER_SIZE;
    if (code != Z_STREAM_END) return damaged;
    return z.avail_out == 0 ? NULL : OTHER_SIZE;
}

static const char *zstd(const char *in, size_t in_size, char *out, size_t out_size) {
    size_t size = ZSTD_decompress(out, out_size, in, in_size);
    if (ZSTD_isError(size)) return damaged;
    return size == out_size ? NULL : OTHER_SIZE;
}

static const char *lz4(const char *in, size_t in_size, char *out, size_t out_size) {
    int size = LZ4_decompress_safe(in, out, (int)in_size, (int)out_size);
    if (size < 0) return damaged;
    return (size_t)size == out_size ? NULL : OTHER_SIZE;
}

/* By the numbers of the format. times: of snappy, a copy of 64 bytes takes 3; of deflate, 258 bytes take two
 * bits; of zstd, a block of 128 KiB takes 4 bytes; of lz4, each further byte of a length stands for 255.
 * Number 5 had three meanings, of which writers chose different ones. */
static const struct {
    const char *name;
    uint64_t times;
    const char *(*decompress)(const char *in, size_t in_size, char *out,
                              size_t out_size); /* NULL: not read */
} codecs[] = {{"no compression", 1, copy}, {"snappy", 22, snappy},
              {"gzip", 1040, gzip},        {"lzo", 0, NULL},
              {"brotli", 0, NULL},         {"lz4 of old (codec 5)", 0, NULL},
              {"zstd", 1 << 15, zstd},     {"lz4 (raw)", 256, lz4}};

static bool known(int codec) { return codec >= 0 && (size_t)codec < sizeof codecs / sizeof *codecs; }

const char *parquet_codec_name(int codec) { return known(codec) ? codecs[codec].name : "an unknown codec"; }

bool parquet_codec_is_read(int codec) { return known(codec) && codecs[codec].decompress; }

uint64_t parquet_codec_most(int codec, uint64_t stored) {
    return parquet_codec_is_read(codec) ? codecs[codec].times * stored : 0;
}

/* An empty page may have no compressed bytes at all. */
const char *parquet_decompress(int codec, const char *in, size_t in_size, char *out, size_t out_size) {
    if (out_size == 0) return NULL;
    return codecs[codec].decompress(in, in_size, out, out_size);
}
