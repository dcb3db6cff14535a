/* Fuzzes a chat template: it is refused with a message, or renders the same twice; every rendering ends. */
#include <string.h>

#include "base/json.h"
#include "template/template.h"
#include "fuzz.h"

static const char variables[] =
    "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"add_generation_prompt\": true, \"tools\": null,"
    " \"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \" "
    "\\u00fc <x> \\n\"},"
    " {\"role\": \"assistant\", \"content\": \"a</think>b\", \"n\": [1, -2.5, true, {\"k\": \"v\"}]}]}";

static bool render(const Template *t, const cJSON *root, Text *out, TemplateSpans *spans) {
    Error err = {0};
    return fuzz_ok(template_render(t, root, "2025-01-31", out, spans, &err), &err);
}

static void check_spans(const TemplateSpans *s, const Text *out) {
    size_t at = 0;
    for (size_t i = 0; i < s->count; i++) {
        REQUIRE(s->items[i].begin < s->items[i].end && s->items[i].end <= out->length);
        /* A nested one comes first and ends within the outer one. */
        REQUIRE(s->items[i].end >= at);
        at = s->items[i].end;
    }
}

/* Compares rendering message by message with separate renderings. */
static void check_growth(const Template *t, const cJSON *root) {
    TemplateGrowth *g = template_growth_open(t, root, "2025-01-31");
    for (int i = 0; i < 8; i++) {
        cJSON *some = cJSON_Duplicate(root, true), *messages = cJSON_GetObjectItem(some, "messages");
        while (cJSON_GetArraySize(messages) > i / 2) cJSON_DeleteItemFromArray(messages, i / 2);
        cJSON_ReplaceItemInObject(some, "add_generation_prompt", cJSON_CreateBool(i % 2));
        Text alone = {0};
        const Text *grown;
        Error err = {0};
        /* Work is bounded per rendering; an incremental one does only a part of a separate one. */
        bool good = render(t, some, &alone, NULL),
             grew = fuzz_ok(template_growth_render(g, (size_t)i / 2, i % 2, &grown, &err), &err);
        REQUIRE(grew || !good);
        if (good) REQUIRE(grown->length == alone.length);
        if (good && alone.length) REQUIRE(memcmp(grown->data, alone.data, alone.length) == 0);
        text_free(&alone);
        cJSON_Delete(some);
    }
    template_growth_close(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error err = {0};
    Template *t = NULL;
    cJSON *root = NULL;
    Text first = {0}, second = {0};
    TemplateSpans spans = {0};
    if (!fuzz_ok(template_parse(&t, "template", (const char *)data, size, &err), &err)) {
        REQUIRE(t == NULL);
        return 0;
    }
    REQUIRE(json_parse("variables", variables, strlen(variables), &root, &err) == OK);
    bool good = render(t, root, &first, &spans);
    REQUIRE(render(t, root, &second, NULL) == good);
    REQUIRE(first.length == second.length &&
            (first.length == 0 || memcmp(first.data, second.data, first.length) == 0));
    if (good) check_spans(&spans, &first);
    check_growth(t, root);
    template_spans_free(&spans);
    text_free(&first);
    text_free(&second);
    cJSON_Delete(root);
    template_free(t);
    return 0;
}
