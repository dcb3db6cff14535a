/* Conversations: which tokens are trained on, exactly; special tokens in messages; packed rows. */
#include "support/bytes_tokenizer.h"

#include "data/dataset.h"
#include "data/packing.h"

/* In the style of Llama 3, with the two special tokens of the byte tokenizer. */
#define HEAD "{% for m in messages %}{{ bos_token + m.role + ':\\n' }}"
#define TAIL "{% endfor %}{% if add_generation_prompt %}{{ bos_token + 'assistant:\\n' }}{% endif %}"
static const char plain[] = HEAD "{{ m.content + eos_token + '\\n' }}" TAIL;
static const char marked[] =
    HEAD "{% if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}"
         "{% endgeneration %}{{ '\\n' }}{% else %}{{ m.content + eos_token + '\\n' }}{% endif %}" TAIL;
/* Only the last answer shows its reasoning. */
static const char rewriting[] =
    HEAD "{{ ('<hm>' if loop.last and m.role == 'assistant' else '') + m.content + eos_token }}" TAIL;

typedef struct Ids {
    TokenList ids;
    DocumentEnds ends;
} Ids;

static ChatForm form;   /* of lines; AUTO unless a test sets it */
static const char *key; /* likewise NULL */

static ErrorCode encode(const char *template, ChatLossOn loss_on, const char *line, Ids *out, Error *err) {
    Chat *c;
    uint64_t bytes = 0;
    ChatOptions o = {.tokenizer = "bytes", .template = files_text("t.jinja", template), .loss_on = loss_on};
    *out = (Ids){0};
    *err = (Error){0};
    TRY(chat_open(&c, &o, tokenizer, err));
    const ChatLine at = {.where = "a.jsonl", .number = 7, .form = form, .key = key};
    ErrorCode code = chat_encode_line(c, &at, line, strlen(line), &out->ids, &out->ends, &bytes, err);
    chat_close(c);
    return code;
}

static void free_ids(Ids *i) {
    token_list_free(&i->ids);
    free(i->ends.ends);
}

/* Compares the documents as text: B and E for the special tokens, trained tokens in brackets, a bar after
 * each document. */
static void expect(const char *template, ChatLossOn loss_on, const char *line, const char *wanted) {
    Ids got;
    Error err;
    Text shown = {0};
    if (encode(template, loss_on, line, &got, &err) != OK) fail_msg("%s", err.message);
    bool inside = false;
    for (size_t i = 0, document = 0; i < got.ids.count; i++) {
        int32_t id = got.ids.ids[i] % VOCABULARY;
        bool trained = got.ids.ids[i] >= VOCABULARY;
        if (trained != inside) text_puts(&shown, trained ? "[" : "]");
        inside = trained;
        char c = id == BOS ? 'B' : id == EOS ? 'E' : (char)id;
        text_add(&shown, &c, 1);
        if (i + 1 < got.ends.ends[document]) continue;
        text_puts(&shown, inside ? "]|" : "|");
        inside = false;
        document++;
    }
    assert_string_equal(shown.data, wanted);
    text_free(&shown);
    free_ids(&got);
}

#define TWO                                                                                                 \
    "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"q\"}," \
    " {\"role\": \"assistant\", \"content\": \" a\\n\"}, {\"role\": \"user\", \"content\": \"r\"},"         \
    " {\"role\": \"assistant\", \"content\": \"b\"}, {\"role\": \"user\", \"content\": \"never "            \
    "answered\"}]}"

/* Answers include their end of turn, but not the newline after it; white space within an answer belongs to
 * it. */
