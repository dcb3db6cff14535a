/* Chat templates: the Jinja that the `chat_template` of a tokenizer is written in, as transformers runs it
 * (trim_blocks and lstrip_blocks on, {% break %}, {% continue %} and {% generation %} known).
 *
 * It is a subset: what templates of published models use. A statement, filter, test, function or method
 * outside of it is refused when the template is parsed, by name and line, whether or not a conversation would
 * come to it. What is run gives the bytes that Jinja gives, or an error with the line;
 * docs/use/chat-templates.md lists what is there and the few places where weft stops and Jinja would go on.
 *
 * A template is somebody's file: its work and memory are bounded, whatever it says. */
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

/* `where` names the source in errors. ERR_DATA for what is no template, or none that weft runs. */
ErrorCode template_parse(Template **t, const char *where, const char *text, size_t length, Error *err);
void template_free(Template *t); /* NULL is fine */
/* Whether it says itself what the assistant wrote, by {% generation %}. */
bool template_marks_assistant(const Template *t);

/* Appends what the template makes of the members of the object `variables`. `date` is "YYYY-MM-DD" for
 * strftime_now; NULL: that function is not defined. `answers`, unless NULL, gets the runs of `out` within
 * {% generation %}, ascending. After an error, what was rendered so far stays in `out`. */
ErrorCode template_render(const Template *t, const cJSON *variables, const char *date, Text *out,
                          TemplateSpans *answers, Error *err);

/* Renderings of one conversation as it grows, whose cost is that of what is added, not that of the whole: a
 * loop over messages goes on where it stood, unless the template looked at how many there are before. Each
 * gives the bytes that template_render gives.
 *
 * `variables` are as there, with all messages under "messages"; their texts must outlive the growth. */
typedef struct TemplateGrowth TemplateGrowth;
TemplateGrowth *template_growth_open(const Template *t, const cJSON *variables, const char *date);
void template_growth_close(TemplateGrowth *g); /* NULL is fine */
/* Of the first `count` messages, no fewer than the time before; `prompt` is add_generation_prompt. The text
 * is the growth's, up to the next call. */
ErrorCode template_growth_render(TemplateGrowth *g, size_t count, bool prompt, const Text **out, Error *err);
/* So many bytes of the text are those of all later ones too. */
size_t template_growth_kept(const TemplateGrowth *g);

#endif
