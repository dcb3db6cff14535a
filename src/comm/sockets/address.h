/* Listening and calling: at "HOST:PORT" over TCP, at "@NAME" over a Unix socket of this machine, and at
 * ranks themselves. Descriptors that are called or listened at are closed by exec. */
#ifndef WEFT_COMM_SOCKETS_ADDRESS_H
#define WEFT_COMM_SOCKETS_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/error.h"

enum { CALL_S = 2 /* seconds for which a call may stay unanswered */ };

bool address_is_local(const char *place); /* "@NAME" */
ErrorCode address_check(const char *place, Error *err);

ErrorCode address_listen(const char *place, int *out, Error *err);
/* At a rank of a job: inside this machine, and from others, at any port. */
ErrorCode address_listen_inside(uint64_t job, int rank, int *out, Error *err);
ErrorCode address_listen_outside(int *out, int *port, Error *err);

/* A connection, whose reads and writes last CALL_S at most, or -1 with errno. *used: the address, of those
 * that the host has. */
int address_call(const char *place, struct sockaddr_storage *used);
int address_call_inside(uint64_t job, int rank);
int address_call_outside(const struct sockaddr_storage *address);
/* Seconds for which reads and writes of a connection may last; 0: no limit. */
void address_limit(int fd, int seconds);

#endif
