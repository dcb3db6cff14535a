/* A comparison has three steps: all ranks combine the hashes of their texts. Only if those differ, rank 0
 * sends its text to all, and each rank sends back a report of its differences, empty if there are none. Ranks
 * with the same report share a clause of the error.
 *
 * Different configurations are a mistake of whoever started the ranks; different files come from machines
 * that do not share them. Different processors are no error: they are logged and recorded in checkpoints. All
 * ranks make each comparison at the same point of a run, and get the same result.
 *
 *     all     combine the hashes            --> equal, as nearly always: done, one message
 *     rank 0  broadcasts its text           --> each rank compares it with its own
 *     all     gather the reports on rank 0  --> ranks grouped by report: one sentence, all fail */
#include "train/agree.h"

#include <build_kind.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "device/facts.h"
#include "train/setup.h"

#define LARGEST_PROGRAM ((size_t)1 << 30)
enum {
    MOST_NAMED = 6,
    MOST_GROUPS = 4,
    MOST_SHOWN = 64
}; /* keys per rank; clauses; bytes of a value: a SHA-256 */

/* Includes the hash of the program file: builds of one version with different flags round differently. If
 * /proc cannot be read, the rest must do. */
char *agree_build(void) {
    Text build = {0};
    char library[64], *program;
    size_t length;
    text_puts(&build, WEFT_VERSION);
    if (file_read("/proc/self/exe", LARGEST_PROGRAM, &program, &length, NULL) == OK) {
        text_printf(&build, "-%016llx", (unsigned long long)hash64(program, length));
        free(program);
    }
    text_printf(&build, " %s%s%s, %s, %s", WEFT_BUILD_TYPE, *WEFT_BUILD_EXTRAS ? " " : "", WEFT_BUILD_EXTRAS,
                WEFT_COMPILER, device_library_name(library));
    return build.data;
}

/* ---- reports of the ranks, as text ---- */

typedef struct Groups {
    int ranks, count;
    int *of;           /* [ranks] group of each; that of rank 0 is 0 */
    const char **text; /* [count] text of each group */
    char *all;
} Groups;

/* `text` points into `all`. */
static void free_groups(Groups *g) {
    free(g->of);
    free(g->text);
    free(g->all);
    *g = (Groups){0};
}

/* On rank 0, groups the ranks by their text; elsewhere there are no groups. The group of rank 0 is 0, the
 * first seen. */
static ErrorCode gather_groups(Comm *comm, const char *mine, Groups *g, Error *err) {
    size_t ranks = (size_t)comm_size(comm), *lengths = mem_alloc_array(ranks, sizeof *lengths);
    *g = (Groups){.ranks = (int)ranks};
    g->of = mem_alloc_array(ranks, sizeof *g->of);
    g->text = mem_alloc_array(ranks, sizeof *g->text);
    ErrorCode code = comm_gather(comm, mine, strlen(mine) + 1, &g->all, lengths, err);
    const char *message = code == OK ? g->all : NULL;
    for (size_t r = 0; message && r < ranks; message += lengths[r++]) {
        int at = 0;
        while (at < g->count && strcmp(g->text[at], message) != 0) at++;
        if (at == g->count) g->text[g->count++] = message;
        g->of[r] = at;
    }
    free(lengths);
    return code;
}

/* "rank 3", "ranks 1-3, 7" */
static void name_group(const Groups *g, int which, Text *out) {
    int members = 0, named = 0;
    for (int r = 0; r < g->ranks; r++) members += g->of[r] == which;
    text_puts(out, members == 1 ? "rank " : "ranks ");
    for (int r = 0, end; r < g->ranks; r = end) {
        for (end = r + 1; end < g->ranks && g->of[end] == g->of[r]; end++) {}
        if (g->of[r] != which) continue;
        text_printf(out, named++ ? ", %d" : "%d", r);
        if (end - r > 1) text_printf(out, "-%d", end - 1);
    }
}

/* Differences of a rank from rank 0. */
typedef struct Report {
    Text text;
    int count;
} Report;

/* Writes the first MOST_NAMED only; refuse appends how many more there are. */
static void add_report(Report *r, const char *name, const char *here, const char *there) {
    char mine[MOST_SHOWN + 4], first[MOST_SHOWN + 4];
    if (r->count++ >= MOST_NAMED) return;
    text_printf(&r->text, "%s%s is %s (rank 0: %s)", r->text.length ? ", " : "", name,
                error_escape(mine, sizeof mine, here, strlen(here)),
                error_escape(first, sizeof first, there, strlen(there)));
}

