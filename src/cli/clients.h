/* The connections of a server, and which of them must go.
 *
 *  C1. A connection serves one request. From its start it has HEAD_SECONDS to send the whole head, however
 *      many bytes trickle in, and then ANSWER_SECONDS to take the answer.
 *  C2. A newcomer never waits for a place. When there are more than CLIENTS connections, or more than
 *      CLIENTS_PER_ADDRESS from one address, an earlier one is closed: the oldest that has not shown that it
 *      may see runs, and only if there is none such the oldest that has. A head that comes at once is
 *      answered before its sender is the oldest.
 *
 * To close one is to shut its socket down: its owner notices, closes it, and calls clients_leave. */
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
    double since;     /* when it came, or when its answer began */
    bool answering;
    bool trusted; /* its request may see runs */
    bool leaving; /* shut down, and not counted any more */
} Client;

typedef struct Clients {
    Client *first;
} Clients;

/* Takes a new connection in, which may close an earlier one (C2). The client is freed by clients_leave. */
Client *clients_join(Clients *all, int fd, const struct sockaddr *from, double now);
void clients_leave(Clients *all, Client *client);

/* The whole head has come. */
void client_answer(Client *client, bool trusted, double now);

/* Closes those whose time is over (C1). To be called about once a second. */
void clients_close_overdue(Clients *all, double now);

#endif
