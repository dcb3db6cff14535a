/* weft launch: a program as several ranks, joined by sockets. */
#include <string.h>

#include "cli/cli.h"
#include "comm/launch.h"
#include "comm/sockets/spawn.h"

static const Flag flags[] = {
    {"--ranks", 'n', "N", "ranks on this machine"},
    {"--first", 0, "R", "number of the first of them; 0 if not given"},
    {"--of", 0, "M", "ranks on all machines; N if not given"},
    {"--meet", 0, "HOST:PORT", "where all ranks meet: rank 0 listens there"},
    {"--tolerant", 0, NULL, "let the others go on when a rank dies (recovery.mode=in_place)"},
    {NULL, 0, NULL, NULL},
};

static ErrorCode run_launch(const Arguments *args, Error *err) {
    int64_t ranks = 0, first = 0, of;
    TRY(arguments_int(args, "--ranks", 1, 4096, &ranks, err));
    if (!ranks)
        return error_set(err, ERR_USAGE, "launch: -n N is missing: give the number of ranks on this machine");
    of = ranks;
    TRY(arguments_int(args, "--first", 0, 1000000, &first, err));
    TRY(arguments_int(args, "--of", 1, 1000000, &of, err));
    SpawnTerms terms = {(int)ranks, (int)first, (int)of, arguments_flag(args, "--meet"),
                        arguments_has(args, "--tolerant")};
    if (first + ranks > of)
        return error_set(err, ERR_USAGE,
                         "launch: --first and -n name ranks %lld to %lld, but --of is %lld: set --of to the "
                         "number of ranks on all machines",
                         (long long)first, (long long)(first + ranks - 1), (long long)of);
    if (terms.meet && strlen(terms.meet) > 255)
        return error_set(err, ERR_USAGE, "launch: --meet has more than 255 characters");
    if (of > ranks && !terms.meet)
        return error_set(err, ERR_USAGE,
                         "launch: %lld of %lld ranks are on other machines, but --meet is missing: give "
                         "--meet HOST:PORT, the machine of rank 0 and a free port there",
                         (long long)(of - ranks), (long long)of);
    return sockets_spawn(&terms, (char *const *)(uintptr_t)args->operands, err);
}

const Verb verb_launch = {
    .name = "launch",
    .summary = "start a program as several ranks, joined by sockets instead of MPI",
    .synopsis = "-n N [--of M --first R --meet HOST:PORT] [--tolerant] PROGRAM [WORD ...]",
    .details =
        "Starts PROGRAM N times; its ranks join over Unix sockets inside a machine and TCP between machines. "
        "\"weft train -n N comm.transport=sockets\" does this by itself.\n\n"
        "On several machines, run it on each with the same --of and --meet. --meet names the machine of "
        "rank 0 and a port that is free there; WEFT_MEET_KEY, any text, keeps ranks of other jobs out. Under "
        "srun weft launch is not needed: set WEFT_MEET=HOST:PORT for the ranks.\n\n"
        "Messages between machines are not encrypted: use a network that you trust.\n\n"
        "Examples:\n"
        "  weft launch -n 4 weft train my.yaml mesh.pp=2\n"
        "  weft launch -n 4 --of 8 --first 0 --meet node1:29500 weft train my.yaml    on node1\n"
        "  weft launch -n 4 --of 8 --first 4 --meet node1:29500 weft train my.yaml    on node2",
    .flags = flags,
    .min_operands = 1,
    .max_operands = -1,
    .words_after = true,
    .run = run_launch,
};