static void test_borders(void **state) {
    (void)state;
    expect(plain, LOSS_ON_ASSISTANT, TWO,
           "Bsystem:\nsE\nBuser:\nqE\nBassistant:\n[ a\nE]\nBuser:\nrE\nBassistant:\n[bE]\n|");
    expect(plain, LOSS_ON_LAST, TWO,
           "Bsystem:\nsE\nBuser:\nqE\nBassistant:\n a\nE\nBuser:\nrE\nBassistant:\n[bE]\n|");
    expect(marked, LOSS_ON_ASSISTANT, TWO,
           "Bsystem:\nsE\nBuser:\nqE\nBassistant:\n[ a\nE]\nBuser:\nrE\nBassistant:\n[bE]\nBuser:\nnever "
           "answeredE\n|");
    expect(marked, LOSS_ON_LAST, TWO,
           "Bsystem:\nsE\nBuser:\nqE\nBassistant:\n a\nE\nBuser:\nrE\nBassistant:\n[bE]\nBuser:\nnever "
           "answeredE\n|");
    expect(plain, LOSS_ON_ALL, "{\"prompt\": \"q\", \"completion\": \"a\"}",
           "[Buser:\nqE\nBassistant:\naE\n]|");
}

static void test_prompt_and_completion(void **state) {
    (void)state;
    const char *lists = "{\"prompt\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
                        "\"content\": \"shown\"},"
                        " {\"role\": \"user\", \"content\": \"r\"}], \"completion\": [{\"role\": "
                        "\"assistant\", \"content\": \"a\"}]}";
    expect(plain, LOSS_ON_ASSISTANT, "{\"prompt\": \"q\", \"completion\": \"a\"}",
           "Buser:\nqE\nBassistant:\n[aE]\n|");
    expect(plain, LOSS_ON_ASSISTANT, lists,
           "Buser:\nqE\nBassistant:\nshownE\nBuser:\nrE\nBassistant:\n[aE]\n|");
    expect(marked, LOSS_ON_ASSISTANT, lists,
           "Buser:\nqE\nBassistant:\nshownE\nBuser:\nrE\nBassistant:\n[aE]\n|");
}

/* A template that changes the past: each answer is trained on in the context that the model will see. */
static void test_rewriting(void **state) {
    (void)state;
    expect(rewriting, LOSS_ON_ASSISTANT, TWO,
           "Bsystem:\nsEBuser:\nqEBassistant:\n[<hm> a\nE]|Bsystem:\nsEBuser:\nqEBassistant:\n "
           "a\nEBuser:\nrEBassistant:\n[<hm>bE]|");
}

/* No message can write a special token; its spelling stays, byte for byte. */
static void test_special_text(void **state) {
    (void)state;
    expect(plain, LOSS_ON_ASSISTANT,
           "{\"prompt\": \"<|end_of_text|>\", \"completion\": \"x<|begin_of_text|>\"}",
           "Buser:\n<|end_of_text|>E\nBassistant:\n[x<|begin_of_text|>E]\n|");
}

/* The forms of other programs become the same messages. */
static void test_forms(void **state) {
    (void)state;
    static const char two[] = "Bsystem:\nsE\nBuser:\nqE\nBassistant:\n[aE]\n|";
    expect(plain, LOSS_ON_ASSISTANT,
           "{\"id\": 1, \"conversations\": [{\"from\": \"system\", \"value\": \"s\"}, {\"from\": \"human\", "
           "\"value\": \"q\"}, {\"from\": \"gpt\", \"value\": \"a\", \"weight\": null}]}",
           two);
    expect(plain, LOSS_ON_ASSISTANT,
           "{\"conversation\": [{\"from\": \"user\", \"value\": \"q\"}, {\"from\": \"model\", \"value\": "
           "\"a\"}], \"system\": \"s\", \"tools\": \"\"}",
           two);
    expect(plain, LOSS_ON_ASSISTANT,
           "{\"messages\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"gpt\", \"value\": \"a\"}], "
           "\"system\": \"s\"}",
           two);
    expect(
        plain, LOSS_ON_ASSISTANT,
        "{\"conversations\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": "
        "\"q\"}, {\"role\": \"assistant\", \"content\": \"a\"}]}",
        two);
    expect(plain, LOSS_ON_ASSISTANT,
           "{\"instruction\": \"q\", \"input\": \"\", \"output\": \"a\", \"system\": \"s\"}", two);
    expect(plain, LOSS_ON_ASSISTANT, "{\"instruction\": \"q\", \"input\": \"i\", \"output\": \"a\"}",
           "Buser:\nq\niE\nBassistant:\n[aE]\n|");
    expect(plain, LOSS_ON_ASSISTANT, "{\"instruction\": \"\", \"input\": \"i\", \"output\": \"a\"}",
           "Buser:\niE\nBassistant:\n[aE]\n|");
    expect(plain, LOSS_ON_ASSISTANT,
           "{\"instruction\": \"r\", \"output\": \"b\", \"history\": [[\"q\", \"a\"]], \"input\": null}",
           "Buser:\nqE\nBassistant:\n[aE]\nBuser:\nrE\nBassistant:\n[bE]\n|");
    expect(plain, LOSS_ON_ASSISTANT,
           "{\"messages\": null, \"prompt\": \"q\", \"completion\": \"a\", \"text\": \"x\"}",
           "Buser:\nqE\nBassistant:\n[aE]\n|");
}

