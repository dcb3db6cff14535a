/* Which connections of a server to close: see clients.h. */
#include "cli/clients.h"

#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* For IPv6 the first 64 bits: whoever has one address of such a network has all 2^64. */
static uint64_t network_of(const struct sockaddr *from) {
    uint64_t network = 0;
    if (from->sa_family == AF_INET) return ((const struct sockaddr_in *)(const void *)from)->sin_addr.s_addr;
    memcpy(&network, &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr, sizeof network);
    return network;
}

static bool goes_before(const Client *a, const Client *b) {
    return a->trusted != b->trusted ? b->trusted : a->since < b->since;
}

static void drop(Client *c) {
    shutdown(c->fd, SHUT_RDWR);
    c->leaving = true;
}

/* Closes one connection if there are `most` besides the newcomer, which always gets a slot. With
 * `same_network` only those of the newcomer's network count. Returns whether one was closed. */
static bool evict(const Clients *all, const Client *newcomer, bool same_network, int most) {
    Client *goes = NULL;
    int count = 0;
    for (Client *c = all->first; c; c = c->next) {
        if (c == newcomer || c->leaving || (same_network && c->network != newcomer->network)) continue;
        count++;
        if (!goes || goes_before(c, goes)) goes = c;
    }
    if (count < most) return false;
    drop(goes);
    return true;
}

Client *clients_join(Clients *all, int fd, const struct sockaddr *from, double now) {
    Client *c = mem_alloc(sizeof *c);
    *c = (Client){.next = all->first, .fd = fd, .network = network_of(from), .since = now};
    all->first = c;
    if (!evict(all, c, true, CLIENTS_PER_ADDRESS)) evict(all, c, false, CLIENTS);
    return c;
}

void clients_leave(Clients *all, Client *client) {
    Client **at = &all->first;
    while (*at != client) at = &(*at)->next;
    *at = client->next;
    free(client);
}

void client_answer(Client *client, bool trusted, double now) {
    client->answering = true;
    client->trusted = trusted;
    client->since = now;
}

void clients_close_overdue(Clients *all, double now) {
    for (Client *c = all->first; c; c = c->next)
        if (!c->leaving && now - c->since >= (c->answering ? ANSWER_SECONDS : HEAD_SECONDS)) drop(c);
}
