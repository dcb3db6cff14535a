/* Fuzzes a tiktoken rank file, like fuzz_tokenizer.c; written as a tokenizer.json it gives the same ids. */
#include "check_tokenizer.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return check_tokenizer(data, size, false); }