/* A call of LLaMA-Factory is text of JSON, as its tools are. */
static void test_shared_calls(void **state) {
    (void)state;
    static const char calls[] =
        "{{ tools|length if tools else '' }}" HEAD "{{ m.content }}{% for c in m.tool_calls or [] %}{{ "
        "c|tojson }}{% endfor %}{{ eos_token }}" TAIL;
    expect(calls, LOSS_ON_ASSISTANT,
           "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"function_call\", "
           "\"value\": \"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"x\\\": 1.50}}\"}, {\"from\": "
           "\"observation\", \"value\": \"o\"}, {\"from\": \"gpt\", \"value\": \"a\"}], \"tools\": "
           "\"[{\\\"name\\\": \\\"f\\\"}]\"}",
           "1Buser:\nqEBassistant:\n[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
           "{\"x\": 1.5}}}E]Btool:\noEBassistant:\n[aE]|");
}

/* Numbers of a tool call keep their spelling, by Python's rules; null members are dropped, and reasoning gets
 * the names that templates read. */
static void test_members(void **state) {
    (void)state;
    static const char calls[] =
        HEAD "{{ m.content|default('none') }}{{ m.reasoning_content }}{{ m.thinking }}"
             "{% for c in m.tool_calls or [] %}{{ c|tojson }}{% endfor %}{{ eos_token }}" TAIL;
    expect(
        calls, LOSS_ON_LAST,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": "
        "null, "
        "\"reasoning\": \"r\", \"tool_calls\": [{\"id\": 1234567890123456789, \"x\": 100.0, \"y\": 1e5}]}]}",
        "Buser:\nqEBassistant:\n[nonerr{\"id\": 1234567890123456789, \"x\": 100.0, \"y\": 100000.0}E]|");
}

static void refuse(const char *template, const char *line, const char *wanted) {
    Ids got;
    Error err;
    assert_int_equal(encode(template, LOSS_ON_ASSISTANT, line, &got, &err), ERR_DATA);
    if (!strstr(err.message, wanted) || !strstr(err.message, "a.jsonl:7")) fail_msg("%s", err.message);
    free_ids(&got);
}

#define WEIGHTED(first, second)                                                                         \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": " \
    "\"a\"" first                                                                                       \
    "}, {\"role\": \"user\", \"content\": \"r\"}, {\"role\": \"assistant\", \"content\": \"b\"" second "}]}"
#define NOT_LEARNED ", \"weight\": 0"