/* Leaves out group 0, with which the others are compared. */
static void write_clauses(const Groups *g, Text *out) {
    for (int i = 1; i < g->count && i <= MOST_GROUPS; i++) {
        text_puts(out, i > 1 ? "; " : "");
        name_group(g, i, out);
        text_printf(out, ": %s", g->text[i]);
    }
    if (g->count > MOST_GROUPS + 1)
        text_printf(out, "; and others, in %d more ways", g->count - 1 - MOST_GROUPS);
}

/* Turns the reports of all ranks, of which at least one is not empty, into a failure of all. Frees the
 * report. Rank 0 has the message, the others get it by comm_agree. */
static ErrorCode refuse(Comm *comm, Report *mine, ErrorCode failure, const char *advice, Error *err) {
    Groups groups;
    Text clauses = {0};
    if (mine->count > MOST_NAMED) text_printf(&mine->text, " and %d more", mine->count - MOST_NAMED);
    ErrorCode code = gather_groups(comm, mine->text.length ? mine->text.data : "", &groups, err);
    if (code == OK && comm_rank(comm) == 0) {
        write_clauses(&groups, &clauses);
        code = error_set(err, failure, "the ranks do not run the same: %s: %s", clauses.data, advice);
    }
    free_groups(&groups);
    text_free(&clauses);
    text_free(&mine->text);
    return comm_agree(comm, code, err);
}

/* ---- the same everywhere? ---- */

typedef struct Hashes {
    char build[65], words[65];
    bool same_build, same_words;
} Hashes;

/* Whether any two differ; which ranks they are is asked only then. */
static void combine_hashes(void *into, const void *from) {
    Hashes *a = into;
    const Hashes *b = from;
    a->same_build = a->same_build && b->same_build && strcmp(a->build, b->build) == 0;
    a->same_words = a->same_words && b->same_words && strcmp(a->words, b->words) == 0;
}

/* SHA-256: texts with equal hashes are not compared again. */
static void hash_text(const char *text, char out[65]) { sha256_of(text, strlen(text), out); }

/* Adds a difference to the report. */
static ErrorCode compare_text(Comm *comm, const char *name, const char *mine, Report *report, Error *err) {
    char *first;
    TRY(comm_broadcast_text(comm, mine, &first, err));
    if (strcmp(mine, first) != 0) add_report(report, name, mine, first);
    free(first);
    return OK;
}

/* ---- the configuration ---- */

static bool is_shared(const Option *o) { return !o->local; }

static void add_key(void *report, const Option *o, const char *here, const char *there) {
    if (is_shared(o)) add_report(report, o->key, here, there);
}

/* Sends the configuration as YAML and parses it into an option set, so that keys can be named, and values
 * compared as options_compare does. */
static ErrorCode compare_sets(Comm *comm, const OptionSet *set, Report *report, Error *err) {
    Text yaml = {0};
    char *first = NULL;
    Config c = {0};
    OptionSet there = {0};
    options_write_yaml(set, &yaml, false);
    ErrorCode code = comm_broadcast_text(comm, yaml.data, &first, err);
    text_free(&yaml);
    TRY(code);
    code = config_set_open(&there, &c, err);
    if (code == OK) code = options_apply_written(&there, "rank 0", first, err);
    if (code == OK) options_compare(set, &there, add_key, report);
    options_free(&there);
    free(first);
    return code;
}

/* Checked before the keys: another build may have another table of options. */
static ErrorCode refuse_build(Comm *comm, const char *build, Error *err) {
    Report report = {.count = 0};
    ErrorCode code = compare_text(comm, "the build", build, &report, err);
    return code == OK ? refuse(comm, &report, ERR_CONFIG, "give all ranks one build of weft", err) : code;
}

/* The ranks agree on a failure to compare before refuse, which either all of them must enter or none. */
static ErrorCode refuse_keys(Comm *comm, const OptionSet *set, Error *err) {
    Report report = {.count = 0};
    ErrorCode code = comm_agree(comm, compare_sets(comm, set, &report, err), err);
    if (code == OK)
        return refuse(comm, &report, ERR_CONFIG, "give all ranks one configuration file and one command line",
                      err);
    text_free(&report.text);
    return code;
}

