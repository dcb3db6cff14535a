/* What fuzz_tokenizer and fuzz_tiktoken have in common. */
#ifndef WEFT_TESTS_CHECK_TOKENIZER_H
#define WEFT_TESTS_CHECK_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parses the file and requires what the targets describe. Returns 0. */
int check_tokenizer(const uint8_t *data, size_t size, bool json);

#endif