/* An answer of weight 0 is context, with either kind of template. */
static void test_weights(void **state) {
    (void)state;
    Ids got;
    Error err;
    expect(plain, LOSS_ON_ASSISTANT, WEIGHTED(NOT_LEARNED, ", \"weight\": 1"),
           "Buser:\nqE\nBassistant:\naE\nBuser:\nrE\nBassistant:\n[bE]\n|");
    expect(plain, LOSS_ON_ASSISTANT, WEIGHTED("", NOT_LEARNED), "Buser:\nqE\nBassistant:\n[aE]\n|");
    expect(plain, LOSS_ON_LAST, WEIGHTED("", NOT_LEARNED), "Buser:\nqE\nBassistant:\n[aE]\n|");
    expect(marked, LOSS_ON_ASSISTANT, WEIGHTED(NOT_LEARNED, ""),
           "Buser:\nqE\nBassistant:\naE\nBuser:\nrE\nBassistant:\n[bE]\n|");
    for (int last = 0; last < 2; last++)
        expect(marked, last ? LOSS_ON_LAST : LOSS_ON_ASSISTANT, WEIGHTED(", \"weight\": 1.0", NOT_LEARNED),
               "Buser:\nqE\nBassistant:\n[aE]\nBuser:\nrE\nBassistant:\nbE\n|");
    expect(
        plain, LOSS_ON_ASSISTANT,
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"gpt\", \"value\": \"a\","
        " \"weight\": 0}, {\"from\": \"human\", \"value\": \"r\"}, {\"from\": \"gpt\", \"value\": \"b\"}]}",
        "Buser:\nqE\nBassistant:\naE\nBuser:\nrE\nBassistant:\n[bE]\n|");
    refuse(plain, WEIGHTED(NOT_LEARNED, NOT_LEARNED), "all of its answers have weight 0");
    refuse(plain, WEIGHTED("", ", \"weight\": 0.5"), "message 4 has a \"weight\" that is neither 0");
    assert_int_equal(encode(plain, LOSS_ON_ALL, WEIGHTED(NOT_LEARNED, ""), &got, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "data.chat_loss_on is all"));
    free_ids(&got);
}

static void test_refusals(void **state) {
    (void)state;
    refuse(plain, "{\"text\": \"x\"}", "\"messages\"");
    refuse(plain, "[1]", "JSON object");
    refuse(plain, "{\"messages\": []}", "no messages");
    refuse(plain,
           "{\"messages\": [{\"role\": \"human\", \"content\": \"q\"}, {\"role\": \"gpt\", \"content\": "
           "\"a\"}]}",
           "found \"human\", \"gpt\"");
    refuse(plain,
           "{\"messages\": [{\"role\": \"assistant\", \"content\": \"q\"}, {\"role\": \"asistant\", "
           "\"content\": "
           "\"a\"}]}",
           "message 2 has the role \"asistant\": expected \"assistant\"");
    refuse(plain, "{\"messages\": [{\"content\": \"x\"}]}", "message 1");
    refuse(plain, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}", "nothing to train on");
    refuse(plain, "{\"prompt\": \"a\", \"completion\": \"c\", \"chat_template_kwargs\": [1]}",
           "must be an object");
    refuse(plain, "{\"prompt\": \"a\\u0000b\", \"completion\": \"c\"}", "0000");
    refuse(plain, "{\"messages\": [{\"role\": \"assistant\", \"content\": null}]}", "'content' is undefined");
    refuse("{{ 'p' if add_generation_prompt else 'q' }}", "{\"prompt\": \"a\", \"completion\": \"c\"}",
           "does not begin with the prompt");
}

static void refuse_as(ChatForm named, const char *line, const char *wanted) {
    form = named;
    refuse(plain, line, wanted);
    form = CHAT_AUTO;
}

static void test_refused_forms(void **state) {
    (void)state;
    static const char shared[] = "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": "
                                 "\"narrator\", \"value\": \"a\"}]}",
                      both[] = "{\"instruction\": \"q\", \"output\": \"a\", \"prompt\": \"p\", "
                               "\"completion\": \"c\"}";
    refuse(plain, shared, "message 2 is from \"narrator\": expected human, user, gpt");
    refuse(plain, both, "it has \"instruction\" and \"prompt\", which belong to two forms");
    refuse(plain, "{\"id\": 1, \"body\": \"x\"}", "no conversation: it has id, body; expected");
    refuse(plain, "{\"instruction\": 1, \"output\": \"a\"}", "\"instruction\" is no text");
    refuse(plain, "{\"instruction\": \"q\", \"output\": \"a\", \"history\": [[\"q\"]]}", "no pair of texts");
    refuse(plain, "{\"conversations\": [{\"from\": \"human\"}]}", "message 1 has no \"from\" and \"value\"");
    refuse(plain, "{\"conversations\": \"x\"}", "\"conversations\" is no list of messages");
    refuse_as(CHAT_ALPACA, "{\"prompt\": \"p\", \"completion\": \"c\"}",
              "no conversation: it has prompt, completion");
    refuse_as(CHAT_MESSAGES, shared, "message 1 is no object with a role");
    refuse_as(CHAT_SHAREGPT, TWO, "message 1 has no \"from\"");
    form = CHAT_PROMPT_COMPLETION;
    expect(plain, LOSS_ON_ASSISTANT, both, "Buser:\npE\nBassistant:\n[cE]\n|");
    form = CHAT_AUTO;
}

