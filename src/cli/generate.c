/* weft generate: text from a checkpoint, token by token.
 *
 *     prompt --> ids --chunks of 256--> cache of keys and values --> logits --> one id --> its bytes, printed
 *                                          ^                                       |
 *                                          +---------------- fed back -------------+
 *
 * With one dtype and one set of kernels the text is a function of weights, prompt and sampling with its
 * seed. Text goes to standard output, figures and warnings to stderr. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "cli/model.h"
#include "data/chat.h"
#include "model/decode.h"
#include "model/sampling.h"

/* Tokens of the prompt that go through the model at once: large enough for full speed, small beside the
 * model. */
enum { PROMPT_CHUNK = 256 };

static const Flag flags[] = {
    {"--prompt", 'p', "TEXT",
     "text to go on from; - reads it from stdin; without it the model begins by itself"},
    {"--tokens", 'n', "N", "tokens to generate, fewer if the model ends the text; default 200"},
    {"--temperature", 'T', "X", "0 takes the most likely token each time; default 1"},
    {"--top-k", 'k', "K", "only the K most likely tokens; default 0, all"},
    {"--top-p", 0, "P", "only the most likely tokens that make up probability P; default 1, all"},
    {"--seed", 's', "N", "the same seed gives the same text; default 0"},
    {"--chat", 0, NULL, "the prompt is a message, put to the model by its chat template"},
    {"--system", 0, "TEXT", "with --chat: a message of the role system before it"},
    {"--template", 0, "FILE", "with --chat: a chat template, when it is not beside the tokenizer"},
    {"--date", 0, "YYYY-MM-DD", "with --chat: the day that a template is told when it asks for the date"},
    {"--ignore-end", 0, NULL, "go on past the end-of-text token"},
    {"--quiet", 'q', NULL, "the generated text only, without the prompt and the closing figures"},
    MODEL_FLAGS,
    {NULL, 0, NULL, NULL}};

/* Freed by run, whatever was read of it. */
typedef struct Request {
    Sampling sampling;
    int64_t tokens;
    bool ignore_end, quiet, chat;
    int32_t end; /* of an answer, -1: none */
    Text prompt;
    TokenList ids; /* of the prompt */
} Request;

/* "-" is standard input, to its end. No prompt is not an empty one read from there: the model then begins
 * by itself. What was read of a prompt that failed half way is freed with the request. */
static ErrorCode read_prompt(const Arguments *args, Text *out, Error *err) {
    const char *prompt = arguments_flag(args, "--prompt");
    if (!prompt) return OK;
    if (strcmp(prompt, "-") != 0) {
        text_puts(out, prompt);
        return OK;
    }
    char piece[4096];
    for (size_t n; (n = fread(piece, 1, sizeof piece, stdin)) > 0;) text_add(out, piece, n);
    return ferror(stdin) ? error_errno(err, ERR_IO, "reading the prompt from stdin") : OK;
}

/* Flags of a conversation want one, and a conversation wants a message. */
static ErrorCode check_chat(const Arguments *args, Error *err) {
    static const char *const names[] = {"--system", "--template", "--date"};
    bool chat = arguments_has(args, "--chat");
    for (size_t i = 0; !chat && i < sizeof names / sizeof *names; i++)
        if (arguments_has(args, names[i]))
            return error_set(err, ERR_USAGE, "%s is for --chat, which is not given", names[i]);
    if (chat && !arguments_has(args, "--prompt"))
        return error_set(err, ERR_USAGE, "--chat needs a message: give --prompt");
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
    TRY(read_prompt(args, &r->prompt, err));
    if (r->chat && memchr(r->prompt.data, 0, r->prompt.length))
        return error_set(err, ERR_USAGE, "--chat: the message holds a NUL byte: it must be text");
    return OK;
}

/* Bytes as they come: those of one character may lie in several tokens. `first`: the text begins with it. */
static void put_token(const OpenModel *m, int32_t id, bool first) {
    size_t length;
    const char *bytes = tokenizer_token_text(m->tokenizer, id, first, &length);
    if (bytes) fwrite(bytes, 1, length, stdout);
    fflush(stdout); /* each token shows as it comes */
}

/* Rows of the embedding behind the tokenizer's last entry are padding: never sampled. Of logits that are not
 * finite nothing could be, and any token would look as good. */
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

/* Token by token: each is printed before the next is computed. *made counts what was sampled, an end of
 * text among it. It ends after as many as were asked for, at the model's end of text, or when the cache is
 * full. The last token is printed and not fed, since nobody asks for what would follow. */
static ErrorCode generate(OpenModel *m, Decoder *g, const Request *r, int64_t *made, Error *err) {
    int64_t vocab = m->plan.model.config.vocab_size;
    float *logits = mem_alloc_array((size_t)vocab, sizeof *logits);
    int32_t *order = mem_alloc_array((size_t)vocab, sizeof *order);
    ErrorCode code = find_logits(m, g, r->ids.ids, (int64_t)r->ids.count, logits, err);
    for (*made = 0; code == OK && *made < r->tokens;) {
        int32_t id = sample_token(&r->sampling, logits, vocab, *made, order);
        bool first = (*made)++ == 0 && (r->chat || r->prompt.length == 0);
        if ((model_ends_text(m, id) || id == r->end) && !r->ignore_end) break;
        put_token(m, id, first);
        if (*made == r->tokens || decoder_room(g) == 0) break;
        code = find_logits(m, g, &id, 1, logits, err);
    }
    free(logits);
    free(order);
    return code;
}

