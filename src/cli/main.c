/* weft VERB [operands] [flags]: finds the verb, runs it, and turns its ErrorCode into the exit status.
 *
 * The locale is never set, so numbers are read and written with a decimal point everywhere. */
#include <malloc.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/signals.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/version.h"
#include "comm/launch.h"

/* The last line of a failed command; plain, so that it can be searched for. An error that another rank or
 * process already printed is not printed again; the status is the same. */
static int report(const Error *err) {
    log_status("%s", "");
    if (err->reported) return (int)err->code;
    char end[600];
    fprintf(stderr, "weft: %s (%s)\n", err->message, error_end(end, sizeof end, err->code));
    return (int)err->code;
}

/* The program's texts about itself are data: they go to standard output, where they can be paged. Frees the
 * text. */
static void print(Text *out) {
    if (out->length) fwrite(out->data, 1, out->length, stdout);
    text_free(out);
}

static bool asks_for_help(const char *word) { return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0; }

/* Help replaces running the verb, and needs no operands. The log level is set before the verb runs, so that
 * it holds for all its messages. Arguments are freed after a failure too. */
static ErrorCode run_verb(int count, const char *const *words, Error *err) {
    const Verb *verb = NULL;
    int used = 0;
    TRY(verb_find(&verb, count, words, &used, err));
    Arguments args;
    ErrorCode code = arguments_parse(&args, verb, count - used, words + used, err);
    if (code == OK && args.help) {
        Text out = {0};
        help_write_verb(verb, &out, log_width());
        print(&out);
    } else if (code == OK) {
        if (args.quiet) log_set_level(LOG_ERROR);
        code = verb->run(&args, err);
    }
    arguments_free(&args);
    return code;
}

/* The program's texts about itself, without a verb. False when the words are for a verb. "weft tokenizer
 * --help" is about a group of verbs. */
static bool describe(int count, const char *const *words, Text *out) {
    if (count == 0) return false;
    if (asks_for_help(words[0])) {
        help_write_overview(out, log_width());
    } else if (strcmp(words[0], "--version") == 0) {
        version_write(out);
    } else {
        return count == 2 && asks_for_help(words[1]) && help_write_group(words[0], out, log_width());
    }
    return true;
}

static ErrorCode run_words(int count, const char *const *words, Error *err) {
    Text out = {0};
    bool described = describe(count, words, &out);
    print(&out);
    return described ? OK : run_verb(count, words, err);
}

int main(int argc, char **argv) {
    launched_streams();
    signals_restore();
    /* When a reader goes away ("weft inspect ... | head"), the program ends silently, whatever the parent had
     * set. */
    signal(SIGPIPE, SIG_DFL);
    /* Writing beyond the file size limit (ulimit -f) is an error like a full disk, with the path. */
    signal(SIGXFSZ, SIG_IGN);
#ifdef M_MMAP_THRESHOLD
    /* Large temporary buffers always go back to the system when freed, so that the process's memory stays
     * that of its plan in every step. */
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
    Error err = {0};
    ErrorCode code = run_words(argc - 1, (const char *const *)(argv + 1), &err);
    /* A failure to write standard output fails the command, even if the verb did not notice it. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == OK)
        code = error_errno(&err, ERR_IO, "cannot write to standard output");
    if (code == OK) return 0;
    err.code = code;
    return report(&err);
}
