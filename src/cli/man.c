/* The man page and the bash completion, from the verb tables.
 *
 * The program itself writes both when it is built (CMakeLists.txt), so they are never out of date. The
 * completion is a list of words for bash to choose from: it starts no process and reads no file. */
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"

/* ---- roff ---- */

/* Escapes text for roff: backslashes, hyphens, quotes, and dots and apostrophes at the start of a line. An
 * unescaped hyphen becomes a dash, which cannot be copied into a shell. */
static void add_roff(Text *out, const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        bool line_start = i ? text[i - 1] == '\n' : out->length && out->data[out->length - 1] == '\n';
        if (line_start && (c == '.' || c == '\'')) text_puts(out, "\\&");
        switch (c) {
        case '\\': text_puts(out, "\\e"); break;
        case '-': text_puts(out, "\\-"); break;
        case '\'': text_puts(out, "\\(aq"); break;
        case '^': text_puts(out, "\\(ha"); break;
        case '~': text_puts(out, "\\(ti"); break;
        case '`': text_puts(out, "\\(ga"); break;
        case '|': text_puts(out, "|\\:"); break; /* allows a line break: some lists of choices are long */
        default: text_add(out, &c, 1);
        }
    }
}

static void add_roff_string(Text *out, const char *text) { add_roff(out, text, strlen(text)); }

/* Filled paragraphs as .PP, kept lines as .EX blocks. Lines that begin with a blank are kept, as in
 * help.c. */
static void add_roff_paragraphs(Text *out, const char *text) {
    bool kept = false, fresh = true;
    for (size_t length; *text; text += length + (text[length] == '\n')) {
        length = strcspn(text, "\n");
        bool keep = *text == ' ';
        if (keep && !kept) text_puts(out, ".PP\n.EX\n");
        if (!keep && kept) text_puts(out, ".EE\n");
        if (!keep && length && (kept || fresh)) text_puts(out, ".PP\n");
        add_roff(out, text, length);
        if (length) text_puts(out, "\n");
        fresh = !length;
        kept = keep;
    }
    if (kept) text_puts(out, ".EE\n");
}

/* As in help, with man's type faces: literal text in bold, placeholders in italics. */
static void add_roff_flags(Text *out, const Flag *flags) {
    for (const Flag *f = flags; f && f->name; f++) {
        text_puts(out, ".TP\n");
        if (f->letter) text_printf(out, "\\fB\\-%c\\fR, ", f->letter);
        text_puts(out, "\\fB");
        add_roff_string(out, f->name);
        text_puts(out, "\\fR");
        if (f->argument) {
            text_puts(out, f->argument[0] == '[' ? "\\fI" : " \\fI");
            add_roff_string(out, f->argument);
            text_puts(out, "\\fR");
        }
        text_puts(out, "\n");
        add_roff_string(out, f->help);
        text_puts(out, "\n");
    }
}

/* A subsection of VERBS for each. The summary is a sentence without its full stop (cli.h), which is added
 * here. */
static void add_roff_verb(Text *out, const Verb *verb) {
    text_puts(out, ".SS weft ");
    add_roff_string(out, verb->name);
    text_puts(out, " ");
    add_roff_string(out, verb->synopsis);
    text_puts(out, "\n");
    add_roff_string(out, verb->summary);
    text_puts(out, ".\n");
    if (verb->details) add_roff_paragraphs(out, verb->details);
    add_roff_flags(out, verb->flags);
}

/* In the order of OptionType. Described in words, since the reader writes YAML. A choice shows its values
 * instead. */
static const char *type_name(OptionType type) {
    static const char *const names[] = {"true or false", "whole number",  "number", "text",
                                        "choice",        "list of texts", "list"};
    return names[type];
}

/* Type, default and help. Effects on resuming are left to `weft train --help`, which has space to explain
 * them. */
static void add_roff_option(Text *out, const Option *option) {
    text_puts(out, ".TP\n\\fB");
    add_roff_string(out, option->key);
    text_puts(out, "\\fR (");
    add_roff_string(out, option->type == OPT_CHOICE ? option->choices : type_name(option->type));
    if (option->default_value && *option->default_value) {
        text_puts(out, "; default ");
        add_roff_string(out, option->default_value);
    }
    text_puts(out, ")\n");
    add_roff_string(out, option->help);
    text_puts(out, "\n");
}

/* Verbs share configuration tables; each is documented once. Compared by address. */
static bool options_seen_before(const Verb *const *verb) {
    for (const Verb *const *v = verbs; v < verb; v++)
        if ((*v)->options == (*verb)->options) return true;
    return false;
}

