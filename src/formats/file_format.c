/* The table of formats, in the order in which they are tried: the first match wins. A magic number of letters
 * alone could start a text, so it counts only if something after it could not be text. */
#include "formats/file_format.h"

#include <string.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "formats/pickle.h"
#include "tokenizer/utf8.h"

static uint64_t number_at(const FileEnds *e, size_t at, size_t bytes) {
    return little_endian(e->head + at, bytes);
}

static bool holds(const FileEnds *e, size_t at, const char *bytes, size_t length) {
    return e->head_length >= at + length && memcmp(e->head + at, bytes, length) == 0;
}

static bool ends_with(const FileEnds *e, size_t before_end, const char *bytes) {
    size_t length = strlen(bytes);
    return e->tail_length >= length + before_end &&
           memcmp(e->tail + e->tail_length - before_end - length, bytes, length) == 0;
}

/* Control characters that no text has, or bytes that are not UTF-8. */
static bool is_binary(const FileEnds *e) {
    const char *head = (const char *)e->head;
    for (size_t i = 0; i < e->head_length; i++)
        if (file_is_control(e->head[i])) return true;
    return utf8_valid_run(head, e->head_length) + 3 < e->head_length;
}

/* Decompressed content, whose end is not known. */
static bool is_binary_content(const FileEnds *e) { return e->size == 0 && is_binary(e); }

static bool ends_as_parquet(const FileEnds *e) {
    return is_binary(e) && (ends_with(e, 0, "PAR1") || ends_with(e, 0, "PARE"));
}
/* The magic number is preceded by the length of the last section. */
static bool ends_as_orc(const FileEnds *e) { return is_binary(e) && ends_with(e, 1, "ORC"); }
static bool ends_as_feather(const FileEnds *e) { return is_binary(e) && ends_with(e, 0, "FEA1"); }
static bool ends_as_lance(const FileEnds *e) { return is_binary(e) && ends_with(e, 0, "LANC"); }

/* Messages of the streaming format: a marker, and the length of a header. */
static bool is_arrow_stream(const FileEnds *e) {
    return e->head_length >= 8 && number_at(e, 4, 4) > 0 && number_at(e, 4, 4) < 1u << 28;
}

