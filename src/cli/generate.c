/* weft generate: text from a checkpoint, token by token.
 *
 *     prompt --> ids --chunks of 256--> cache of keys and values --> logits --> one id --> its bytes, printed
 *                                          ^                                       |
 *                                          +---------------- fed back -------------+
 *
 * With one dtype and one set of kernels the text depends only on weights, prompt and sampling including its
 * seed. Text goes to standard output, figures and warnings to stderr.
 *
 * --prompts reads a file with one JSON object per line and writes one line for each, in the same order: the
 * input line plus a member with the text that --prompt would give. All lines are read before the model is
 * opened, and encoded before its weights are loaded, so that an error in the last line costs no work. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/lines.h"
#include "base/log.h"
#include "base/memory.h"
#include "cli/model.h"
#include "data/chat.h"
#include "model/decode.h"
#include "model/sampling.h"

/* Tokens of the prompt per pass through the model: large enough for full speed, small compared to the
 * model. */
enum { PROMPT_CHUNK = 256 };

static const Flag flags[] = {
    {"--prompt", 'p', "TEXT",
     "text to go on from; - reads it from stdin; without it the model begins by itself"},
    {"--prompts", 0, "FILE",
     "a prompt a line, as JSON: {\"prompt\": ...}, with --chat also {\"messages\": [...]}; a \"seed\" is "
     "that "
     "line's. Writes the lines with \"generated\", \"generated_tokens\" and \"stop\"; - reads stdin"},
    {"--tokens", 'n', "N", "tokens to generate, fewer if the model ends the text; default 200"},
    {"--temperature", 'T', "X", "0 takes the most likely token each time; default 1"},
    {"--top-k", 'k', "K", "only the K most likely tokens; default 0, all"},
    {"--top-p", 0, "P", "only the most likely tokens that make up probability P; default 1, all"},
    {"--seed", 's', "N", "the same seed gives the same text; default 0"},
    {"--chat", 0, NULL, "the prompt is a message, put to the model by its chat template"},
    {"--system", 0, "TEXT", "with --chat: a message of the role system before it"},
    {"--template", 0, "FILE", "with --chat: a chat template, when it is not next to the tokenizer"},
    {"--date", 0, "YYYY-MM-DD", "with --chat: the day that a template gets when it asks for the date"},
    {"--ignore-end", 0, NULL, "go on past the end-of-text token"},
    {"--quiet", 'q', NULL, "the generated text only, without the prompt and the closing figures"},
    MODEL_FLAGS,
    {NULL, 0, NULL, NULL}};

typedef struct Prompt {
    const char *line; /* [length], of --prompts; NULL with --prompt */
    size_t length, number;
    cJSON *object; /* the parsed line, or NULL */
    TokenList ids;
    bool begins; /* the first generated token begins the text */
    uint64_t seed;
} Prompt;

/* run_generate frees it, even if only partly read. */
typedef struct Request {
    Sampling sampling;
    int64_t tokens;
    bool ignore_end, quiet, chat;
    int32_t end;      /* of an assistant turn; -1: none */
    Text text;        /* of --prompt, or the content of the --prompts file */
    const char *file; /* path of --prompts, or NULL */
    Prompt *prompts;  /* [count] */
    size_t count;
    int64_t passes; /* that were fed one generated token each */
    double seconds; /* in those */
} Request;

static ErrorCode read_stdin(Text *out, Error *err) {
    char piece[4096];
    for (size_t n; (n = fread(piece, 1, sizeof piece, stdin)) > 0;) text_add(out, piece, n);
    return ferror(stdin) ? error_errno(err, ERR_IO, "reading the prompt from stdin") : OK;
}

/* "-" is standard input, to its end. No prompt differs from an empty prompt read from there: the model then
 * starts a text by itself. Whatever was read before a failure is freed with the request. */
static ErrorCode read_prompt(const Arguments *args, Request *r, Error *err) {
    const char *prompt = arguments_flag(args, "--prompt");
    r->count = 1;
    r->prompts = mem_alloc_array(1, sizeof *r->prompts);
    r->prompts[0].seed = r->sampling.seed;
    if (!prompt) return OK;
    if (strcmp(prompt, "-") == 0) return read_stdin(&r->text, err);
    text_puts(&r->text, prompt);
    return OK;
}

/* ---- many prompts ---- */

static ErrorCode bad_line(const Request *r, const Prompt *p, const char *problem, Error *err) {
    return error_set(err, ERR_DATA, "%s:%zu: %s", r->file, p->number, problem);
}

