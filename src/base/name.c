#include "base/name.h"

#include <string.h>

bool name_is_plain(const char *name, size_t most) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t length = strlen(name);
    return length < most && strspn(name, plain) == length;
}
