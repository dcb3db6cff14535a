#include "forecast/rates.h"

#include <build_kind.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"

#define MEASURE_SECONDS 0.8 /* of products; copies take some hundredths more */
enum { LARGEST_FILE = 4096, OLDEST_SECONDS = 30 * 86400 };

MachineRates rates_with_peak(Device *d, double peak) {
    return (MachineRates){.peak = peak, .copy = device_copy_rate(d, 0.05, RATES_COPY_BYTES)};
}

void rates_free(MachineRates *r) {
    free(r->before);
    r->before = NULL;
}

static char *path_of(const Device *d, Dtype compute, const char *cache_dir) {
    Text key = {0};
    char name[48];
    text_printf(&key, "%s %s %s %s, %s, %s, %d threads, %s", WEFT_VERSION, WEFT_COMPILER, WEFT_BUILD_TYPE,
                WEFT_BUILD_EXTRAS, d->processor, d->name, d->threads, dtype_name(compute));
    snprintf(name, sizeof name, "machine-%016llx.json", (unsigned long long)hash64(key.data, key.length));
    text_free(&key);
    return path_join(cache_dir, name);
}

static ErrorCode read_members(const cJSON *root, const char *path, MachineRates *r, int64_t *at, Error *err) {
    TRY(json_get_double(root, path, "peak", true, &r->peak, err));
    TRY(json_get_double(root, path, "copy", true, &r->copy, err));
    return json_get_int(root, path, "measured", true, 0, INT64_C(1) << 52, at, err);
}

/* False where there is no such file, or one that cannot be used: it is then written again. */
static bool read_rates(const char *path, MachineRates *r) {
    Error ignored;
    cJSON *root = NULL;
    int64_t at = 0, now = (int64_t)time(NULL);
    if (json_read(path, LARGEST_FILE, &root, &ignored) != OK) return false;
    ErrorCode code = read_members(root, path, r, &at, &ignored);
    cJSON_Delete(root);
    return code == OK && r->peak > 0 && r->copy > 0 && at <= now && now - at <= OLDEST_SECONDS;
}

static void write_rates(const char *cache_dir, const char *path, const MachineRates *r) {
    Text text = {0};
    Error ignored;
    JsonWriter w;
    json_start(&w, &text, 0);
    json_begin_object(&w);
    json_key(&w, "peak"), json_double(&w, r->peak);
    json_key(&w, "copy"), json_double(&w, r->copy);
    json_key(&w, "measured"), json_int(&w, (int64_t)time(NULL));
    json_end_object(&w);
    text_puts(&text, "\n");
    if (file_make_dirs(cache_dir, &ignored) == OK) file_write_atomic(path, text.data, text.length, &ignored);
    text_free(&text);
}

MachineRates rates_cached(Device *d, Dtype compute, const char *cache_dir) {
    char *path = path_of(d, compute, cache_dir);
    MachineRates r = {.peak = 0};
    if (read_rates(path, &r)) {
        r.before = path;
        return r;
    }
    r = rates_with_peak(d, device_matmul_peak(d, compute, MEASURE_SECONDS, INFINITY));
    if (isfinite(r.peak) && r.peak > 0 && isfinite(r.copy) && r.copy > 0) write_rates(cache_dir, path, &r);
    free(path);
    return r;
}