/* Members that the output would repeat are refused, not replaced. */
static ErrorCode check_line(const Request *r, Prompt *p, Error *err) {
    static const char *const made[] = {"generated", "generated_tokens", "stop"};
    const cJSON *prompt = cJSON_GetObjectItemCaseSensitive(p->object, "prompt"),
                *messages = cJSON_GetObjectItemCaseSensitive(p->object, "messages");
    int64_t seed = (int64_t)p->seed;
    if (!cJSON_IsObject(p->object)) return bad_line(r, p, "expected a JSON object with a \"prompt\"", err);
    if (messages && !r->chat) return bad_line(r, p, "\"messages\" are for --chat, which is not given", err);
    if (messages && prompt) return bad_line(r, p, "there are both \"prompt\" and \"messages\"", err);
    if (messages ? !cJSON_IsArray(messages) : !cJSON_IsString(prompt))
        return bad_line(r, p, messages ? "\"messages\" is no array" : "expected \"prompt\", a string", err);
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        if (cJSON_HasObjectItem(p->object, made[i]))
            return error_set(err, ERR_DATA, "%s:%zu: \"%s\" is there already: rename it", r->file, p->number,
                             made[i]);
    TRY(json_get_int(p->object, r->file, "seed", false, 0, INT64_C(1) << 53, &seed, err));
    p->seed = (uint64_t)seed;
    return OK;
}

/* Blank lines are skipped. */
static ErrorCode read_lines(Request *r, Error *err) {
    Lines lines = lines_of(r->text.data, r->text.length);
    size_t capacity = 0;
    for (Line line; lines_next(&lines, &line);) {
        while (line.length > 0 && strchr(" \t\r", line.text[line.length - 1])) line.length--;
        if (line.length == 0) continue;
        if (r->count == capacity) {
            capacity = 2 * capacity + 64;
            r->prompts = mem_grow(r->prompts, capacity * sizeof *r->prompts);
        }
        Prompt *p = &r->prompts[r->count++];
        *p = (Prompt){
            .line = line.text, .length = line.length, .number = line.number, .seed = r->sampling.seed};
        TRY(json_parse_line(r->file, p->number, line.text, line.length, &p->object, err));
        TRY(check_line(r, p, err));
    }
    return r->count > 0 ? OK : error_set(err, ERR_DATA, "%s: no prompts in it", r->file);
}

static ErrorCode read_prompts(const Arguments *args, Request *r, Error *err) {
    char *data;
    size_t length;
    r->file = arguments_flag(args, "--prompts");
    if (arguments_has(args, "--prompt"))
        return error_set(err, ERR_USAGE, "--prompt and --prompts: give one of them");
    if (strcmp(r->file, "-") == 0) {
        r->file = "stdin";
        TRY(read_stdin(&r->text, err));
        return read_lines(r, err);
    }
    TRY(file_read(r->file, (size_t)1 << 32, &data, &length, err));
    text_add(&r->text, data, length);
    free(data);
    return read_lines(r, err);
}

/* ---- the command line ---- */

/* Chat flags require --chat, and a chat requires a message. */
static ErrorCode check_chat(const Arguments *args, Error *err) {
    static const char *const names[] = {"--system", "--template", "--date"};
    bool chat = arguments_has(args, "--chat");
    for (size_t i = 0; !chat && i < sizeof names / sizeof *names; i++)
        if (arguments_has(args, names[i]))
            return error_set(err, ERR_USAGE, "%s is for --chat, which is not given", names[i]);
    if (chat && !arguments_has(args, "--prompt") && !arguments_has(args, "--prompts"))
        return error_set(err, ERR_USAGE, "--chat needs a message: give --prompt, or --prompts");
    return OK;
}

/* Seeds below 2^53, as in configurations. */
static ErrorCode read_request(const Arguments *args, Request *r, Error *err) {
    int64_t seed = 0;
    *r = (Request){.sampling = {.temperature = 1, .top_p = 1}, .tokens = 200};
    TRY(arguments_int(args, "--tokens", 1, 1 << 24, &r->tokens, err));
    TRY(arguments_double(args, "--temperature", 0, 100, &r->sampling.temperature, err));
    TRY(arguments_int(args, "--top-k", 0, 1 << 30, &r->sampling.top_k, err));
    TRY(arguments_double(args, "--top-p", 0, 1, &r->sampling.top_p, err));
    TRY(arguments_int(args, "--seed", 0, INT64_C(1) << 53, &seed, err));
    r->sampling.seed = (uint64_t)seed;
    r->ignore_end = arguments_has(args, "--ignore-end");
    r->quiet = arguments_has(args, "--quiet");
    r->chat = arguments_has(args, "--chat");
    r->end = -1;
    TRY(check_chat(args, err));
    if (arguments_has(args, "--prompts")) return read_prompts(args, r, err);
    TRY(read_prompt(args, r, err));
    if (r->chat && memchr(r->text.data, 0, r->text.length))
        return error_set(err, ERR_USAGE, "--chat: the message holds a NUL byte: it must be text");
    return OK;
}

