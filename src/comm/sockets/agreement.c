/* One answer for all ranks that live, whoever dies meanwhile.
 *
 *     every rank:  VOTE (well? who is dead?) ---> the leader: the lowest rank that lives
 *     the leader:  has all votes: PROPOSAL -----> everybody, who adopts it and says ACCEPT
 *                  has all of these: DECISION --> everybody, who returns
 *
 * If the leader dies, the next one takes over. It proposes what it has adopted. If it has adopted nothing,
 * no leader before it had the acceptance of all that live, so nobody has returned, and any proposal will
 * do: its own, which is not well. Ranks that have returned before the leader died answer the next one's ASK
 * with the decision, whenever they look at their messages.
 *
 * (Consensus with a perfect failure detector: Chandra and Toueg, "Unreliable failure detectors for reliable
 * distributed systems", 1996; as atomic commitment: Skeen, 1981.) The detector is perfect here because all
 * ranks expel a rank that one of them cannot reach. By that alone, two parts of a job that cannot reach each
 * other would both go on. So only the larger part does; of two equal parts, the one with the lowest rank.
 * Lost ranks whose kernel reported their end do not count, nor do those of a machine on which other ranks
 * live. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "comm/launch.h"
#include "comm/sockets/internal.h"

enum { LOOK_MS = 100 };

void agreement_open(Sockets *s) {
    Agreement *a = &s->agreement;
    a->votes = mem_alloc_array((size_t)s->transport.size, sizeof(Opinion *));
    a->accepts = mem_alloc_array((size_t)s->transport.size, sizeof(Opinion *));
}

void agreement_close(Sockets *s) {
    Agreement *a = &s->agreement;
    for (int p = 0; p < s->transport.size; p++) {
        free(a->votes[p]);
        free(a->accepts[p]);
    }
    free(a->votes);
    free(a->accepts);
    free(a->proposal);
    free(a->decision);
    free(a->earlier);
}

/* ---- opinions ---- */

static int words_of(const Sockets *s) { return (s->transport.size + 63) / 64; }
static size_t bytes_of(int words) { return sizeof(Opinion) + 2 * (size_t)words * sizeof(uint64_t); }
static uint64_t *silent_of(Opinion *o) { return o->sets + o->words; }
static bool lives(const Sockets *s, int p) { return s->peers[p].state == PEER_LIVES; }

static Opinion *copy_of(const Opinion *o) {
    Opinion *copy = mem_alloc(bytes_of(o->words));
    memcpy(copy, o, bytes_of(o->words));
    return copy;
}

static void replace(Opinion **at, Opinion *by) {
    free(*at);
    *at = by;
}

/* What this rank itself has seen in this round. */
static Opinion *own_opinion(const Sockets *s, OpinionKind kind, bool well) {
    Opinion *o = mem_alloc(bytes_of(words_of(s)));
    *o = (Opinion){.round = s->agreement.round,
                   .kind = kind,
                   .leader = s->transport.rank,
                   .well = well,
                   .words = words_of(s)};
    for (int p = 0; p < s->transport.size; p++) {
        if (lives(s, p)) continue;
        set_add(o->sets, p);
        if (s->peers[p].silent) set_add(silent_of(o), p);
        o->well = false;
    }
    return o;
}

static void say(Sockets *s, int p, const Opinion *o, OpinionKind kind) {
    Opinion *copy = copy_of(o);
    copy->kind = kind;
    wire_send(s, p, (Frame){.kind = FRAME_AGREE, .epoch = s->epoch}, copy, bytes_of(copy->words));
    free(copy);
}

static void say_to_all(Sockets *s, const Opinion *o, OpinionKind kind) {
    for (int p = 0; p < s->transport.size; p++) say(s, p, o, kind);
}

/* ---- hearing ---- */

/* One of the next round may come before this rank is there, and be of fewer ranks. */
static bool is_due(const Opinion *o, const Sockets *s) {
    return o && o->round == s->agreement.round && o->words == words_of(s);
}

static const Opinion *decision_of(const Agreement *a, uint64_t round) {
    if (a->decision && a->decision->round == round) return a->decision;
    return a->earlier && a->earlier->round == round ? a->earlier : NULL;
}

/* A proposal is for the round that this rank is in: the leader has its vote. */
static void adopt(Sockets *s, int p, Opinion *o) {
    Agreement *a = &s->agreement;
    if (!is_due(o, s) || (a->proposal && a->proposal->leader > o->leader)) {
        free(o);
        return;
    }
    replace(&a->proposal, o);
    say(s, p, o, OPINION_ACCEPT);
}

static void take_decision(Sockets *s, Opinion *o) {
    Agreement *a = &s->agreement;
    if (is_due(o, s) && !a->decision) {
        a->decision = o;
    } else {
        free(o);
    }
}

void agreement_hears(Sockets *s, int p, Opinion *o, size_t bytes) {
    Agreement *a = &s->agreement;
    if (o->words < 1 || bytes != bytes_of(o->words)) {
        free(o);
        return;
    }
    const Opinion *decided = decision_of(a, o->round);
    switch ((OpinionKind)o->kind) {
    case OPINION_VOTE:
    case OPINION_ASK:
        if (decided) say(s, p, decided, OPINION_DECISION);
        if (o->kind == OPINION_VOTE) {
            replace(&a->votes[p], o);
        } else {
            free(o);
        }
        return;
    case OPINION_ACCEPT: replace(&a->accepts[p], o); return;
    case OPINION_PROPOSAL: adopt(s, p, o); return;
    case OPINION_DECISION: take_decision(s, o); return;
    }
    free(o);
}

