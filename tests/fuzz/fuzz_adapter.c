/* Fuzzes adapter_config.json. An accepted file has a finite rank and scale. */
#include <math.h>
#include <stdlib.h>

#include "checkpoint/adapter.h"
#include "fuzz.h"

enum { PER_BYTE = 128, FIXED = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error err = {0};
    AdapterConfig c = {.rank = 0};
    const char *path = fuzz_file(ADAPTER_CONFIG, data, size);
    fuzz_memory_start();
    bool good = fuzz_ok(adapter_config_read(&c, path, &err), &err);
    fuzz_memory_check(size, PER_BYTE, FIXED);
    if (good) REQUIRE(c.rank > 0 && isfinite(c.alpha) && isfinite(adapter_scale(&c)));
    REQUIRE(!good || !c.base || *c.base);
    free(c.base);
    return 0;
}