/* ---- generating ---- */

/* Bytes as they come: one character may span several tokens. `first`: this token begins the text. */
static void put_token(const OpenModel *m, int32_t id, bool first, Text *into) {
    size_t length;
    const char *bytes = tokenizer_token_text(m->tokenizer, id, first, &length);
    if (bytes && into) text_add(into, bytes, length);
    if (!bytes || into) return;
    fwrite(bytes, 1, length, stdout);
    fflush(stdout); /* show each token at once */
}

/* Rows of the embedding beyond the tokenizer's last entry are padding and never sampled. Non-finite logits
 * are an error, since sampling from them would be arbitrary. */
static ErrorCode find_logits(const OpenModel *m, Decoder *g, const int32_t *ids, int64_t count, float *logits,
                             Error *err) {
    int64_t entries = tokenizer_vocab_size(m->tokenizer), vocab = m->plan.model.config.vocab_size;
    decoder_feed(g, ids, count, logits);
    for (int64_t i = entries; i < vocab; i++) logits[i] = -INFINITY;
    for (int64_t i = 0; i < entries; i++)
        if (!isfinite(logits[i]))
            return error_set(
                err, ERR_NUMERIC,
                "the model's logits are not finite: \"weft inspect\" names weights that are not");
    return OK;
}

typedef enum Stop { STOP_TOKENS, STOP_END, STOP_CONTEXT } Stop; /* all requested; an end; context full */

/* Token by token: each is printed before the next is computed, or appended to `into`. *made counts sampled
 * tokens, including an end of text. The last token is not fed back, since no token after it is needed. */
static ErrorCode generate(OpenModel *m, Decoder *g, Request *r, const Prompt *p, Text *into, int64_t *made,
                          Stop *stop, Error *err) {
    int64_t vocab = m->plan.model.config.vocab_size;
    Sampling sampling = r->sampling;
    float *logits = mem_alloc_array((size_t)vocab, sizeof *logits);
    int32_t *order = mem_alloc_array((size_t)vocab, sizeof *order);
    sampling.seed = p->seed;
    *stop = STOP_TOKENS;
    ErrorCode code = find_logits(m, g, p->ids.ids, (int64_t)p->ids.count, logits, err);
    for (*made = 0; code == OK && *made < r->tokens;) {
        int32_t id = sample_token(&sampling, logits, vocab, *made, order);
        bool first = (*made)++ == 0 && p->begins, ends = model_ends_text(m, id) || id == r->end;
        if (ends && !r->ignore_end) {
            *stop = STOP_END;
            break;
        }
        put_token(m, id, first, into);
        if (*made == r->tokens) break;
        if (decoder_tokens_left(g) == 0) {
            *stop = STOP_CONTEXT;
            break;
        }
        double start = clock_seconds();
        code = find_logits(m, g, &id, 1, logits, err);
        r->passes++, r->seconds += clock_seconds() - start;
    }
    free(logits);
    free(order);
    return code;
}

/* ---- encoding ---- */

static void add_message(cJSON *messages, const char *role, const char *content) {
    cJSON *message = cJSON_CreateObject();
    cJSON_AddStringToObject(message, "role", role);
    cJSON_AddStringToObject(message, "content", content);
    cJSON_AddItemToArray(messages, message);
}

/* The prompt as the template formats it, up to the start of the assistant turn. The messages of a line are
 * taken unchanged. */
static ErrorCode encode_message(const Arguments *args, const Chat *chat, const char *text, Prompt *p,
                                Error *err) {
    const char *system = arguments_flag(args, "--system");
    cJSON *own = cJSON_GetObjectItemCaseSensitive(p->object, "messages"), *messages = own;
    if (!own) {
        messages = cJSON_CreateArray();
        if (system) add_message(messages, "system", system);
        add_message(messages, "user", text);
    }
    ErrorCode code = chat_prompt(chat, p->object ? "--prompts" : "--prompt", messages, &p->ids, err);
    if (!own) cJSON_Delete(messages);
    p->begins = true;
    return code;
}

/* If the model has a BOS token, it precedes the prompt. Without it, and without a prompt, the EOS token
 * stands for the beginning of the next text. */
