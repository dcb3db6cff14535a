/* A tokenizer.json. What is accepted loses nothing of a nasty text, gives ids of its vocabulary only, never a special one for
 * text, and cuts where it says it may. */
#include "check_tokenizer.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return check_tokenizer(data, size, true); }