/* ---- the leader ---- */

/* Expels ranks that another rank cannot reach. Returns whether all living ranks have voted. */
static bool has_votes(Sockets *s) {
    Opinion *const *votes = s->agreement.votes;
    bool all = true;
    for (int p = 0; p < s->transport.size; p++) {
        if (p == s->transport.rank || !lives(s, p)) continue;
        if (!is_due(votes[p], s)) {
            all = false;
            continue;
        }
        for (int q = 0; q < s->transport.size; q++)
            if (set_has(votes[p]->sets, q) && lives(s, q) && q != s->transport.rank) wire_expel(s, q);
    }
    return all;
}

static bool host_lives(const Sockets *s, uint64_t host) {
    for (int p = 0; p < s->transport.size; p++)
        if (lives(s, p) && s->peers[p].place.host == host) return true;
    return false;
}

/* All have voted. A dead rank is not silent if some rank saw it end, or if another rank of its machine
 * lives. */
static Opinion *propose(Sockets *s, bool well) {
    Opinion *o = own_opinion(s, OPINION_PROPOSAL, well);
    for (int p = 0; p < s->transport.size; p++) {
        Opinion *vote = s->agreement.votes[p];
        if (p == s->transport.rank || !lives(s, p)) continue;
        o->well &= vote->well;
        for (int q = 0; q < s->transport.size; q++) {
            bool ended = set_has(vote->sets, q) && !set_has(silent_of(vote), q);
            if (ended || host_lives(s, s->peers[q].place.host))
                silent_of(o)[q / 64] &= ~(UINT64_C(1) << (q % 64));
        }
    }
    return o;
}

static bool is_accepted(const Sockets *s) {
    for (int p = 0; p < s->transport.size; p++) {
        const Opinion *o = s->agreement.accepts[p];
        if (p == s->transport.rank || !lives(s, p)) continue;
        if (!is_due(o, s) || o->leader != s->transport.rank) return false;
    }
    return true;
}

/* proposed: whether it has proposed something in this round. */
static void lead(Sockets *s, bool well, bool *proposed) {
    Agreement *a = &s->agreement;
    if (!*proposed && has_votes(s)) {
        if (!a->proposal) a->proposal = propose(s, well);
        a->proposal->leader = s->transport.rank;
        *proposed = true;
        say_to_all(s, a->proposal, OPINION_PROPOSAL);
    }
    if (!*proposed || !is_accepted(s)) return;
    a->decision = copy_of(a->proposal);
    say_to_all(s, a->decision, OPINION_DECISION);
}

/* ---- reaching one ---- */

_Noreturn void agreement_leave(const char *why) {
    char end[600];
    log_status("%s", "");
    fprintf(stderr, "weft: this rank ends: %s (%s)\n", why, error_end(end, sizeof end, ERR_PEER));
    launched_end(ERR_PEER);
}

static int count_of(const uint64_t *set, int words) {
    int count = 0;
    for (int w = 0; w < words; w++) count += __builtin_popcountll(set[w]);
    return count;
}

static void check_majority(Sockets *s, Opinion *o) {
    int living = s->transport.size - count_of(o->sets, o->words), silent = count_of(silent_of(o), o->words);
    char why[256];
    if (set_has(o->sets, s->transport.rank)) agreement_leave("the other ranks go on without it");
    if (living > silent || (living == silent && !set_has(o->sets, 0))) return;
    snprintf(why, sizeof why,
             "%d of %d ranks cannot be reached and may go on without %s. Only the larger part of a run may "
             "write its directory; start the run again if no part goes on",
             silent, s->transport.size, living == 1 ? "it" : "those that this one reaches");
    agreement_leave(why);
}

static int leader_of(const Sockets *s) {
    int p = 0;
    while (!lives(s, p)) p++;
    return p;
}

static int count_dead(const Sockets *s) {
    int dead = 0;
    for (int p = 0; p < s->transport.size; p++) dead += !lives(s, p);
    return dead;
}

/* Votes again when it knows of more dead: the leader may not. */
static void vote(Sockets *s, int leader, bool well) {
    Opinion *o = own_opinion(s, OPINION_VOTE, well);
    if (leader == s->transport.rank) {
        say_to_all(s, o, OPINION_ASK);
    } else {
        say(s, leader, o, OPINION_VOTE);
    }
    free(o);
}

static void decide(Sockets *s, bool well) {
    Agreement *a = &s->agreement;
    int leader = -1, dead = -1;
    bool proposed = false;
    while (!a->decision) {
        int now = leader_of(s), gone = count_dead(s);
        if (now != leader || gone != dead) vote(s, now, well);
        leader = now;
        dead = gone;
        if (leader == s->transport.rank) lead(s, well, &proposed);
        if (!a->decision) wire_move(s, LOOK_MS);
    }
}

bool agreement_reach(Sockets *s, bool well, uint64_t **dead) {
    Agreement *a = &s->agreement;
    replace(&a->earlier, a->decision);
    replace(&a->proposal, NULL);
    a->decision = NULL;
    a->round++;
    decide(s, well);
    check_majority(s, a->decision);
    for (int p = 0; p < s->transport.size; p++)
        if (set_has(a->decision->sets, p) && lives(s, p)) wire_expel(s, p);
    *dead = mem_alloc_array((size_t)a->decision->words, sizeof **dead);
    memcpy(*dead, a->decision->sets, (size_t)a->decision->words * sizeof **dead);
    return a->decision->well;
}