#define LISTS                                                                                               \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": "     \
    "\"a\"}], "                                                                                             \
    "\"conversations\": [{\"from\": \"human\", \"value\": \"r\"}, {\"from\": \"gpt\", \"value\": \"b\"}], " \
    "\"conversation\": [{\"from\": \"human\", \"value\": \"s\"}, {\"from\": \"gpt\", \"value\": \"c\"}]}"

/* Of two forms in a line, the source names one by the form or by the member. */
static void test_two_forms(void **state) {
    (void)state;
    refuse(plain, LISTS, "\"messages\" and \"conversations\", which belong to two forms");
    refuse_as(CHAT_SHAREGPT, LISTS, "two lists of messages: name one with `key` in the source");
    refuse_as(
        CHAT_ALPACA, LISTS,
        "expected \"instruction\" and \"output\", by chat_format: alpaca; without it, every form is read");
    form = CHAT_MESSAGES;
    expect(plain, LOSS_ON_ASSISTANT, LISTS, "Buser:\nqE\nBassistant:\n[aE]\n|");
    form = CHAT_AUTO;
    key = "conversation";
    expect(plain, LOSS_ON_ASSISTANT, LISTS, "Buser:\nsE\nBassistant:\n[cE]\n|");
    key = NULL;
}

/* Rejected answers must not be learned in silence, unless the source says what it wants. */
static void test_preferences(void **state) {
    (void)state;
    static const char *const pairs[] = {
        "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}], \"chosen\": \"a\", \"rejected\": \"b\"}",
        "{\"prompt\": \"q\", \"completion\": \"a\", \"chosen\": \"x\"}",
        "{\"instruction\": \"q\", \"output\": \"a\", \"rejected\": [\"b\"]}",
        "{\"prompt\": \"q\", \"completion\": \"a\", \"label\": false}",
        "{\"instruction\": \"q\", \"output\": \"a\", \"kto_tag\": true}"};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        refuse(plain, pairs[i], "stands for preferences (DPO, KTO), which weft does not train on");
    refuse(plain, pairs[0], "write them as messages");
    refuse(plain, pairs[4], "\"label\" stands for preferences");
    refuse(plain, pairs[4], "give the source chat_format: prompt_completion");
    static const char answer[] = "Buser:\nqE\nBassistant:\n[aE]\n|";
    expect(plain, LOSS_ON_ASSISTANT,
           "{\"instruction\": \"q\", \"output\": \"a\", \"label\": 1, \"chosen\": null}", answer);
    form = CHAT_PROMPT_COMPLETION;
    expect(plain, LOSS_ON_ASSISTANT, pairs[2], answer);
    expect(plain, LOSS_ON_ASSISTANT, pairs[4], answer);
    form = CHAT_AUTO;
    key = "chosen";
    expect(plain, LOSS_ON_ASSISTANT,
           "{\"chosen\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": "
           "\"a\"}], "
           "\"rejected\": [], \"prompt\": \"q\"}",
           answer);
    key = NULL;
}

/* Positions are those of the line, or of a text in it, which is named. */
static void test_json_in_json(void **state) {
    (void)state;
    refuse(plain, "{\"messages\": [}", "a.jsonl:7:15: expected a value");
    refuse(plain,
           "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"gpt\", \"value\": "
           "\"a\"}], "
           "\"tools\": \"[{not\"}",
           "a.jsonl:7: the text of \"tools\" is no JSON: 1:3: expected a key");
    refuse(plain,
           "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"function_call\", "
           "\"value\": \"not\"}]}",
           "a.jsonl:7: the text of message 2 (function_call) is no JSON: 1:1: expected a value");
}

