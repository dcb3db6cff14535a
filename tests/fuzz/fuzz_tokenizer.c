/* Fuzzes a tokenizer.json. An accepted one loses nothing of a difficult text, gives only ids of its
 * vocabulary, never a special one for text, and cuts only where it reports that it may. */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "check_tokenizer.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return check_tokenizer(data, size, true); }

#ifdef WEFT_FUZZ

/* Most of a file is its vocabulary, where nearly every change makes a byte lose its token. So this mutates
 * what precedes it, or what follows its 256 bytes. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
    static const char start[] = "\"vocab\":{", last_byte[] = ":255";
    uint8_t *vocabulary = memmem(data, size, start, sizeof start - 1);
    uint8_t *bytes_end =
        vocabulary ? memmem(vocabulary, size - (size_t)(vocabulary - data), last_byte, sizeof last_byte - 1)
                   : NULL;
    if (!bytes_end || seed % 16 == 0) return LLVMFuzzerMutate(data, size, max_size);
    size_t head = (size_t)(vocabulary - data), behind = (size_t)(bytes_end - data) + sizeof last_byte - 1;
    if (seed % 4) return behind + LLVMFuzzerMutate(data + behind, size - behind, max_size - behind);
    uint8_t *rest = mem_alloc(size - head);
    memcpy(rest, vocabulary, size - head);
    size_t changed = LLVMFuzzerMutate(data, head, max_size - (size - head));
    memcpy(data + changed, rest, size - head);
    free(rest);
    return changed + size - head;
}

#endif