/* Two hashes in one message. Neither includes local options (Option.local), which may differ. A single rank
 * has nothing to compare. */
ErrorCode agree_on_config(Comm *comm, const OptionSet *set, Error *err) {
    Hashes hashes = {.same_build = true, .same_words = true};
    if (comm_size(comm) == 1) return OK;
    char *build = agree_build();
    hash_text(build, hashes.build);
    options_digest(set, is_shared, hashes.words);
    ErrorCode code = comm_combine(comm, &hashes, sizeof hashes, combine_hashes, err);
    if (code == OK && !hashes.same_build)
        code = refuse_build(comm, build, err);
    else if (code == OK && !hashes.same_words)
        code = refuse_keys(comm, set, err);
    free(build);
    return code;
}

/* ---- data ---- */

/* Fails if any rank has something in its report. Frees the report. */
static ErrorCode judge(Comm *comm, Report *report, const char *advice, Error *err) {
    int64_t unlike = report->count;
    ErrorCode code = comm_combine(comm, &unlike, sizeof unlike, comm_add_int64, err);
    if (code == OK && unlike > 0) return refuse(comm, report, ERR_DATA, advice, err);
    text_free(&report->text);
    return code;
}

typedef struct Line {
    const char *print, *name;
} Line;

/* Equal names stand for a file that is read twice; they are ordered by their hashes. */
static int by_name(const void *a, const void *b) {
    const Line *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order != 0 ? order : strcmp(x->print, y->print);
}

/* Splits lines "SHA-256 NAME" and sorts them by name. They point into the list, whose blanks and newlines
 * become NUL. */
static Line *cut_lines(char *list, size_t *count) {
    size_t most = 0;
    for (const char *at = list; (at = strchr(at, '\n')); at++) most++;
    Line *lines = mem_alloc_array(most + 1, sizeof *lines);
    *count = 0;
    for (char *end; (end = strchr(list, '\n')); list = end + 1) {
        char *blank = strchr(list, ' ');
        *blank = *end = 0;
        lines[(*count)++] = (Line){list, blank + 1};
    }
    qsort(lines, *count, sizeof *lines, by_name);
    return lines;
}

/* Writes to both lists (cut_lines). */
static void add_lines(Report *report, char *mine, char *first) {
    size_t here, there, a = 0, b = 0;
    Line *x = cut_lines(mine, &here), *y = cut_lines(first, &there);
    while (a < here || b < there) {
        int order = a == here ? 1 : b == there ? -1 : strcmp(x[a].name, y[b].name);
        const char *own = order <= 0 ? x[a].print : "missing", *other = order >= 0 ? y[b].print : "missing";
        if (strcmp(own, other) != 0) add_report(report, order <= 0 ? x[a].name : y[b].name, own, other);
        a += order <= 0;
        b += order >= 0;
    }
    free(x);
    free(y);
}

/* As compare_text, line by line. */
static ErrorCode compare_files(Comm *comm, const Text *files, Report *report, Error *err) {
    const char *list = files->length ? files->data : "";
    char *first;
    TRY(comm_broadcast_text(comm, list, &first, err));
    if (strcmp(list, first) != 0) {
        char *mine = mem_strdup(list);
        add_lines(report, mine, first);
        free(mine);
    }
    free(first);
    return OK;
}

ErrorCode agree_on_files(Comm *comm, const Text *files, const char *advice, Error *err) {
    Report report = {.count = 0};
    if (comm_size(comm) == 1) return OK;
    TRY(compare_files(comm, files, &report, err));
    return judge(comm, &report, advice, err);
}

/* Compares all of them before it fails, so that one error names everything that differs. */
ErrorCode agree_on_data(Comm *comm, const RunFacts *facts, const Text *files, Error *err) {
    Report report = {.count = 0};
    if (comm_size(comm) == 1) return OK;
    TRY(compare_text(comm, "the fingerprint of data", facts->data, &report, err));
    TRY(compare_text(comm, "the fingerprint of tokenizer", facts->tokenizer, &report, err));
    TRY(compare_text(comm, "the mixture", facts->mixture, &report, err));
    TRY(compare_files(comm, files, &report, err));
    return judge(comm, &report, "give all ranks the same files and rules of data", err);
}