/* generate feeds exactly what preceded the answer in training, and stops where answers end. */
static void test_prompt(void **state) {
    (void)state;
    Chat *c;
    Error err = {0};
    TokenList ids = {0};
    Ids trained;
    ChatOptions o = {.tokenizer = "bytes", .template = files_text("t.jinja", plain)};
    assert_int_equal(chat_open(&c, &o, tokenizer, &err), OK);
    assert_int_equal(chat_end_token(c), EOS);
    cJSON *messages = cJSON_Parse("[{\"role\": \"user\", \"content\": \"q\"}]");
    assert_int_equal(chat_prompt(c, "here", messages, &ids, &err), OK);
    cJSON_Delete(messages);
    assert_int_equal(
        encode(plain, LOSS_ON_ASSISTANT, "{\"prompt\": \"q\", \"completion\": \"a\"}", &trained, &err), OK);
    assert_memory_equal(ids.ids, trained.ids.ids, ids.count * sizeof *ids.ids);
    assert_true(trained.ids.ids[ids.count] == 'a' + VOCABULARY);
    token_list_free(&ids);
    free_ids(&trained);
    chat_close(c);
}

/* ---- rows ---- */

enum { CONTEXT = 64, LINES = 40 };

/* Length of the text that "%0*d" prints. */
static int width_of(int width, int number) {
    char text[300];
    return snprintf(text, sizeof text, "%0*d", width, number);
}

/* Answers of many lengths; two exceed the context, one of these without anything to train on. */
static const char *lines_file(void) {
    Text t = {0};
    for (int i = 0; i < LINES; i++) {
        int prompt = i == 5 ? 200 : 1 + i % 7, answer = i == 9 ? 200 : 1 + i * 7 % 23;
        text_printf(&t, "{\"prompt\": \"%0*d\", \"completion\": \"%0*d\"}\n", prompt, i, answer, i);
    }
    const char *path = files_write("chat.jsonl", t.data, t.length);
    text_free(&t);
    return path;
}

static DataConfig config_of(DataSource *source, ChatLossOn loss_on) {
    static char cache[512], template[512];
    snprintf(cache, sizeof cache, "%s", files_path("cache"));
    snprintf(template, sizeof template, "%s", files_text("t.jinja", plain));
    return (DataConfig){.sources = {1, (char *)source},
                        .tokenizer = (char *)(uintptr_t) "bytes",
                        .cache_dir = cache,
                        .chat_template = template,
                        .chat_loss_on = loss_on,
                        .seed = 1};
}

typedef struct Rows {
    int32_t inputs[CONTEXT], targets[CONTEXT], positions[CONTEXT], first_key[CONTEXT];
} Rows;

/* Each target is the token after its input, and belongs to an answer; runs attend only to themselves. */
static int64_t check_row(const Rows *r) {
    int64_t trained = 0;
    for (int t = 0; t < CONTEXT; t++) {
        int run = r->first_key[t] - 1000;
        assert_int_equal(r->positions[t], t - run);
        assert_true(run == t || r->first_key[t - 1] == r->first_key[t]);
        bool next_inside = t + 1 < CONTEXT && r->first_key[t + 1] == r->first_key[t];
        if (r->targets[t] >= 0 && next_inside) assert_int_equal(r->targets[t], r->inputs[t + 1]);
        assert_true(r->targets[t] < VOCABULARY && r->inputs[t] < VOCABULARY);
        trained += r->targets[t] >= 0;
    }
    return trained;
}

static void test_rows(void **state) {
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s", lines_file());
    DataSource source = {.path = path, .key = (char *)(uintptr_t) "", .format = FORMAT_CHAT};
    DataConfig c = config_of(&source, LOSS_ON_ASSISTANT);
    Dataset *d;
    Error err = {0};
    if (dataset_open(&d, &c, tokenizer, CONTEXT, 2, &err) != OK) fail_msg("%s", err.message);
    uint64_t rows = dataset_samples_per_epoch(d);
    int64_t trained = 0, valid = 0, expected = 0;
    for (uint64_t k = 0; k < rows; k++) {
        Rows r;
        SampleRow row = {r.inputs, r.targets, r.positions, r.first_key, 1000};
        assert_int_equal(dataset_sample(d, false, k, &row, &valid, &err), OK);
        trained += check_row(&r);
    }
    /* Counted by hand: the answer and its EOS. Line 9 is truncated at the context, line 5 is dropped. */
    for (int i = 0; i < LINES; i++) {
        int before = 7 + width_of(1 + i % 7, i) + 2 + 12, answer = width_of(1 + i * 7 % 23, i) + 1;
        if (i == 5) continue;
        expected += i == 9 ? CONTEXT + 1 - before : answer;
    }
    assert_int_equal(trained, valid);
    assert_int_equal(trained, expected);
    dataset_close(d);
}

