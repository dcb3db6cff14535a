/* Differences are collected first and judged at the end, so an error names all of them.
 *
 *     options_compare    each key, by its effect: refused, reported, idle (read only at the start), or none
 *     add_facts          what the run was trained on and how sums are ordered: compared by value, not by keys
 *     refuse_differences or OK; the caller writes what is reported to log and journal */
#include "train/changes.h"

#include <stdio.h>
#include <string.h>

/* With more than six it is probably another configuration file; the rest is counted. */
enum { MOST_NAMED = 6 };

/* By exact name: the name of a section does not count, so a key that is added to it later is not allowed in
 * advance. */
bool changes_allowed(const Config *c, const char *key) {
    for (size_t i = 0; i < c->run.allow_changes.count; i++)
        if (strcmp(c->run.allow_changes.items[i], key) == 0) return true;
    return false;
}

/* Differences found: those that are refused (the first MOST_NAMED of `count` are in the texts), those that
 * are reported, and those without effect. They end in an error, in log and journal, and in one line of the
 * log. */
typedef struct Differences {
    const Config *c;
    const OptionSet *then, *now;
    Text refused, keys, *message, *idle;
    int count;
    bool other_run;        /* at least one cannot be allowed */
    bool contents_unknown; /* an old checkpoint: contents are compared by the keys that name them */
    bool longer;           /* a finished run is given more steps */
} Differences;

/* Counts also those that are not written: the message ends with how many more there are. */
static void add_refused(Differences *d, const char *key, const char *was, const char *is) {
    if (d->count++ >= MOST_NAMED) return;
    text_printf(&d->refused, "%s%s was %s when the checkpoint was made and is %s now",
                d->refused.length ? "; " : "", key, was, is);
    text_printf(&d->keys, "%s%s", d->keys.length ? ", " : "", key);
}

static void add_said(Differences *d, const char *key, const char *was, const char *is, OptionEffect effect) {
    text_printf(d->message, "%s%s was %s and is %s now (%s)", d->message->length ? "; " : "", key, was, is,
                options_effect_name(effect));
}

/* The key under which a difference is reported: the one that `o` follows, if it followed it then and does
 * now. Someone who sets train.steps=2000 has changed lr_schedule.total_steps without naming it, and would not
 * know which key to allow. */
static const char *key_to_name(const Differences *d, const Option *o, const char *then) {
    Text led = {0};
    if (!o->follows || options_is_set(d->now, o->key)) return o->key;
    options_write_value(d->then, o->follows, &led);
    bool followed = strcmp(led.data, then) == 0;
    text_free(&led);
    return followed ? o->follows : o->key;
}

/* A run that has finished and is given more steps has no remaining curve that a longer schedule could change,
 * so it may continue with the longer schedule. */
static bool prolongs(const Differences *d, const char *name) {
    return d->longer && strcmp(name, "train.steps") == 0;
}

/* `name` is what run.allow_changes calls it. Values come from a file and a command line, so they are
 * escaped. */
static void add_difference(Differences *d, OptionEffect effect, const char *name, const char *then,
                           const char *now) {
    char was[160], is[160];
    error_escape(was, sizeof was, then, strlen(then));
    error_escape(is, sizeof is, now, strlen(now));
    switch (effect) {
    case EFFECT_UNKNOWN:
    case EFFECT_NOTHING: return;
    case EFFECT_CONTENT:
        if (d->contents_unknown) add_said(d, name, was, is, effect);
        return;
    case EFFECT_START: text_printf(d->idle, "%s%s", d->idle->length ? ", " : "", name); return;
    case EFFECT_MEASURES:
    case EFFECT_SUMS:
    case EFFECT_BITS: add_said(d, name, was, is, effect); return;
    case EFFECT_CURVE:
        if (changes_allowed(d->c, name) || prolongs(d, name))
            add_said(d, name, was, is, effect);
        else
            add_refused(d, name, was, is);
        return;
    case EFFECT_RUN:
        d->other_run = true;
        add_refused(d, name, was, is);
        return;
    }
}

/* Keys with the effect EFFECT_SUMS only determine how work is divided; the resulting order of sums is
 * compared as a fact (add_facts). */
static void add_key(void *differences, const Option *o, const char *then, const char *now) {
    Differences *d = differences;
    OptionEffect effect = options_difference(d->then, d->now, o);
    /* Read again, and compared by content (add_facts). */
    if (d->c->lora.rank > 0 && strcmp(o->key, "model.init") == 0) return;
    if (effect != EFFECT_SUMS) add_difference(d, effect, key_to_name(d, o, then), then, now);
}

/* A fact that an old checkpoint does not have is not compared. */
static void add_fact(Differences *d, const char *name, const char *then, const char *now) {
    if (*then && *now && strcmp(then, now) != 0) add_difference(d, EFFECT_SUMS, name, then, now);
}

/* Fingerprints are shortened to their first digits, enough to see that they differ. A file may hold any text
 * instead of one, and a character that is cut in half is escaped. */
enum { SHOWN = 12 };