static ErrorCode encode_text(const OpenModel *m, const char *text, size_t length, Prompt *p, Error *err) {
    int32_t bos = tokenizer_bos(m->tokenizer), first = bos >= 0 ? bos : tokenizer_eos(m->tokenizer);
    p->begins = length == 0;
    token_list_reserve(&p->ids, 1);
    if (bos >= 0 || (length == 0 && first >= 0)) p->ids.ids[p->ids.count++] = first;
    return length == 0 ? OK : tokenizer_encode(m->tokenizer, text, length, &p->ids, err);
}

static ErrorCode encode_prompt(const OpenModel *m, const Arguments *args, const Request *r, const Chat *chat,
                               Prompt *p, Error *err) {
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(p->object, "prompt");
    const char *text = member ? member->valuestring : p->object ? "" : r->text.data;
    size_t length = member ? strlen(text) : p->object ? 0 : r->text.length;
    TRY(chat ? encode_message(args, chat, text, p, err) : encode_text(m, text, length, p, err));
    if (p->ids.count == 0)
        return error_set(err, ERR_USAGE,
                         "this tokenizer has no begin-of-text token to begin from: give --prompt");
    int64_t context = m->plan.model.config.max_position_embeddings;
    if ((int64_t)p->ids.count > context)
        return error_set(err, ERR_USAGE,
                         "the prompt has %zu tokens but the model is for sequences of %lld: shorten it",
                         p->ids.count, (long long)context);
    return OK;
}

static ErrorCode open_chat(const OpenModel *m, const Arguments *args, Chat **chat, Error *err) {
    const char *tokenizer = arguments_flag(args, "--tokenizer");
    ChatOptions options = {.tokenizer = tokenizer ? tokenizer : m->dir,
                           .template = arguments_flag(args, "--template"),
                           .date = arguments_flag(args, "--date")};
    return chat_open(chat, &options, m->tokenizer, err);
}

static ErrorCode encode_prompts(const OpenModel *m, const Arguments *args, Request *r, Error *err) {
    Chat *chat = NULL;
    if (r->chat) TRY(open_chat(m, args, &chat, err));
    if (chat) r->end = chat_end_token(chat);
    ErrorCode code = OK;
    for (size_t i = 0; code == OK && i < r->count; i++) {
        code = encode_prompt(m, args, r, chat, &r->prompts[i], err);
        if (code != OK && r->file) error_context(err, "%s:%zu", r->file, r->prompts[i].number);
    }
    chat_close(chat);
    return code;
}

/* ---- output ---- */

static ErrorCode write_text(OpenModel *m, Decoder *g, Request *r, int64_t *made, Error *err) {
    Stop stop;
    if (!r->quiet && !r->chat && r->text.length) fwrite(r->text.data, 1, r->text.length, stdout);
    ErrorCode code = generate(m, g, r, &r->prompts[0], NULL, made, &stop, err);
    putchar('\n');
    fflush(stdout);
    if (code == OK && stop == STOP_CONTEXT)
        log_warn("stopped at %lld positions, the longest sequence this model is for",
                 (long long)m->plan.model.config.max_position_embeddings);
    return code;
}

/* The bytes of the input line, so that its numbers stay as written, with more members before its last
 * brace. */
static ErrorCode write_line(const Prompt *p, const Text *made_text, int64_t made, Stop stop, Error *err) {
    static const char *const names[] = {
        [STOP_TOKENS] = "tokens", [STOP_END] = "end", [STOP_CONTEXT] = "context"};
    JsonWriter w;
    Text members = {0};
    json_start(&w, &members, 0);
    json_begin_object(&w);
    json_put_bytes(&w, "generated", made_text->length ? made_text->data : "", made_text->length);
    json_put_int(&w, "generated_tokens", made);
    json_put_string(&w, "stop", names[stop]);
    json_end_object(&w);
    fwrite(p->line, 1, p->length - 1, stdout);
    printf(", %s\n", members.data + 1);
    text_free(&members);
    return fflush(stdout) == 0 ? OK : error_errno(err, ERR_IO, "cannot write to standard output");
}

/* Each from the beginning, independent of the others. */
static ErrorCode write_lines(OpenModel *m, Decoder *g, Request *r, int64_t *made, Error *err) {
    Text text = {0};
    ErrorCode code = OK;
    *made = 0;
    for (size_t i = 0; code == OK && i < r->count; i++) {
        int64_t tokens;
        Stop stop;
        text_clear(&text);
        decoder_restart(g);
        code = generate(m, g, r, &r->prompts[i], &text, &tokens, &stop, err);
        if (code == OK) code = write_line(&r->prompts[i], &text, tokens, stop, err);
        *made += tokens;
    }
    text_free(&text);
    return code;
}

