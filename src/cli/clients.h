/* The connections of a server, and which of them to close.
 *
 *  C1. A connection serves one request. From its start it has HEAD_SECONDS to send the whole head, however
 *      many bytes trickle in, and then ANSWER_SECONDS to receive the response.
 *  C2. A new connection never waits. When there are more than CLIENTS connections, or more than
 *      CLIENTS_PER_ADDRESS from one address, an earlier one is closed: the oldest that has not proved that it
 *      may see runs, or if there is none, the oldest of all. A head that arrives at once is answered before
 *      its sender is the oldest.
 *
 * Closing shuts the socket down: its owner notices, closes it, and calls clients_leave. */
#ifndef WEFT_CLI_CLIENTS_H
#define WEFT_CLI_CLIENTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum { CLIENTS = 64, CLIENTS_PER_ADDRESS = 32, HEAD_SECONDS = 10, ANSWER_SECONDS = 60 };

typedef struct Client {
    struct Client *next;
    int fd;           /* not owned */
    uint64_t network; /* an IPv4 address, or the first half of an IPv6 address */
    double since;     /* when it connected, or when its response began */
    bool answering;
    bool trusted; /* its request may see runs */
    bool leaving; /* shut down and no longer counted */
} Client;

typedef struct Clients {
    Client *first;
} Clients;

/* Adds a new connection, which may close an earlier one (C2). clients_leave frees the client. */
Client *clients_join(Clients *all, int fd, const struct sockaddr *from, double now);
void clients_leave(Clients *all, Client *client);

/* Call when the whole head has arrived. */
void client_answer(Client *client, bool trusted, double now);

/* Closes connections that are out of time (C1). Call it about once a second. */
void clients_close_overdue(Clients *all, double now);

#endif
