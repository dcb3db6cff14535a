/* Help texts from the verb tables, and the verb "help".
 *
 * Every text is made from the verb's table, like the parser (cli.c), the man page and the completion (man.c),
 * so all of them agree. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"
#include "config/config.h"

const char program_summary[] =
    "pre-trains and tunes language models of the families that \"weft models\" lists";

/* Lines beyond a hundred columns are hard to read, however wide the terminal. */
enum { MARGIN = 2, NAME_COLUMN = 26, NARROWEST = 40, WIDEST = 100 };

/* Below forty columns the second column would have one word per line; lines that the terminal wraps are then
 * easier to read. */
static int clamp_width(int width) { return width < NARROWEST ? NARROWEST : width > WIDEST ? WIDEST : width; }

static void add_spaces(Text *out, int count) {
    for (int i = 0; i < count; i++) text_add(out, " ", 1);
}

/* Adds the words of text[0..length), wrapped at `width`; the cursor is at `column`, further lines start at
 * `indent`. Bytes count as columns: these texts are ASCII, except for names that a user gave. A word longer
 * than a line is not broken, since a broken path or key could not be copied. */
static void add_wrapped(Text *out, const char *text, size_t length, int column, int indent, int width) {
    bool first = true;
    for (size_t at = 0; at < length;) {
        size_t word = strcspn(text + at, " \n");
        if (word > length - at) word = length - at;
        if (word) {
            if (!first && column + 1 + (int)word > width) {
                text_puts(out, "\n");
                add_spaces(out, indent);
                column = indent;
                first = true;
            }
            if (!first) text_puts(out, " ");
            text_add(out, text + at, word);
            column += (int)word + (first ? 0 : 1);
            first = false;
        }
        at += word + 1;
    }
    text_puts(out, "\n");
}

/* "  name      what it is", the second column wrapped under itself. A name too long for its column gets its
 * own line, so that the second column is aligned for all. */
static void add_entry(Text *out, const char *name, const char *help, int width) {
    add_spaces(out, MARGIN);
    text_puts(out, name);
    int column = MARGIN + (int)strlen(name);
    if (column + 2 > NAME_COLUMN) {
        text_puts(out, "\n");
        column = 0;
    }
    add_spaces(out, NAME_COLUMN - column);
    add_wrapped(out, help, strlen(help), NAME_COLUMN, NAME_COLUMN, width);
}

/* Paragraphs are filled; lines that start with a space, such as examples, are kept. */
static void add_paragraphs(Text *out, const char *text, int width) {
    while (*text) {
        if (*text == '\n' || *text == ' ') {
            size_t line = strcspn(text, "\n");
            text_add(out, text, line);
            text_puts(out, "\n");
            text += line + (text[line] == '\n');
            continue;
        }
        size_t length = 0;
        while (text[length] && !(text[length] == '\n' && strchr("\n ", text[length + 1]))) length++;
        add_wrapped(out, text, length, 0, 0, width);
        text += length + (text[length] == '\n');
    }
}

/* If the verb redefines a common flag, it is shown once, with the verb's text; a letter that the verb
 * redefines is omitted from the common flag. */
static void add_flags(Text *out, const Flag *flags, const Verb *verb, int width) {
    for (const Flag *f = flags; f && f->name; f++) {
        char letter = f->letter;
        bool replaced = false;
        for (const Flag *own = verb->flags; flags == common_flags && own && own->name; own++) {
            if (own->letter == letter) letter = 0;
            replaced |= strcmp(own->name, f->name) == 0;
        }
        if (replaced) continue;
        char name[96];
        snprintf(name, sizeof name, "%c%c%c %s%s%s", letter ? '-' : ' ', letter ? letter : ' ',
                 letter ? ',' : ' ', f->name, f->argument && f->argument[0] != '[' ? " " : "",
                 f->argument ? f->argument : "");
        add_entry(out, name, f->help, width);
    }
}

/* Usage first, since it is needed most; the configuration last, since it is long. */
void help_write_verb(const Verb *verb, Text *out, int width) {
    width = clamp_width(width);
    text_printf(out, "weft %s - %s\n\n", verb->name, verb->summary);
    text_printf(out, "Usage: weft %s%s%s\n", verb->name, *verb->synopsis ? " " : "", verb->synopsis);
    if (verb->details && *verb->details) {
        text_puts(out, "\n");
        add_paragraphs(out, verb->details, width);
    }
    text_puts(out, "\nFlags:\n");
    add_flags(out, verb->flags, verb, width);
    add_flags(out, common_flags, verb, width);
    if (verb->options) {
        text_puts(out, "\nConfiguration, in the YAML file or as section.key=value:\n\n");
        options_write_help(verb->options(), out, width);
    }
}

/* False, and nothing written, if there is no such group. A group has no entry of its own: it is a common
 * first word of several names, so its heading is written with the first of them. */
