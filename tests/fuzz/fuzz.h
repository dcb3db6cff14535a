/* What the fuzz targets share.
 *
 * A target is LLVMFuzzerTestOneInput: it gives one input to a parser and requires properties of the answer.
 * libFuzzer (WEFT_FUZZ) generates the inputs; elsewhere replay.c reads them from the files of a corpus. A
 * violation ends the process with a message, which libFuzzer and CTest detect. */
#ifndef WEFT_TESTS_FUZZ_H
#define WEFT_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
#ifdef WEFT_FUZZ
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);
#endif

#define REQUIRE(condition) ((condition) ? (void)0 : fuzz_fail(__FILE__, __LINE__, #condition, NULL))
_Noreturn void fuzz_fail(const char *file, int line, const char *what, const char *detail);

/* Requires of a failure that err has the returned code, not ERR_INTERNAL, and a printable text. Returns
 * whether it was a success: `if (fuzz_ok(parse(...), &err))`. err must have been cleared. */
#define fuzz_ok(code, err) fuzz_checked(__FILE__, __LINE__, code, err)
bool fuzz_checked(const char *file, int line, ErrorCode code, const Error *err);

/* The first such message since the last call, or "": why the input was refused. Valid until the next
 * failure. */
const char *fuzz_take_message(void);

/* A directory of this process, in memory if the system has such a file system; removed at the end. */
const char *fuzz_directory(void);
/* A file in it; the path stays valid until the process ends if `name` is a literal. Returns the path. */
const char *fuzz_file(const char *name, const void *data, size_t size);

/* Memory that was live at once since the start, where a sanitizer counts it (else 0): at most per_byte for
 * each byte of input, and `fixed`. */
/* What a reader of text may hold for a file of any size: its buffers, and zstd's window of up to 128 MiB, as
 * the zstd program accepts, which short files compressed from a pipe with --long require too. */
enum { FUZZ_TEXT_READER = 160 << 20 };
void fuzz_memory_start(void);
void fuzz_memory_check(size_t size, size_t per_byte, size_t fixed);

/* Text that is difficult for tokenizers: invalid UTF-8, NULs, combining marks, long runs, special-token
 * strings. */
extern const char fuzz_nasty_text[];
extern const size_t fuzz_nasty_length;

#endif