/* `mine` is shown in the error, so it should be short. */
ErrorCode agree_on_file(Comm *comm, const char *name, const char *mine, const char *advice, Error *err) {
    Report report = {.count = 0};
    if (comm_size(comm) == 1) return OK;
    TRY(compare_text(comm, name, mine, &report, err));
    return judge(comm, &report, advice, err);
}

/* ---- processors ---- */

/* One name if all ranks have the same kernels; otherwise each name with its ranks. Only rank 0 has groups;
 * elsewhere nothing is written. */
static void write_kernels(const Groups *g, Text *out) {
    for (int i = 0; i < g->count; i++) {
        text_printf(out, "%s%s", i ? ", " : "", g->text[i]);
        if (g->count == 1) return;
        text_puts(out, " on ");
        name_group(g, i, out);
    }
}

/* The caller frees *kernels. */
ErrorCode agree_kernels(Comm *comm, const Device *d, char **kernels, Error *err) {
    Groups groups;
    Text all = {0};
    ErrorCode code = gather_groups(comm, d->name, &groups, err);
    text_puts(&all, "");
    write_kernels(&groups, &all);
    if (groups.count > 1) log_info("kernels of the ranks differ, and so do last bits: %s", all.data);
    free_groups(&groups);
    if (code == OK) code = comm_broadcast_text(comm, all.data, kernels, err);
    text_free(&all);
    return code;
}

/* `auto` is bf16 only if every processor supports it: replicas with different dtypes would diverge after one
 * step. */
ErrorCode agree_on_compute(Comm *comm, Config *c, OptionSet *set, const Device *d, Error *err) {
    int64_t native = d->native_bf16;
    TRY(comm_combine(comm, &native, sizeof native, comm_add_int64, err));
    if (c->train.compute != COMPUTE_AUTO) return OK;
    bool all = native == comm_size(comm);
    if (native > 0 && !all && comm_rank(comm) == 0)
        log_info(
            "train.compute: auto is fp32 on all ranks: %d of %d processors do not multiply bf16 natively",
            comm_size(comm) - (int)native, comm_size(comm));
    return setup_compute(c, set, all, err);
}

/* For each set of ranks with replicas of the same parameters, the lowest and the highest rounding number:
 * equal if all ranks of the set round alike. */
typedef struct Roundings {
    int64_t sets;
    struct {
        uint64_t low, high;
    } set[];
} Roundings;

static void combine_roundings(void *into, const void *from) {
    Roundings *a = into;
    const Roundings *b = from;
    for (int64_t i = 0; i < a->sets; i++) {
        if (b->set[i].low < a->set[i].low) a->set[i].low = b->set[i].low;
        if (b->set[i].high > a->set[i].high) a->set[i].high = b->set[i].high;
    }
}

/* *alike is the same on all ranks. */
static ErrorCode compare_roundings(Comm *comm, uint64_t number, int set, int sets, bool *alike, Error *err) {
    size_t bytes = sizeof(Roundings) + (size_t)sets * 2 * sizeof(uint64_t);
    Roundings *all = mem_alloc(bytes);
    all->sets = sets;
    for (int i = 0; i < sets; i++) all->set[i].low = UINT64_MAX, all->set[i].high = 0;
    all->set[set].low = all->set[set].high = number;
    ErrorCode code = comm_combine(comm, all, bytes, combine_roundings, err);
    *alike = true;
    for (int i = 0; i < sets; i++) *alike = *alike && all->set[i].low == all->set[i].high;
    free(all);
    return code;
}

ErrorCode agree_on_rounding(Comm *comm, Device *d, bool products, int set, int sets, Error *err) {
    uint64_t number = 0;
    bool alike;
    Report report = {.count = 0};
    char mine[128];
    if (comm_size(comm) == 1) return OK;
    TRY(comm_agree(comm, device_rounding(d, products, &number, err), err));
    snprintf(mine, sizeof mine, "%s, rounding %016llx", d->name, (unsigned long long)number);
    TRY(compare_roundings(comm, number, set, sets, &alike, err));
    if (alike) return OK;
    TRY(compare_text(comm, "the device", mine, &report, err));
    return refuse(
        comm, &report, ERR_CONFIG,
        "ranks hold copies of parameters, which each updates by itself, and these kernels round "
        "otherwise: give all ranks one run.device, or shard the parameters over them (mesh.dp_shard)",
        err);
}