/* The heading is written with the first table, so that a build without tables has no empty section. */
static void add_roff_configuration(Text *out) {
    bool any = false;
    for (const Verb *const *v = verbs; *v; v++) {
        if (!(*v)->options || options_seen_before(v)) continue;
        if (!any)
            text_puts(out, ".SH CONFIGURATION\nOptions are given in a YAML file, by sections, or on the "
                           "command line as\n"
                           "\\fIsection.key=value\\fR, which wins over the file.\n");
        any = true;
        for (const Option *o = (*v)->options(); o->key; o++) add_roff_option(out, o);
    }
}

/* Statuses for scripts: all of ErrorCode but OK, with names from error_name, as in the program's last
 * line. */
static void add_roff_statuses(Text *out) {
    static const ErrorCode codes[] = {
        ERR_DIFFERENT, ERR_USAGE,  ERR_NUMERIC,    ERR_REPLICAS, ERR_DATA,    ERR_NOINPUT, ERR_UNAVAILABLE,
        ERR_INTERNAL,  ERR_MEMORY, ERR_CANTCREATE, ERR_IO,       ERR_STOPPED, ERR_PEER,    ERR_CONFIG};
    text_puts(out, ".SH EXIT STATUS\n.TP\n0\nsuccess\n");
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        text_printf(out, ".TP\n%d\n", (int)codes[i]);
        add_roff_string(out, error_name(codes[i]));
        text_puts(out, "\n");
    }
}

/* In the usual order of man pages: name, verbs, flags, configuration, statuses, environment. */
void man_write(Text *out) {
    text_printf(out, ".TH WEFT 1 \"\" \"weft %s\" \"User Commands\"\n", WEFT_VERSION);
    text_puts(out, ".SH NAME\nweft \\- ");
    add_roff_string(out, program_summary);
    text_puts(out, "\n.SH SYNOPSIS\n.B weft\n.I VERB\n[\\fIoperands\\fR] [\\fIflags\\fR]\n"
                   ".SH DESCRIPTION\n"
                   "Text in, trained model out: weft tokenizes text, trains a model on it as one YAML file "
                   "says, and\n"
                   "writes checkpoints that other programs read as they are.\n"
                   "Data goes to standard output, messages to standard error.\n"
                   ".SH VERBS\n");
    for (const Verb *const *v = verbs; *v; v++) add_roff_verb(out, *v);
    text_puts(out, ".SH FLAGS OF EVERY VERB\n");
    add_roff_flags(out, common_flags);
    add_roff_configuration(out);
    add_roff_statuses(out);
    text_puts(
        out,
        ".SH ENVIRONMENT\n"
        ".TP\n.B NO_COLOR\nno colour on a terminal\n"
        ".TP\n.B OMP_NUM_THREADS\nnumber of threads, unless the configuration sets it\n"
        ".TP\n.B OMP_WAIT_POLICY\nhow threads wait for each other; without it (and without "
        "GOMP_SPINCOUNT or KMP_BLOCKTIME) they spin, and sleep while other programs use the cores\n"
        ".TP\n.B WEFT_CPU\nkernels to use in place of the best for the processor\n"
        ".TP\n.B WEFT_CUDA\nthe plugin for GPUs, in place of weft\\-cuda.so next to the program\n"
        ".TP\n.B WEFT_CUDA_CHECK\n1: waits after each launch on a GPU, and names the op that failed\n"
        ".TP\n.B WEFT_NCCL\nthe library for communicators between GPUs, in place of libnccl.so.2; none: they "
        "are not used\n");
}

/* ---- bash ---- */

/* The flags of a verb and the common ones, in one line of words. */
static void add_flag_words(Text *out, const Verb *verb) {
    for (const Flag *f = verb->flags; f && f->name; f++) text_printf(out, "%s ", f->name);
    for (const Flag *f = common_flags; f->name; f++) text_printf(out, "%s%s", f->name, f[1].name ? " " : "");
}

/* Keys with their "=", after which add_values continues. No blank is added after such a word (compopt -o
 * nospace), so that the value can be typed. */
static void add_option_words(Text *out, const Verb *verb) {
    const Option *table = verb->options ? verb->options() : NULL;
    for (const Option *o = table; o && o->key; o++) text_printf(out, "%s%s=", o == table ? "" : " ", o->key);
}

/* First words of all verbs, each once: "tokenizer" stands for all of its group. Lengths are compared too,
 * since "tokenize" is not in the group "tokenizer". Quadratic, but verbs are few and this runs at build
 * time. */
static void add_first_words(Text *out) {
    for (const Verb *const *v = verbs; *v; v++) {
        size_t length = strcspn((*v)->name, " ");
        bool seen = false;
        for (const Verb *const *w = verbs; w < v && !seen; w++)
            seen = strncmp((*w)->name, (*v)->name, length) == 0 && strcspn((*w)->name, " ") == length;
        if (seen) continue;
        text_add(out, (*v)->name, length);
        text_puts(out, " ");
    }
}