static void add_message(cJSON *messages, const char *role, const char *content) {
    cJSON *message = cJSON_CreateObject();
    cJSON_AddStringToObject(message, "role", role);
    cJSON_AddStringToObject(message, "content", content);
    cJSON_AddItemToArray(messages, message);
}

/* The prompt as the template has it, to where the answer begins. */
static ErrorCode encode_message(const OpenModel *m, const Arguments *args, Request *r, Error *err) {
    const char *tokenizer = arguments_flag(args, "--tokenizer"), *system = arguments_flag(args, "--system");
    ChatOptions options = {.tokenizer = tokenizer ? tokenizer : m->dir,
                           .template = arguments_flag(args, "--template"),
                           .date = arguments_flag(args, "--date")};
    Chat *chat;
    TRY(chat_open(&chat, &options, m->tokenizer, err));
    cJSON *messages = cJSON_CreateArray();
    if (system) add_message(messages, "system", system);
    add_message(messages, "user", r->prompt.data);
    ErrorCode code = chat_prompt(chat, "--prompt", messages, &r->ids, err);
    r->end = chat_end_token(chat);
    cJSON_Delete(messages);
    chat_close(chat);
    return code;
}

/* Where the model has a token that begins texts, a prompt is a text's beginning. Without such a token, and
 * without a prompt, the end of a text stands for the beginning of the next. */
static ErrorCode encode_text(const OpenModel *m, Request *r, Error *err) {
    int32_t bos = tokenizer_bos(m->tokenizer), first = bos >= 0 ? bos : tokenizer_eos(m->tokenizer);
    token_list_reserve(&r->ids, 1);
    if (bos >= 0 || (r->prompt.length == 0 && first >= 0)) r->ids.ids[r->ids.count++] = first;
    if (r->prompt.length == 0) return OK;
    return tokenizer_encode(m->tokenizer, r->prompt.data, r->prompt.length, &r->ids, err);
}

static ErrorCode encode_prompt(const OpenModel *m, const Arguments *args, Request *r, Error *err) {
    TRY(r->chat ? encode_message(m, args, r, err) : encode_text(m, r, err));
    if (r->ids.count == 0)
        return error_set(err, ERR_USAGE,
                         "this tokenizer has no begin-of-text token to begin from: give --prompt");
    int64_t room = m->plan.model.config.max_position_embeddings;
    if ((int64_t)r->ids.count > room)
        return error_set(err, ERR_USAGE,
                         "the prompt has %zu tokens but the model is for sequences of %lld: shorten it",
                         r->ids.count, (long long)room);
    return OK;
}

/* The cache is as long as what was asked for, not as what the model could take. The cache of keys and
 * values is the only memory that grows with the text. */
static ErrorCode write_text(OpenModel *m, const Arguments *args, Request *r, Error *err) {
    Decoder g;
    TRY(encode_prompt(m, args, r, err));
    int64_t made, longest = m->plan.model.config.max_position_embeddings,
                  wanted = (int64_t)r->ids.count + r->tokens;
    TRY(decoder_open(&g, engine_model(m->engine), engine_weights(m->engine), &m->device,
                     wanted < longest ? wanted : longest, PROMPT_CHUNK, err));
    if (!r->quiet && !r->chat && r->prompt.length) fwrite(r->prompt.data, 1, r->prompt.length, stdout);
    double start = clock_seconds();
    ErrorCode code = generate(m, &g, r, &made, err);
    double seconds = clock_seconds() - start;
    putchar('\n');
    fflush(stdout);
    if (!r->quiet && code == OK)
        log_info("%lld tokens in %.1f s, %.0f tokens/s", (long long)made, seconds, (double)made / seconds);
    if (code == OK && made < r->tokens && decoder_room(&g) == 0)
        log_warn("stopped at %lld positions, the longest sequence this model is for", (long long)longest);
    decoder_close(&g);
    return code;
}

/* The command line and standard input are read before the model is, which may take minutes: a mistake
 * there is said at once. */
static ErrorCode run(const Arguments *args, Error *err) {
    OpenModel m = {0};
    Request r;
    ErrorCode code = read_request(args, &r, err);
    if (code == OK)
        code = open_model(&m, args->operands[0], args, (PassShape){.tokens = PROMPT_CHUNK, .most = 1}, NULL,
                          err);
    if (code == OK) code = write_text(&m, args, &r, err);
    close_model(&m);
    text_free(&r.prompt);
    token_list_free(&r.ids);
    return code;
}

const Verb verb_generate = {
    .name = "generate",
    .summary = "text from a checkpoint, streamed as it is made",
    .synopsis = "RUN|CHECKPOINT",
    .details = "Takes a run directory (its newest checkpoint), a checkpoint, or any Hugging Face directory "
               "of a family that \"weft models\" lists.\n\n"
               "With --chat the prompt is a message of the user, put by the chat template beside the "
               "tokenizer, and the text ends with the answer.\n\n"
               "Examples:\n"
               "  weft generate runs/demo --prompt 'In the beginning' --tokens 200 --temperature 0.8\n"
               "  weft generate runs/tuned --chat --prompt 'Why is the sky blue?'\n"
               "  weft generate runs/demo/checkpoints/step-00000300 --top-p 0.9 --seed 7",
    .flags = flags,
    .min_operands = 1,
    .max_operands = 1,
    .run = run,
};
