#include "comm/sockets/address.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "comm/sockets/sockets.h"

enum { BACKLOG = 4096, NAME_MAX_BYTES = 100 };

bool address_is_local(const char *place) { return place[0] == '@'; }

/* "HOST:PORT"; HOST may have colons itself, in brackets or not. */
static ErrorCode split(const char *place, char host[256], int *port, Error *err) {
    const char *first = place, *colon = strrchr(first, ':');
    size_t length = colon ? (size_t)(colon - first) : 0;
    char *end = NULL;
    long number = colon ? strtol(colon + 1, &end, 10) : 0;
    if (length > 2 && first[0] == '[' && first[length - 1] == ']') first++, length -= 2;
    if (!length || length > 255 || number <= 0 || number > 65535 || *end)
        return error_set(err, ERR_USAGE, SOCKETS_MEET "=%s: neither HOST:PORT nor @NAME", place);
    *port = (int)number;
    snprintf(host, 256, "%.*s", (int)length, first);
    return OK;
}

ErrorCode address_check(const char *place, Error *err) {
    char host[256];
    int port;
    if (!address_is_local(place)) return split(place, host, &port, err);
    if (strlen(place) <= NAME_MAX_BYTES) return OK;
    return error_set(err, ERR_USAGE, SOCKETS_MEET "=%s: a name has at most %d bytes", place, NAME_MAX_BYTES);
}

/* Abstract names: they are gone with their last descriptor. */
static socklen_t named(const char *name, struct sockaddr_un *out) {
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "%s", name);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static socklen_t named_after(uint64_t job, int rank, struct sockaddr_un *out) {
    char name[64];
    snprintf(name, sizeof name, "weft-%016llx-%d", (unsigned long long)job, rank);
    return named(name, out);
}

/* ---- listening ---- */

/* errno says why not. */
static bool listens(int fd, const void *name, socklen_t length) {
    return fd >= 0 && bind(fd, name, length) == 0 && listen(fd, BACKLOG) == 0;
}

/* port 0: any. IPv6 sockets take IPv4 too; a machine without IPv6 has IPv4 alone. */
static bool listen_at_port(int port, int *out) {
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int yes = 1, no = 0;
    *out = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_six = *out >= 0;
    if (!is_six) *out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*out < 0) return false;
    setsockopt(*out, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (is_six) setsockopt(*out, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    return is_six ? listens(*out, &six, sizeof six) : listens(*out, &four, sizeof four);
}

static bool listen_at_name(const struct sockaddr_un *name, socklen_t length, int *out) {
    *out = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return listens(*out, name, length);
}

static int port_of(int listener) {
    struct sockaddr_storage name = {0};
    socklen_t length = sizeof name;
    getsockname(listener, (struct sockaddr *)&name, &length);
    return ntohs(name.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&name)->sin6_port
                                            : ((struct sockaddr_in *)&name)->sin_port);
}

ErrorCode address_listen(const char *place, int *out, Error *err) {
    char host[256];
    int port;
    struct sockaddr_un name;
    bool done;
    if (address_is_local(place)) {
        done = listen_at_name(&name, named(place + 1, &name), out);
    } else {
        TRY(split(place, host, &port, err));
        done = listen_at_port(port, out);
    }
    if (done) return OK;
    if (errno == EADDRINUSE)
        return error_set(err, ERR_UNAVAILABLE,
                         "something else listens at %s (" SOCKETS_MEET
                         ") already, perhaps another job: choose another %s",
                         place, address_is_local(place) ? "name" : "port");
    return error_errno(err, ERR_UNAVAILABLE, "cannot listen at %s", place);
}

ErrorCode address_listen_inside(uint64_t job, int rank, int *out, Error *err) {
    struct sockaddr_un name;
    if (listen_at_name(&name, named_after(job, rank, &name), out)) return OK;
    if (errno == EADDRINUSE)
        return error_set(
            err, ERR_PEER,
            "there is such a rank on this machine already: two jobs have one meeting place (" SOCKETS_MEET
            "), or two ranks have one number");
    return error_errno(err, ERR_UNAVAILABLE, "cannot listen at a Unix socket");
}

ErrorCode address_listen_outside(int *out, int *port, Error *err) {
    if (!listen_at_port(0, out)) return error_errno(err, ERR_UNAVAILABLE, "cannot listen at a TCP port");
    *port = port_of(*out);
    return OK;
}

/* ---- calling ---- */

void address_limit(int fd, int seconds) {
    struct timeval limit = {.tv_sec = seconds};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

static int call(int family, const void *address, socklen_t length) {
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    address_limit(fd, CALL_S);
    if (connect(fd, address, length) == 0) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

int address_call_inside(uint64_t job, int rank) {
    struct sockaddr_un name;
    socklen_t length = named_after(job, rank, &name);
    return call(AF_UNIX, &name, length);
}

int address_call_outside(const struct sockaddr_storage *address) {
    return call(address->ss_family, address,
                address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
}

int address_call(const char *place, struct sockaddr_storage *used) {
    char host[256], port_text[16];
    int port, fd = -1;
    struct addrinfo *all = NULL, hints = {.ai_socktype = SOCK_STREAM};
    struct sockaddr_un name;
    if (address_is_local(place)) {
        socklen_t length = named(place + 1, &name);
        return call(AF_UNIX, &name, length);
    }
    errno = EINVAL;
    if (split(place, host, &port, NULL) != OK) return -1;
    snprintf(port_text, sizeof port_text, "%d", port);
    if (getaddrinfo(host, port_text, &hints, &all) != 0) return -1;
    for (struct addrinfo *a = all; a && fd < 0; a = a->ai_next) {
        *used = (struct sockaddr_storage){0};
        memcpy(used, a->ai_addr, a->ai_addrlen);
        fd = address_call_outside(used);
    }
    int why = errno;
    freeaddrinfo(all);
    errno = why;
    return fd;
}