/* The words that may follow this verb: its flags and, if it has a configuration, keys. Quoted, since verbs of
 * a group have a blank in their name. */
static void add_case(Text *out, const Verb *verb) {
    text_printf(out, "    \"%s\")\n        flags=\"", verb->name);
    add_flag_words(out, verb);
    text_puts(out, "\"\n        keys=\"");
    add_option_words(out, verb);
    text_puts(out, "\" ;;\n");
}

/* One case for the second words of each group. A group is the part before the blank in a verb's name. */
static void add_groups(Text *out) {
    for (const Verb *const *v = verbs; *v; v++) {
        size_t length = strcspn((*v)->name, " ");
        bool seen = !(*v)->name[length];
        for (const Verb *const *w = verbs; w < v && !seen; w++)
            seen = strncmp((*w)->name, (*v)->name, length + 1) == 0;
        if (seen) continue;
        text_printf(out, "    %.*s) members=\"", (int)length, (*v)->name);
        for (const Verb *const *w = v; *w; w++)
            if (strncmp((*w)->name, (*v)->name, length + 1) == 0)
                text_printf(out, "%s ", (*w)->name + length + 1);
        text_puts(out, "\" ;;\n");
    }
}

/* A case for each key with a few values: its choices, or true and false. Tables that several verbs share are
 * visited once. */
static void add_value_cases(Text *out) {
    for (const Verb *const *v = verbs; *v; v++) {
        if (!(*v)->options || options_seen_before(v)) continue;
        for (const Option *o = (*v)->options(); o->key; o++) {
            if (o->type != OPT_CHOICE && o->type != OPT_BOOL) continue;
            text_printf(out, "    %s) values=\"", o->key);
            for (const char *at = o->type == OPT_BOOL ? "true|false" : o->choices; *at; at++)
                text_add(out, *at == '|' ? " " : at, 1);
            text_puts(out, "\" ;;\n");
        }
    }
}

/* bash splits words at "=": the words after "key" "=" are values. */
static void add_values(Text *out) {
    text_puts(out, "    local key= values=\n"
                   "    if [ \"$word\" = = ]; then\n"
                   "        key=\"${COMP_WORDS[COMP_CWORD-1]}\" word=\n"
                   "    elif [ \"${COMP_WORDS[COMP_CWORD-1]}\" = = ]; then\n"
                   "        key=\"${COMP_WORDS[COMP_CWORD-2]}\"\n"
                   "    fi\n"
                   "    case \"$key\" in\n");
    add_value_cases(out);
    text_puts(out, "    esac\n"
                   "    if [ -n \"$key\" ]; then\n"
                   "        if [ -n \"$values\" ]; then\n"
                   "            COMPREPLY=($(compgen -W \"$values\" -- \"$word\"))\n"
                   "        else\n"
                   "            COMPREPLY=($(compgen -f -- \"$word\"))\n"
                   "        fi\n"
                   "        return\n"
                   "    fi\n");
}

/* The words before the cursor decide: first the verb, then the member of a group, then its flags and keys.
 * File names are offered along with keys, since operands are mostly files. If a key is the only match, it
 * ends in "=" without a blank. */
void completion_write_bash(Text *out) {
    text_puts(out,
              "# bash completion for weft\n"
              "_weft() {\n"
              "    local word=\"${COMP_WORDS[COMP_CWORD]}\" verb=\"${COMP_WORDS[1]}\" members= flags= keys=\n"
              "    COMPREPLY=()\n");
    add_values(out);
    text_puts(out, "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
                   "        COMPREPLY=($(compgen -W \"");
    add_first_words(out);
    text_puts(out, "--help --version\" -- \"$word\"))\n"
                   "        return\n"
                   "    fi\n"
                   "    case \"$verb\" in\n");
    add_groups(out);
    text_puts(out, "    *) ;;\n"
                   "    esac\n"
                   "    if [ -n \"$members\" ]; then\n"
                   "        if [ \"$COMP_CWORD\" -eq 2 ]; then\n"
                   "            COMPREPLY=($(compgen -W \"$members\" -- \"$word\"))\n"
                   "            return\n"
                   "        fi\n"
                   "        verb=\"$verb ${COMP_WORDS[2]}\"\n"
                   "    fi\n"
                   "    case \"$verb\" in\n");
    for (const Verb *const *v = verbs; *v; v++) add_case(out, *v);
    text_puts(out, "    esac\n"
                   "    case \"$word\" in\n"
                   "    -*) COMPREPLY=($(compgen -W \"$flags\" -- \"$word\")) ;;\n"
                   "    *)\n"
                   "        COMPREPLY=($(compgen -W \"$keys\" -- \"$word\") $(compgen -f -- \"$word\"))\n"
                   "        [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n"
                   "        ;;\n"
                   "    esac\n"
                   "}\n"
                   "complete -o filenames -F _weft weft\n");
}
