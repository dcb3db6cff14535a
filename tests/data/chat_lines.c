/* Renders and encodes chat templates and conversations, for the test against transformers. Each input is a
 * line of standard input.
 *
 *     chat_lines render                    {"template": , "variables": } -> {"text": } or {"error": }
 *     chat_lines encode TOKENIZER LEARN    a conversation -> {"documents": [{"ids": , "learned": }]} */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/chat.h"
#include "template/template.h"

static ErrorCode render(const cJSON *line, Text *out, Error *err) {
    const cJSON *text = cJSON_GetObjectItemCaseSensitive(line, "template"),
                *variables = cJSON_GetObjectItemCaseSensitive(line, "variables");
    Template *t;
    TRY(template_parse(&t, "template", text->valuestring, strlen(text->valuestring), err));
    ErrorCode code = template_render(t, variables, "2025-01-31", out, NULL, err);
    template_free(t);
    return code;
}

static void print_render(const char *line, size_t length) {
    Error err = {.message = ""};
    Text text = {0}, out = {0};
    cJSON *root;
    JsonWriter w;
    json_start(&w, &out, 0);
    json_begin_object(&w);
    const JsonPlace place = {.where = "stdin", .line = 1};
    ErrorCode code = json_parse_literals(place, line, length, &root, &err);
    if (code == OK) code = render(root, &text, &err);
    if (code == OK)
        json_put_bytes(&w, "text", text.data ? text.data : "", text.length);
    else
        json_put_string(&w, "error", err.message);
    json_end_object(&w);
    puts(out.data);
    cJSON_Delete(root);
    text_free(&text);
    text_free(&out);
}

static void print_document(JsonWriter *w, const TokenList *ids, uint64_t from, uint64_t to,
                           int32_t vocabulary) {
    json_begin_object(w);
    json_key(w, "ids");
    json_begin_array(w);
    for (uint64_t i = from; i < to; i++) json_int(w, ids->ids[i] % vocabulary);
    json_end_array(w);
    json_key(w, "learned");
    json_begin_array(w);
    for (uint64_t i = from; i < to; i++) json_int(w, ids->ids[i] >= vocabulary);
    json_end_array(w);
    json_end_object(w);
}

static ErrorCode print_documents(const Chat *c, const Tokenizer *t, const char *line, size_t length,
                                 Error *err) {
    TokenList ids = {0};
    DocumentEnds ends = {0};
    uint64_t bytes = 0;
    Text out = {0};
    JsonWriter w;
    TRY(chat_encode_line(c, &(ChatLine){.where = "stdin", .number = 1}, line, length, &ids, &ends, &bytes,
                         err));
    json_start(&w, &out, 0);
    json_begin_object(&w);
    json_key(&w, "documents");
    json_begin_array(&w);
    for (size_t i = 0; i < ends.count; i++)
        print_document(&w, &ids, i ? ends.ends[i - 1] : 0, ends.ends[i], tokenizer_vocab_size(t));
    json_end_array(&w);
    json_end_object(&w);
    puts(out.data);
    text_free(&out);
    token_list_free(&ids);
    free(ends.ends);
    return OK;
}

static ChatLossOn loss_on_of(const char *name) {
    return strcmp(name, "last") == 0  ? LOSS_ON_LAST
           : strcmp(name, "all") == 0 ? LOSS_ON_ALL
                                      : LOSS_ON_ASSISTANT;
}

static ErrorCode run(int argc, char **argv, Error *err) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    Tokenizer *t = NULL;
    Chat *c = NULL;
    if (argc > 3) {
        TRY(tokenizer_open(&t, argv[2], err));
        ChatOptions options = {.tokenizer = argv[2], .date = "2025-01-31", .loss_on = loss_on_of(argv[3])};
        TRY(chat_open(&c, &options, t, err));
    }
    ErrorCode code = OK;
    while (code == OK && (length = getline(&line, &capacity, stdin)) > 0) {
        if (c)
            code = print_documents(c, t, line, (size_t)length, err);
        else
            print_render(line, (size_t)length);
    }
    free(line);
    chat_close(c);
    tokenizer_free(t);
    return code;
}

int main(int argc, char **argv) {
    Error err = {.message = ""};
    ErrorCode code = run(argc, argv, &err);
    if (code != OK) fprintf(stderr, "%s\n", err.message);
    return code;
}
