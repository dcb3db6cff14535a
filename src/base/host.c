#include "base/host.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool host_name(char *out, size_t bytes) {
    char name[HOST_NAME_BYTES] = "";
    memset(out, 0, bytes);
    if (gethostname(name, sizeof name) != 0) return false;
    snprintf(out, bytes, "%.*s", (int)sizeof name - 1, name);
    return out[0] != 0;
}