/* The KV cache is sized by the request, not by the model's maximum. It is the only memory that grows with the
 * text. */
static int64_t positions_of(const OpenModel *m, const Request *r) {
    int64_t longest = m->plan.model.config.max_position_embeddings, wanted = 0;
    for (size_t i = 0; i < r->count; i++)
        if ((int64_t)r->prompts[i].ids.count > wanted) wanted = (int64_t)r->prompts[i].ids.count;
    wanted += r->tokens;
    return wanted < longest ? wanted : longest;
}

/* A pass of one token reads every weight that the token meets, and few numbers else: the memory's rate is its
 * limit. Smaller weights than LEAST_READ may stay in caches. */
#define LEAST_READ ((int64_t)64 << 20)
static void report_reading(OpenModel *m, const Request *r) {
    size_t element = m->config.train.compute == COMPUTE_BF16 ? sizeof(uint16_t) : sizeof(float);
    double bytes = (double)model_active_count_without_embedding(&m->plan.model.config) * (double)element;
    if (r->passes == 0 || bytes < (double)LEAST_READ) return;
    double used = bytes * (double)r->passes / r->seconds;
    double rate = device_read_rate(&m->device, 0.2, (size_t)memory_use().available / 2);
    if (rate > 0)
        log_info(
            "decoding reads %.0f MB of weights a token: %.1f GB/s, %.0f%% of the %.1f GB/s that a read of "
            "memory alone reaches",
            bytes / 1e6, used / 1e9, 100 * used / rate, rate / 1e9);
}

static ErrorCode answer(OpenModel *m, const Arguments *args, Request *r, Error *err) {
    Decoder g;
    int64_t made, positions;
    TRY(encode_prompts(m, args, r, err));
    positions = positions_of(m, r);
    NeedsSpec needs = {decoder_bytes(&m->plan.model, positions, PROMPT_CHUNK), "--tokens", r->quiet};
    TRY(load_model(m, &needs, err));
    TRY(decoder_open(&g, engine_model(m->engine), engine_weights(m->engine), &m->device, positions,
                     PROMPT_CHUNK, err));
    double start = clock_seconds();
    ErrorCode code = r->file ? write_lines(m, &g, r, &made, err) : write_text(m, &g, r, &made, err);
    double seconds = clock_seconds() - start;
    if (!r->quiet && code == OK)
        log_info("%lld tokens in %.1f s, %.0f tokens/s", (long long)made, seconds, (double)made / seconds);
    decoder_close(&g);
    if (!r->quiet && code == OK) report_reading(m, r);
    return code;
}

static void request_free(Request *r) {
    for (size_t i = 0; i < r->count; i++) {
        cJSON_Delete(r->prompts[i].object);
        token_list_free(&r->prompts[i].ids);
    }
    free(r->prompts);
    text_free(&r->text);
}

/* The command line and standard input are read before the model, which may take minutes: errors there are
 * reported at once. */
static ErrorCode run_generate(const Arguments *args, Error *err) {
    OpenModel m = {0};
    Request r;
    ErrorCode code = read_request(args, &r, err);
    if (code == OK)
        code = open_model(&m, args->operands[0], args, (PassShape){.tokens = PROMPT_CHUNK, .most = 1}, NULL,
                          err);
    if (code == OK) code = answer(&m, args, &r, err);
    close_model(&m);
    request_free(&r);
    return code;
}

const Verb verb_generate = {
    .name = "generate",
    .summary = "text from a checkpoint, streamed as it is made",
    .synopsis = "RUN|CHECKPOINT",
    .details = "Takes a run directory (its newest checkpoint), a checkpoint, or any Hugging Face directory "
               "of a family that \"weft models\" lists.\n\n"
               "With --chat the prompt is a message of the user, put by the chat template next to the "
               "tokenizer, and the text ends with the answer.\n\n"
               "Examples:\n"
               "  weft generate runs/demo --prompt 'In the beginning' --tokens 200 --temperature 0.8\n"
               "  weft generate runs/tuned --chat --prompt 'Why is the sky blue?'\n"
               "  weft generate runs/tuned --chat --prompts questions.jsonl >answers.jsonl\n"
               "  weft generate runs/demo/checkpoints/step-00000300 --top-p 0.9 --seed 7",
    .flags = flags,
    .min_operands = 1,
    .max_operands = 1,
    .run = run_generate,
};
