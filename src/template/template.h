/* Chat templates: the Jinja of a tokenizer's `chat_template`, as transformers runs it (trim_blocks and
 * lstrip_blocks on; {% break %}, {% continue %} and {% generation %} supported).
 *
 * It is the subset that templates of published models use. A statement, filter, test, function or method
 * outside of it is refused when the template is parsed, by name and line, even if no conversation would reach
 * it. Rendering gives Jinja's bytes, or an error with the line. docs/use/chat-templates.md lists what is
 * supported and the few cases where weft stops and Jinja would continue.
 *
 * Templates are not trusted: their work and memory are bounded. */
#ifndef WEFT_TEMPLATE_TEMPLATE_H
#define WEFT_TEMPLATE_TEMPLATE_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/text.h"

typedef struct Template Template; /* constant once parsed: any number of threads may render it */

/* A run of rendered bytes. */
typedef struct TemplateSpan {
    size_t begin, end;
} TemplateSpan;

typedef struct TemplateSpans {
    TemplateSpan *items;
    size_t count, capacity;
} TemplateSpans;
void template_spans_add(TemplateSpans *s, TemplateSpan span);
void template_spans_free(TemplateSpans *s);

/* `where` names the source in errors. ERR_DATA for text that is not a template, or not one that weft
 * supports. */
ErrorCode template_parse(Template **t, const char *where, const char *text, size_t length, Error *err);
void template_free(Template *t); /* NULL is fine */
/* Whether it marks assistant turns itself, by {% generation %}. */
bool template_marks_assistant(const Template *t);

/* Appends the rendering of the template with the members of the object `variables`. `date` is "YYYY-MM-DD"
 * for strftime_now; NULL: that function is undefined. `answers`, unless NULL, gets the byte ranges of `out`
 * within {% generation %}, ascending. After an error, the partial rendering stays in `out`. */
ErrorCode template_render(const Template *t, const cJSON *variables, const char *date, Text *out,
                          TemplateSpans *answers, Error *err);

/* Incremental rendering of a growing conversation. The cost is that of the added messages, not of the whole:
 * a loop over messages resumes where it stopped, unless the template looked at the number of messages before.
 * Each rendering has the bytes that template_render gives.
 *
 * `variables` are as for template_render, with all messages under "messages"; their texts must outlive the
 * growth. */
typedef struct TemplateGrowth TemplateGrowth;
TemplateGrowth *template_growth_open(const Template *t, const cJSON *variables, const char *date);
void template_growth_close(TemplateGrowth *g); /* NULL is fine */
/* Renders the first `count` messages, at least as many as in the previous call; `prompt` is
 * add_generation_prompt. The growth owns the text, which is valid until the next call. */
ErrorCode template_growth_render(TemplateGrowth *g, size_t count, bool prompt, const Text **out, Error *err);
/* Number of leading bytes of the text that all later renderings share. */
size_t template_growth_kept(const TemplateGrowth *g);

#endif