static const char *first_digits(char out[4 * SHOWN + 1], const char *print) {
    return error_escape(out, 4 * SHOWN + 1, print, strnlen(print, SHOWN));
}

/* A tokenizer includes the tokens that begin and end its texts. Names the keys that changed; if none did, a
 * file next to the tokenizer changed, and names the keys that could restore the old tokens. */
static void add_token_keys(Differences *d) {
    static const char *const keys[] = {"tokenizer.pattern", "tokenizer.special", "tokenizer.bos",
                                       "tokenizer.eos"};
    int changed = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        Text then = {0}, now = {0};
        char was[160], is[160];
        options_write_value(d->then, keys[i], &then);
        options_write_value(d->now, keys[i], &now);
        if (strcmp(then.data, now.data) != 0)
            text_printf(&d->refused, "%s%s was %s and is %s now", changed++ ? ", " : ": ", keys[i],
                        error_escape(was, sizeof was, then.data, then.length),
                        error_escape(is, sizeof is, now.data, now.length));
        text_free(&then);
        text_free(&now);
    }
    if (changed == 0)
        text_puts(&d->refused, ": its entries are others, or the tokens that begin and end its texts, which "
                               "tokenizer.bos and tokenizer.eos set");
}

/* What was trained on; run.allow_changes uses `name` too. */
static void add_content(Differences *d, const char *name, const char *then, const char *now) {
    if (!*then || strcmp(then, now) == 0) return;
    if (changes_allowed(d->c, name)) {
        text_printf(d->message, "%sthe %s is not what it was (%s)", d->message->length ? "; " : "", name,
                    options_effect_name(EFFECT_CURVE));
    } else if (d->count++ < MOST_NAMED) {
        char was[4 * SHOWN + 1], is[4 * SHOWN + 1];
        text_printf(&d->refused, "%sthe %s is not what the checkpoint was trained with (%s, now %s)",
                    d->refused.length ? "; " : "", name, first_digits(was, then), first_digits(is, now));
        if (strcmp(name, "tokenizer") == 0) add_token_keys(d);
        text_printf(&d->keys, "%s%s", d->keys.length ? ", " : "", name);
    }
}

static void add_facts(Differences *d, const RunFacts *then, const RunFacts *now) {
    add_content(d, "data", then->data, now->data);
    add_content(d, "tokenizer", then->tokenizer, now->tokenizer);
    add_content(d, "base", then->base, now->base);
    add_content(d, "mixture", then->mixture, now->mixture);
    add_fact(d, "the order of sums", then->sums, now->sums);
    add_fact(d, "the kernels", then->kernels, now->kernels);
    add_fact(d, "the build", then->build, now->build);
}

/* A difference that makes it another run cannot be allowed, so that message does not offer
 * run.allow_changes. */
static ErrorCode refuse_differences(const Differences *d, Error *err) {
    char more[32] = "";
    const char *it = d->count == 1 ? "it" : "them";
    if (d->count > MOST_NAMED) snprintf(more, sizeof more, "; and %d more", d->count - MOST_NAMED);
    if (d->other_run)
        return error_set(err, ERR_CONFIG,
                         "%s%s, which is another run: put %s back, or start over with run.overwrite=true",
                         d->refused.data, more, it);
    return error_set(
        err, ERR_CONFIG,
        "%s%s, which would change the curve: put %s back, or set run.allow_changes=[%s], or start over with "
        "run.overwrite=true",
        d->refused.data, more, it, d->keys.data);
}

/* Keys in the checkpoint that this version does not know may have changed the curve. They are refused unless
 * run.allow_changes names "unknown", and reported if it does. */
static ErrorCode check_unknown(const Text *unknown, const Config *c, Text *message, Error *err) {
    if (unknown->length == 0) return OK;
    if (!changes_allowed(c, "unknown"))
        return error_set(err, ERR_CONFIG,
                         "the checkpoint has keys that this weft does not know, which may change the curve: "
                         "%s; go on with the weft that wrote it, or set run.allow_changes=[unknown], or "
                         "start over with run.overwrite=true",
                         unknown->data);
    text_printf(message, "%skeys that this weft does not know are dropped: %s (%s)",
                message->length ? "; " : "", unknown->data, options_effect_name(EFFECT_CURVE));
    return OK;
}

/* Appends to `message` and `idle` also when it fails. */
ErrorCode changes_check(const SavedRun *saved, const Config *c, const OptionSet *set, const RunFacts *facts,
                        Text *message, Text *idle, Error *err) {
    Differences d = {.c = c, .then = &saved->set, .now = set, .message = message, .idle = idle};
    d.contents_unknown = !*saved->facts.mixture;
    d.longer = saved->state.step >= saved->config.train.steps && c->train.steps > saved->config.train.steps;
    TRY(check_unknown(&saved->set.unknown, c, message, err));
    options_compare(&saved->set, set, add_key, &d);
    add_facts(&d, &saved->facts, facts);
    ErrorCode code = d.count > 0 ? refuse_differences(&d, err) : OK;
    text_free(&d.refused);
    text_free(&d.keys);
    return code;
}
