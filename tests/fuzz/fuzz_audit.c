/* Fuzzes the audit logs of two ranks: the input unchanged, and its lines with corrected checksums, to reach
 * the code after them. Whatever is read can be checked; what is proved holds. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/text.h"
#include "fuzz.h"
#include "observe/audit.h"

/* A record takes about 100 bytes, from a line of at least 70; tables double. A sample of 19 bytes makes an
 * AuditUse of 48. */
enum { PER_BYTE = 24, FIXED = 1 << 17 };

static void add_sums(Text *out, const char *data, size_t size) {
    for (const char *at = data, *end = data + size; at < end;) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((newline ? newline : end) - at);
        text_add(out, at, length);
        text_printf(out, " *%08" PRIx32 "\n", (uint32_t)hash64(at, length));
        at = newline ? newline + 1 : end;
    }
}

static void check_attempts(const AuditRun *run) {
    Error err = {0};
    int64_t next;
    REQUIRE(audit_next_attempt(fuzz_directory(), &next, &err) == OK);
    REQUIRE(run->count > 0 || next == 0);
    for (size_t i = 1; i < run->count; i++)
        REQUIRE(run->records[i - 1].who.attempt <= run->records[i].who.attempt);
}

static void check_proof(const AuditFigures *f) {
    for (size_t i = 0; i < f->use_count; i++) REQUIRE(f->uses[i].sample.k == i && f->uses[i].step >= 1);
    REQUIRE(audit_compare("a", f, "b", f, NULL) == OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error err = {0};
    AuditRun run;
    AuditFigures figures;
    Text summed = {0}, out = {0};
    add_sums(&summed, (const char *)data, size);
    fuzz_file("audit-00000.log", data, size);
    fuzz_file("audit-00001.log", summed.data, summed.length);
    size_t all = size + summed.length;
    text_free(&summed);
    fuzz_memory_start();
    REQUIRE(audit_read(&run, fuzz_directory(), &err) == OK);
    check_attempts(&run);
    ErrorCode code = audit_check(&run, size % 3, &figures, &out, &err);
    fuzz_memory_check(all, PER_BYTE, FIXED);
    if (fuzz_ok(code, &err)) check_proof(&figures);
    REQUIRE(figures.violations > 0 || code == OK);
    audit_figures_free(&figures);
    audit_free(&run);
    text_free(&out);
    return 0;
}