bool help_write_group(const char *group, Text *out, int width) {
    width = clamp_width(width);
    size_t length = strlen(group), before = out->length;
    for (const Verb *const *v = verbs; *v; v++) {
        if (strncmp((*v)->name, group, length) != 0 || (*v)->name[length] != ' ') continue;
        if (out->length == before)
            text_printf(out, "Usage: weft %s VERB [operands] [flags]\n\nVerbs:\n", group);
        add_entry(out, (*v)->name + length + 1, (*v)->summary, width);
    }
    if (out->length == before) return false;
    text_printf(out, "\n\"weft %s VERB --help\" explains each.\n", group);
    return true;
}

/* One line per verb. Three commands come first, since most readers of this text have not trained anything
 * with weft yet. */
void help_write_overview(Text *out, int width) {
    width = clamp_width(width);
    text_printf(out, "weft - %s\n\nUsage: weft VERB [operands] [flags]\n\n", program_summary);
    add_paragraphs(out,
                   "  weft train configs/demo.yaml                 train\n"
                   "  weft train my.yaml optimizer.lr=1e-3         the same, one value changed\n"
                   "  weft generate runs/demo --prompt \"In the\"    what it learned\n",
                   width);
    text_puts(out, "\nVerbs:\n");
    for (const Verb *const *v = verbs; *v; v++) add_entry(out, (*v)->name, (*v)->summary, width);
    text_puts(out, "\nFlags:\n");
    add_entry(out, "--version", "version and build facts", width);
    add_entry(out, "VERB --help", "flags, examples and configuration of a verb", width);
}

/* The table of keys with all names, without values. */
static OptionSet all_names(void) {
    OptionSet set = {.table = config_options(), .sections = config_sections};
    while (set.table[set.count].key) set.count++;
    return set;
}

/* Help of one key or one section of the configuration, by its own name, its old one or another program's.
 * False, and nothing written, if there is none. */
static bool help_write_key(const char *name, Text *out, int width) {
    OptionSet set = all_names();
    Text today = {0};
    const char *ours = options_rename(&set, name, &today) ? today.data : options_synonym(&set, name);
    bool found = options_write_help_of(set.table, name, out, clamp_width(width)) ||
                 (ours && options_write_help_of(set.table, ours, out, clamp_width(width)));
    text_free(&today);
    return found;
}

static ErrorCode unknown_key(const char *name, Error *err) {
    OptionSet set = all_names();
    return options_check_key(&set, "help", name, err);
}

/* A verb takes precedence over a section of its name ("train"), whose keys its help shows too. */
static ErrorCode help_on(int count, const char *const *words, Text *out, Error *err) {
    const Verb *verb = NULL;
    int used = 0;
    if (verb_find(&verb, count, words, &used, NULL) != OK && count == 1 &&
        help_write_key(words[0], out, log_width()))
        return OK;
    if (!verb && count == 1 && strchr(words[0], '.')) return unknown_key(words[0], err);
    TRY(verb_find(&verb, count, words, &used, err));
    help_write_verb(verb, out, log_width());
    return OK;
}

/* A verb has one or two words; hence two operands. */
static ErrorCode run_help(const Arguments *args, Error *err) {
    const char *shell = arguments_flag(args, "--completion");
    if (shell && strcmp(shell, "bash") != 0)
        return error_set(err, ERR_USAGE, "help: no completion for \"%.40s\"; there is one for bash", shell);
    Text out = {0};
    ErrorCode code = OK;
    if (arguments_has(args, "--man")) {
        man_write(&out);
    } else if (shell) {
        completion_write_bash(&out);
    } else if (args->operand_count == 1 && help_write_group(args->operands[0], &out, log_width())) {
        code = OK; /* tried before a verb: "help tokenizer" is about three verbs */
    } else if (args->operand_count) {
        code = help_on(args->operand_count, args->operands, &out, err);
    } else {
        help_write_overview(&out, log_width());
    }
    /* Requested help is data: it goes to stdout, where it can be paged. */
    if (out.length) fwrite(out.data, 1, out.length, stdout);
    text_free(&out);
    return code;
}

static const Flag help_flags[] = {
    {"--man", 0, NULL, "write the man page (roff)"},
    {"--completion", 0, "SHELL", "write the completion script for a shell: bash"},
    {NULL, 0, NULL, NULL},
};

const Verb verb_help = {
    .name = "help",
    .summary = "show help on a verb or a key; write the man page or shell completion",
    .synopsis = "[VERB | KEY | SECTION]",
    .details = "Examples:\n"
               "  weft help train\n"
               "  weft help optimizer.lr\n"
               "  weft help optimizer\n"
               "  weft help --man | man -l -\n"
               "  source <(weft help --completion bash)\n",
    .flags = help_flags,
    .max_operands = 2,
    .run = run_help,
};
