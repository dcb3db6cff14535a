/* Facts for a bug report: what was built, how, and which libraries it runs with.
 *
 * The libraries themselves report their versions, not their headers: the running version may be newer than
 * the one at build time. */
#include "cli/version.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <build_kind.h>
#include <cjson/cJSON.h>
#include <lz4.h>
#include <openssl/crypto.h>
#include <pcre2.h>
#include <string.h>
#include <xxhash.h>
#include <yaml.h>
#include <zlib.h>
#include <zstd.h>

#include "comm/facts.h"
#include "device/facts.h"
#include "remote/http.h"

/* Every library that can change a number or the reading of a file. */
static void add_libraries(Text *out) {
    char pcre2[64] = "";
    pcre2_config(PCRE2_CONFIG_VERSION, pcre2);
    pcre2[strcspn(pcre2, " ")] = 0;
    unsigned xxhash = XXH_versionNumber();
    text_printf(
        out, "libraries: libyaml %s, cJSON %s, PCRE2 %s, zstd %s, zlib %s, lz4 %s, xxHash %u.%u.%u, %s%s%s\n",
        yaml_get_version_string(), cJSON_Version(), pcre2, ZSTD_versionString(), zlibVersion(),
        LZ4_versionString(), xxhash / 10000, xxhash / 100 % 100, xxhash % 100,
        OpenSSL_version(OPENSSL_VERSION), *http_library() ? ", " : "", http_library());
}

/* Lines "name: value", so that two reports can be compared line by line. Nothing about the machine: see weft
 * doctor. */
void version_write(Text *out) {
    char name[96];
    text_printf(out, "weft %s\n", WEFT_VERSION);
    text_printf(out, "compiler: %s, OpenMP %d\n", WEFT_COMPILER, _OPENMP);
    text_printf(out, "build: %s%s\n", WEFT_BUILD_TYPE, *WEFT_BUILD_EXTRAS ? ", " WEFT_BUILD_EXTRAS : "");
    text_printf(out, "matrix products: %s\n", device_library_name(name));
    text_printf(out, "ranks: %s\n", comm_library_name(name, sizeof name));
    add_libraries(out);
}