/* Word, Excel and PowerPoint write zip files with known member names. */
static bool is_office(const FileEnds *e) {
    static const char *const names[] = {
        "[Content_Types].xml", "word/", "xl/", "ppt/", "mimetype", "_rels/", "docProps/"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (holds(e, 30, names[i], strlen(names[i]))) return true;
    return false;
}

/* tar before ustar has no magic number: the sum of a header's bytes, with spaces in its own place. */
static bool is_old_tar(const FileEnds *e) {
    enum { BLOCK = 512, SUM_AT = 148, SUM_BYTES = 8 };
    unsigned long sum = 0, stated = 0;
    size_t at = SUM_AT;
    if (e->head_length < BLOCK || !is_binary(e)) return false;
    for (size_t i = 0; i < BLOCK; i++) sum += i - SUM_AT < SUM_BYTES ? ' ' : e->head[i];
    while (at < SUM_AT + SUM_BYTES && e->head[at] == ' ') at++;
    for (; at < SUM_AT + SUM_BYTES && e->head[at] >= '0' && e->head[at] <= '7'; at++)
        stated = 8 * stated + (e->head[at] - '0');
    return sum == stated;
}

/* PyTorch's checkpoints are zip files whose first member is the pickle, or is in a folder "archive". */
static bool is_torch(const FileEnds *e) {
    for (size_t at = 30; at + 8 < e->head_length && at < 128; at++)
        if (holds(e, at, "data.pkl", 8)) return true;
    return false;
}

static bool is_npz(const FileEnds *e) {
    for (size_t at = 30; at + 4 < e->head_length && at < 128; at++)
        if (holds(e, at, ".npy", 4)) return true;
    return false;
}

/* zstd and lz4 have skippable frames with the same magic numbers. */
static bool is_skippable(const FileEnds *e) { return (e->head[0] & 0xf0) == 0x50; }

static bool is_bzip2(const FileEnds *e) {
    return e->head_length > 3 && e->head[3] >= '1' && e->head[3] <= '9';
}

static bool is_safetensors(const FileEnds *e) {
    if (e->head_length < 16 || e->head[8] != '{') return false;
    uint64_t header = number_at(e, 0, 8);
    return header >= 2 && header < 1u << 30 && (e->size == 0 || header <= e->size - 8);
}

/* The number of samples, and the offset of each. */
static bool is_mds(const FileEnds *e) {
    if (e->head_length < 12) return false;
    uint64_t samples = number_at(e, 0, 4), first = number_at(e, 4, 4);
    return samples > 0 && first == 8 + 4 * samples && first <= e->size && number_at(e, 8, 4) > first &&
           number_at(e, 8, 4) <= e->size;
}

/* The length of a record, and the masked checksum of these eight bytes. */
static bool is_tfrecord(const FileEnds *e) {
    if (e->head_length < 12) return false;
    uint32_t sum = crc32c(e->head, 8), masked = ((sum >> 15) | (sum << 17)) + 0xa282ead8u;
    return number_at(e, 8, 4) == masked;
}

static bool is_heif(const FileEnds *e) {
    return is_binary(e) && (holds(e, 8, "avif", 4) || holds(e, 8, "heic", 4) || holds(e, 8, "mif1", 4));
}

static bool is_riff(const FileEnds *e) {
    return holds(e, 8, "WEBP", 4) || holds(e, 8, "WAVE", 4) || holds(e, 8, "AVI ", 4);
}

/* A string of protocol 0 may be longer than the head: then the end tells. */
static bool is_pickle(const FileEnds *e) {
    bool string = e->head[0] == 'V' || e->head[0] == 'S';
    return pickle_begins(e->head, e->head_length, e->head_length < FILE_HEAD_BYTES) ||
           (e->head_length > 0 && string && ends_with(e, 0, "\np0\n."));
}

/* Tables of LevelDB and RocksDB end with a magic number. */
static bool ends_as_leveldb(const FileEnds *e) { return ends_with(e, 0, "\x57\xfb\x80\x8b\x24\x75\x47\xdb"); }
static bool ends_as_rocksdb(const FileEnds *e) { return ends_with(e, 0, "\xf7\xcf\xf4\x85\xb7\x41\xe2\x88"); }

/* Two bytes of a header: the first names the method, and as a number it is a multiple of 31. */
static bool is_zlib(const FileEnds *e) {
    return e->head_length > 2 && (e->head[0] * 256 + e->head[1]) % 31 == 0 && is_binary(e);
}

/* Header of lzma's own format: properties, the size of the dictionary, and that of the content, mostly -1. */
static bool is_lzma(const FileEnds *e) {
    uint64_t size = e->head_length >= 13 ? number_at(e, 5, 8) : 0;
    return size == UINT64_MAX || (size > 0 && size < UINT64_C(1) << 40);
}

static bool has_in_head(const FileEnds *e, const char *words) {
    return e->head_length >= strlen(words) && memmem(e->head, e->head_length, words, strlen(words)) != NULL;
}

/* Type of the elements in the header of a .npy. */
static bool is_npy_of_floats(const FileEnds *e) {
    return has_in_head(e, "'descr': '<f") || has_in_head(e, "'descr': '>f");
}

/* Object stores answer with such a page instead of the file. */
static bool is_error_page(const FileEnds *e) { return has_in_head(e, "<Error><Code>"); }

/* All of its bytes are ASCII; escapes change the set of characters. */
static bool is_iso_2022_jp(const FileEnds *e) {
    return (has_in_head(e, "\x1b$B") || has_in_head(e, "\x1b$@")) &&
           (has_in_head(e, "\x1b(B") || has_in_head(e, "\x1b(J"));
}

/* Its own size follows. */
static bool is_bmp(const FileEnds *e) {
    return e->head_length > 26 && e->size > 0 && number_at(e, 2, 4) == e->size;
}

/* The upper byte of the version's number, from 3.0 on, precedes the end of line. */
static bool is_python(const FileEnds *e) { return e->head[1] >= 0x0c && e->head[1] <= 0x0e && is_binary(e); }

/* brotli has no magic number. */
static bool is_brotli(const FileEnds *e) {
    size_t length = strlen(e->path);
    return length > 3 && strcmp(e->path + length - 3, ".br") == 0 && is_binary(e);
}

#define LINES "write its text as JSON lines (.jsonl)"
#define COLUMN "give the source format: parquet, and column: its text"
#define UNPACK "unpack it and name the files that are in it"
#define REPACK "decompress it, or compress it with gzip or zstd"
#define TWICE "it is compressed twice: decompress it once"
#define TEXT_OF "weft tokenizes by itself: name the text that these ids were made of"
#define TOKENS "give the source format: tokens"
#define INDEXED "name the .bin file next to it, with format: tokens"
#define EXTRACT "extract its text first"
#define MODEL "data.sources takes text"
#define RECODE(name) "convert it with: iconv -f " name " -t UTF-8"
#define MAGIC(bytes) .magic = bytes, .length = sizeof(bytes) - 1

/* clang-format off */
static const FileFormat formats[] = {
    {"zstd data", TWICE, KIND_ZSTD, 0, MAGIC("\x28\xb5\x2f\xfd"), NULL},
    {"zstd data", TWICE, KIND_ZSTD, 1, MAGIC("\x2a\x4d\x18"), is_skippable},
    {"gzip data", TWICE, KIND_GZIP, 0, MAGIC("\x1f\x8b"), NULL},
    {"xz data", REPACK, KIND_PACKED, 0, MAGIC("\xfd""7zXZ\0"), NULL},
    {"bzip2 data", REPACK, KIND_PACKED, 4, MAGIC("\x31\x41\x59\x26\x53\x59"), is_bzip2},
    {"bzip2 data", REPACK, KIND_PACKED, 4, MAGIC("\x17\x72\x45\x38\x50\x90"), is_bzip2},
    {"lz4 data", REPACK, KIND_PACKED, 0, MAGIC("\x04\x22\x4d\x18"), NULL},
    {"lz4 data", REPACK, KIND_PACKED, 0, MAGIC("\x02\x21\x4c\x18"), NULL},
    {"snappy data", REPACK, KIND_PACKED, 0, MAGIC("\xff\x06\0\0sNaPpY"), NULL},
    {"lzip data", REPACK, KIND_PACKED, 0, MAGIC("LZIP\x01"), NULL},
    {"data of compress (.Z)", REPACK, KIND_PACKED, 0, MAGIC("\x1f\x9d"), NULL},
    {"zlib data", REPACK, KIND_NOT_TEXT, 0, MAGIC("\x78"), is_zlib},
    {"lzma data", REPACK, KIND_PACKED, 0, MAGIC("\x5d\0\0"), is_lzma},
    {"brotli data", REPACK, KIND_PACKED, 0, NULL, 0, is_brotli},
    {"a 7z archive", UNPACK, KIND_PACKED, 0, MAGIC("7z\xbc\xaf\x27\x1c"), NULL},
    {"a rar archive", UNPACK, KIND_PACKED, 0, MAGIC("Rar!\x1a\x07"), NULL},
    {"an archive of ar (.a, .deb)", UNPACK, KIND_NOT_TEXT, 0, MAGIC("!<arch>\n"), NULL},
    {"a cpio archive", UNPACK, KIND_NOT_TEXT, 0, MAGIC("07070"), is_binary},
    {"an office document (docx, xlsx, pptx, odt, epub)", EXTRACT, KIND_PACKED, 0, MAGIC("PK\3\4"), is_office},
    {"a checkpoint of PyTorch", MODEL, KIND_PACKED, 0, MAGIC("PK\3\4"), is_torch},
    {"a NumPy archive (.npz)", TEXT_OF, KIND_PACKED, 0, MAGIC("PK\3\4"), is_npz},
    {"a zip archive", UNPACK, KIND_PACKED, 0, MAGIC("PK\3\4"), NULL},
    {"an empty zip archive", UNPACK, KIND_PACKED, 0, MAGIC("PK\5\6"), NULL},
    {"a tar archive", UNPACK, KIND_NOT_TEXT, 257, MAGIC("ustar"), is_binary},
    {"a tar archive", UNPACK, KIND_NOT_TEXT, 0, NULL, 0, is_old_tar},
    {"a Parquet file", COLUMN, KIND_PARQUET, 0, MAGIC("PAR1"), ends_as_parquet},
    {"a Parquet file that is compressed as a whole", "decompress it", KIND_NOT_TEXT, 0, MAGIC("PAR1"), is_binary_content},
    {"a Parquet file without its end", "fetch it again", KIND_NOT_TEXT, 0, MAGIC("PAR1"), is_binary},
    {"an Arrow or Feather file", LINES, KIND_NOT_TEXT, 0, MAGIC("ARROW1\0\0"), NULL},
    {"an Arrow stream", LINES, KIND_NOT_TEXT, 0, MAGIC("\xff\xff\xff\xff"), is_arrow_stream},
    {"a Feather file", LINES, KIND_NOT_TEXT, 0, MAGIC("FEA1"), ends_as_feather},
    {"an ORC file", LINES, KIND_NOT_TEXT, 0, MAGIC("ORC"), ends_as_orc},
    {"an Avro file", LINES, KIND_NOT_TEXT, 0, MAGIC("Obj\x01"), NULL},
    {"a NumPy array of floats (.npy)", "data.sources takes text, and ids of tokens", KIND_NOT_TEXT, 0, MAGIC("\x93NUMPY"), is_npy_of_floats},
    {"a NumPy array (.npy)", TOKENS, KIND_TOKENS, 0, MAGIC("\x93NUMPY"), NULL},
    {"an index of Megatron's token data", INDEXED, KIND_NOT_TEXT, 0, MAGIC("MMIDIDX\0\0"), NULL},
    {"an index of Megatron's token data", INDEXED, KIND_NOT_TEXT, 0, MAGIC("TNTIDX\0\0"), NULL},
    {"a token file of llm.c", TOKENS, KIND_TOKENS, 0, MAGIC("\x88\xd8\x34\x01"), NULL},
    {"a token file of llm.c", TOKENS, KIND_TOKENS, 0, MAGIC("\xa1\xd9\x34\x01"), NULL},
    {"an evaluation file of llm.c", TEXT_OF, KIND_NOT_TEXT, 0, MAGIC("\x8a\xd8\x34\x01"), NULL},
    {"a token cache of weft", "name the text that it was made of", KIND_NOT_TEXT, 0, MAGIC("weft.tok"), is_binary},
    {"a safetensors file", MODEL, KIND_NOT_TEXT, 0, NULL, 0, is_safetensors},
    {"a GGUF file", MODEL, KIND_NOT_TEXT, 0, MAGIC("GGUF"), is_binary},
    {"a pickle", LINES, KIND_NOT_TEXT, 0, MAGIC("\x80\x02"), NULL},
    {"a pickle", LINES, KIND_NOT_TEXT, 0, MAGIC("\x80\x03"), NULL},
    {"a pickle", LINES, KIND_NOT_TEXT, 0, MAGIC("\x80\x04"), NULL},
    {"a pickle", LINES, KIND_NOT_TEXT, 0, MAGIC("\x80\x05"), NULL},
    {"a pickle", LINES, KIND_NOT_TEXT, 0, NULL, 0, is_pickle},
    {"CBOR data", LINES, KIND_NOT_TEXT, 0, MAGIC("\xd9\xd9\xf7"), NULL},
    {"an SQLite database", LINES, KIND_NOT_TEXT, 0, MAGIC("SQLite format 3\0"), NULL},
    {"a DuckDB database", LINES, KIND_NOT_TEXT, 8, MAGIC("DUCK"), is_binary},
    {"an LMDB database", LINES, KIND_NOT_TEXT, 16, MAGIC("\xde\xc0\xef\xbe"), NULL},
    {"a table of LevelDB", LINES, KIND_NOT_TEXT, 0, NULL, 0, ends_as_leveldb},
    {"a table of RocksDB", LINES, KIND_NOT_TEXT, 0, NULL, 0, ends_as_rocksdb},
    {"an HDF5 file", LINES, KIND_NOT_TEXT, 0, MAGIC("\x89HDF\r\n\x1a\n"), NULL},
    {"a NetCDF file", LINES, KIND_NOT_TEXT, 0, MAGIC("CDF"), is_binary},
    {"a MATLAB file", LINES, KIND_NOT_TEXT, 0, MAGIC("MATLAB 5.0 MAT-file"), is_binary},
    {"data of R", LINES, KIND_NOT_TEXT, 0, MAGIC("RDX"), is_binary},
    {"a Lance file", LINES, KIND_NOT_TEXT, 0, NULL, 0, ends_as_lance},
    {"an MDS shard of MosaicML streaming", LINES, KIND_NOT_TEXT, 0, NULL, 0, is_mds},
    {"a TFRecord file", LINES, KIND_NOT_TEXT, 0, NULL, 0, is_tfrecord},
    {"WARC records of a crawl", EXTRACT, KIND_NOT_TEXT, 0, MAGIC("WARC/1."), NULL},
    {"WARC records of a crawl", EXTRACT, KIND_NOT_TEXT, 0, MAGIC("WARC/0."), NULL},
    {"a pointer of Git LFS, in place of the file", "fetch the file: git lfs pull", KIND_STAND_IN, 0, MAGIC("version https://git-lfs.github.com/spec/v"), NULL},
    {"an error page of an object store, in place of the file", "fetch it again", KIND_STAND_IN, 0, MAGIC("<?xml "), is_error_page},
    {"a PDF", EXTRACT, KIND_NOT_TEXT, 0, MAGIC("%PDF-"), NULL},
    {"a PostScript file", EXTRACT, KIND_NOT_TEXT, 0, MAGIC("%!PS-"), NULL},
    {"a DjVu document", EXTRACT, KIND_NOT_TEXT, 0, MAGIC("AT&TFORM"), is_binary},
    {"an e-book of Mobipocket", EXTRACT, KIND_NOT_TEXT, 60, MAGIC("BOOKMOBI"), is_binary},
    {"an RTF document", EXTRACT, KIND_NOT_TEXT, 0, MAGIC("{\\rtf"), NULL},
    {"an office document of old (doc, xls, ppt)", EXTRACT, KIND_NOT_TEXT, 0, MAGIC("\xd0\xcf\x11\xe0"), NULL},
    {"a PNG image", EXTRACT, KIND_NOT_TEXT, 0, MAGIC("\x89PNG"), NULL},
    {"a JPEG image", EXTRACT, KIND_NOT_TEXT, 0, MAGIC("\xff\xd8\xff"), NULL},
    {"a GIF image", EXTRACT, KIND_NOT_TEXT, 0, MAGIC("GIF8"), is_binary},
    {"a WebP, WAV or AVI file", EXTRACT, KIND_NOT_TEXT, 0, MAGIC("RIFF"), is_riff},
    {"a TIFF image", EXTRACT, KIND_NOT_TEXT, 0, MAGIC("II*\0"), NULL},
    {"a TIFF image", EXTRACT, KIND_NOT_TEXT, 0, MAGIC("MM\0*"), NULL},
    {"a BMP image", EXTRACT, KIND_NOT_TEXT, 0, MAGIC("BM"), is_bmp},
    {"an AVIF or HEIF image", EXTRACT, KIND_NOT_TEXT, 4, MAGIC("ftyp"), is_heif},
    {"an MP4 file", EXTRACT, KIND_NOT_TEXT, 4, MAGIC("ftyp"), is_binary},
    {"a JPEG 2000 image", EXTRACT, KIND_NOT_TEXT, 0, MAGIC("\0\0\0\x0cjP  \r\n"), NULL},
    {"an Ogg file", EXTRACT, KIND_NOT_TEXT, 0, MAGIC("OggS\0"), NULL},
    {"a FLAC file", EXTRACT, KIND_NOT_TEXT, 0, MAGIC("fLaC"), is_binary},
    {"a Matroska or WebM file", EXTRACT, KIND_NOT_TEXT, 0, MAGIC("\x1a\x45\xdf\xa3"), NULL},
    {"an MP3 file", EXTRACT, KIND_NOT_TEXT, 0, MAGIC("ID3"), is_binary},
    {"a program (ELF)", MODEL, KIND_NOT_TEXT, 0, MAGIC("\x7f""ELF"), NULL},
    {"a program of Windows", MODEL, KIND_NOT_TEXT, 0, MAGIC("MZ"), is_binary},
    {"a program of macOS", MODEL, KIND_NOT_TEXT, 0, MAGIC("\xcf\xfa\xed\xfe"), NULL},
    {"a program or a class of Java", MODEL, KIND_NOT_TEXT, 0, MAGIC("\xca\xfe\xba\xbe"), NULL},
    {"a WebAssembly module", MODEL, KIND_NOT_TEXT, 0, MAGIC("\0asm"), NULL},
    {"compiled Python", MODEL, KIND_NOT_TEXT, 2, MAGIC("\r\n"), is_python},
    {"a SentencePiece model", "data.sources takes text; data.tokenizer takes tokenizers", KIND_NOT_TEXT, 4, MAGIC("<unk>"), is_binary},
    {"UTF-32 text", RECODE("UTF-32"), KIND_NOT_TEXT, 0, MAGIC("\xff\xfe\0\0"), NULL},
    {"UTF-32 text", RECODE("UTF-32"), KIND_NOT_TEXT, 0, MAGIC("\0\0\xfe\xff"), NULL},
    {"UTF-16 text", "give the source encoding: utf-16", KIND_UTF16, 0, MAGIC("\xff\xfe"), NULL},
    {"UTF-16 text", "give the source encoding: utf-16", KIND_UTF16, 0, MAGIC("\xfe\xff"), NULL},
    {"ISO-2022-JP text", RECODE("ISO-2022-JP"), KIND_NOT_TEXT, 0, NULL, 0, is_iso_2022_jp},
};
/* clang-format on */

static bool fits(const FileFormat *f, const FileEnds *e) {
    if (f->magic && !holds(e, f->at, f->magic, f->length)) return false;
    return !f->also || f->also(e);
}

const FileFormat *file_format_of(const FileEnds *ends) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (fits(&formats[i], ends)) return &formats[i];
    return NULL;
}

/* A magic number of at least four bytes, or a structure that is verified; of gzip the method and unused bits,
 * too. */
bool file_format_is_certain(const FileFormat *format, const FileEnds *ends) {
    if (format->kind == KIND_GZIP) return ends->head_length > 3 && ends->head[2] == 8 && ends->head[3] < 0x20;
    return !format->magic || format->length >= 4;
}

ErrorCode file_format_refuse(const FileFormat *format, const char *path, Error *err) {
    char shown[400];
    error_escape(shown, sizeof shown, path, strlen(path));
    return error_set(err, ERR_DATA,
                     "%s: this is %s; weft reads text and JSON lines, plain or compressed with gzip or zstd, "
                     "Parquet and token files: %s%s",
                     shown, format->name, format->advice,
                     format->kind != KIND_PACKED ? "; " FILE_ANY_BYTES : "");
}