/* Another template, or another choice of trained turns, gives another cache and another fingerprint. */
static void test_fingerprints(void **state) {
    (void)state;
    char path[512], prints[3][65];
    snprintf(path, sizeof path, "%s", lines_file());
    DataSource source = {.path = path, .key = (char *)(uintptr_t) "", .format = FORMAT_CHAT};
    for (int i = 0; i < 3; i++) {
        DataConfig c = config_of(&source, i == 1 ? LOSS_ON_ALL : LOSS_ON_ASSISTANT);
        Dataset *d;
        Error err = {0};
        if (i == 2) files_text("t.jinja", marked);
        if (dataset_open(&d, &c, tokenizer, CONTEXT, 1, &err) != OK) fail_msg("%s", err.message);
        dataset_fingerprint(d, prints[i]);
        dataset_close(d);
    }
    assert_string_not_equal(prints[0], prints[1]);
    assert_string_not_equal(prints[0], prints[2]);
}

/* Best fit, longest first, on random lengths: as many rows as the naive rule makes. */
static void test_best_fit(void **state) {
    (void)state;
    char path[512];
    Text t = {0};
    uint32_t seed = 3;
    for (int i = 0; i < 300; i++) {
        seed = seed * 1664525u + 1013904223u;
        text_printf(&t, "{\"prompt\": \"q\", \"completion\": \"%0*d\"}\n", 1 + (int)(seed >> 16) % 60, i);
    }
    snprintf(path, sizeof path, "%s", files_write("many.jsonl", t.data, t.length));
    text_free(&t);
    DataSource source = {.path = path, .key = (char *)(uintptr_t) "", .format = FORMAT_CHAT};
    DataConfig c = config_of(&source, LOSS_ON_ASSISTANT);
    Dataset *d;
    Error err = {0};
    if (dataset_open(&d, &c, tokenizer, 128, 1, &err) != OK) fail_msg("%s", err.message);
    int lengths[300], spaces[300], rows = 0;
    seed = 3;
    for (int i = 0; i < 300; i++) {
        seed = seed * 1664525u + 1013904223u;
        lengths[i] = 22 + width_of(1 + (int)(seed >> 16) % 60, i) + 1;
    }
    for (int length = 128; length > 0; length--)
        for (int i = 0; i < 300; i++) {
            int best = -1;
            if (lengths[i] != length) continue;
            for (int r = 0; r < rows; r++)
                if (spaces[r] >= length && (best < 0 || spaces[r] < spaces[best])) best = r;
            if (best < 0) spaces[best = rows++] = 128;
            spaces[best] -= length;
        }
    assert_int_equal(dataset_samples_per_epoch(d), rows);
    dataset_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_members),
                                       cmocka_unit_test(test_borders),
                                       cmocka_unit_test(test_prompt_and_completion),
                                       cmocka_unit_test(test_rewriting),
                                       cmocka_unit_test(test_special_text),
                                       cmocka_unit_test(test_forms),
                                       cmocka_unit_test(test_shared_calls),
                                       cmocka_unit_test(test_refused_forms),
                                       cmocka_unit_test(test_two_forms),
                                       cmocka_unit_test(test_preferences),
                                       cmocka_unit_test(test_json_in_json),
                                       cmocka_unit_test(test_weights),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_prompt),
                                       cmocka_unit_test(test_rows),
                                       cmocka_unit_test(test_fingerprints),
                                       cmocka_unit_test(test_best_fit)};
    return cmocka_run_group_tests(tests, bytes_setup, bytes_teardown);
}
