/* Options of the section `data`, and of the items of its lists and of evaluation.tasks. */
#include "base/file.h"
#include "base/option_rows.h"
#include "data/config.h"

/* Items of data.sources and data.validation. By default all weights are 0 and the sources are one corpus; a
 * mixture needs weights. */
#define TARGET DataSource
static const Option source_options[] = {
    /* First, since a plain text in the list means the path: data.sources=[a.txt, b.txt]. */
    TEXT("path", path, "", UNKNOWN,
         "A file or a shell pattern; relative to where weft runs. Or https:// or s3://, perhaps with "
         "{00..99}.",
         REQUIRED),
    REAL("weight", weight, "0", 0, 1e12, UNKNOWN,
         "Share of the mixture, relative to the other sources; 0 for all: sources are one corpus."),
    /* Names can be misleading, so `auto` can be overridden. */
    CHOICE(
        "format", format, "auto", CHOICE_WORDS(SOURCE_FORMATS), UNKNOWN,
        "auto goes by the name: .jsonl, .json, .ndjson are JSON lines, .parquet is Parquet; a further .zst "
        "or .gz is ignored. chat: conversations, in one of the forms of chat_format. tokens: ids."),
    TEXT("key", key, "", UNKNOWN,
         "JSON lines: the member that holds the text, or the messages; empty: text, messages."),
    TEXT("column", column, "", UNKNOWN,
         "Parquet: the column that holds the text (with dots for members of structs) or the messages; empty: "
         "`text`, or with format: chat the usual columns of conversations."),
    CHOICE(
        "chat_format", chat_format, "auto", CHOICE_WORDS(CHAT_FORMS), UNKNOWN,
        "Conversations: messages with role and content; sharegpt with from and value; alpaca: instruction, "
        "input, output; prompt_completion; auto: as the members of each line show."),
    CHOICE("dtype", dtype, "auto", CHOICE_WORDS(TOKEN_TYPES), UNKNOWN,
           "Token files: the type of their ids; auto: as their header states."),
    TEXT("end", end, "", UNKNOWN,
         "Token files: the id between documents; empty: the tokenizer's EOS; none: a file is one document."),
    CHOICE(
        "boundary", boundary, "auto", CHOICE_WORDS(TOKEN_BOUNDARIES), UNKNOWN,
        "Token files: whether the id `end` stands at the end of each document or at its start. auto: start "
        "for files of llm.c, and for files that begin with this id and do not end with it; otherwise end."),
    CHOICE("split", split, "file", CHOICE_WORDS(SOURCE_SPLITS), UNKNOWN,
           "What a document of a text file is; paragraphs are separated by blank lines."),
    /* Non-text is refused, since nothing else would show that a model was trained on an archive. */
    CHOICE("encoding", encoding, "utf-8", CHOICE_WORDS(TEXT_ENCODINGS), UNKNOWN,
           "Encoding of text and JSON files. latin-1, windows-1252 and utf-16 are converted to UTF-8. bytes: "
           "any content is taken as it is. Otherwise files that are not UTF-8 text are refused."),
    INT("min_bytes", min_bytes, "0", 0, MOST_EXACT, UNKNOWN,
        "Documents with fewer bytes of text are left out, and counted at every start."),
    INT("max_bytes", max_bytes, "0", 0, MOST_EXACT, UNKNOWN,
        "Documents with more bytes of text are left out, and counted at every start; 0: none."),
    /* Sources with one name form one set. The name becomes part of metric tags and of
     * checkpoint.keep_best. */
    TEXT("name", name, "", UNKNOWN,
         "Name of the validation set to which this source's validation text belongs; each set has figures of "
         "its own. Give a name to every source, or to none."),
    TABLE_END};

/* Items of evaluation.tasks. Effects of these rows are not used: the list is compared as a whole. */
#undef TARGET
#define TARGET TaskSource
const Option task_options[] = {
    /* First, since a plain text in the list means the path. */
    TEXT(
        "path", path, "", UNKNOWN,
        "A file of documents, as the data set has them: JSON lines; relative to where weft runs, or https:// "
        "or s3://.",
        REQUIRED),
    TEXT("task", task, "auto", UNKNOWN,
         "Kind of the documents (docs/use/tasks.md); auto: the name that the file's name begins with."),
    /* Identifies the task's metrics over all restarts of a run. */
    TEXT("name", name, "", UNKNOWN,
         "What the figures are called; empty: the file's name up to its first dot."),
    INT("limit", limit, "0", 0, 1e9, UNKNOWN,
        "Number of documents that are read, from the first on; 0 means all."),
    /* The same key as in lm-evaluation-harness. */
    INT("num_fewshot", num_fewshot, "0", 0, 1000, UNKNOWN,
        "Examples with their answers before each question: the first documents of `examples`, without the "
        "one that is asked."),
    TEXT("examples", examples, "", UNKNOWN,
         "File of the examples of num_fewshot, of the same kind; empty: `path`."),
    TABLE_END};

#undef TARGET
#define TARGET DataConfig
const Option data_options[] = {
    /* What is trained on, and in what order. Files are compared by fingerprint (data/fingerprint.c): they may
     * move, but not change. What decides the ids of a cache or the order of samples is EFFECT_CURVE. */
    LIST("data.sources", sources, DataSource, source_options, CONTENT,
         "What to train on: paths, or maps of path, weight, format and the keys of that format, name.",
         ELSEWHERE("dataset dataset_path dataset_name data_path root_dir train_files train_data")),
    /* Other validation metrics of the same run. */
    LIST("data.validation", validation_sources, DataSource, source_options, MEASURES,
         "What to validate on; maps with a name make named sets; empty: validation_fraction of the sources.",
         ELSEWHERE("val_files validation.dataset validation.dataset_path validation.dataloader "
                   "eval.validation.root_dir eval.validation.sources")),
    /* EFFECT_CURVE instead of EFFECT_MEASURES, since held-out text is missing from training. Below 1, so that
     * something remains to train on. */
    REAL("data.validation_fraction", validation_fraction, "0", 0, 0.9, CURVE,
         "Share of each source kept out of training for validation.",
         ELSEWHERE("val_ratio val_split validation_split use_val_from_train_src")),
    CHOICE("data.holdout_by", holdout_by, "position", CHOICE_WORDS(HOLDOUT_KINDS), CURVE,
           "How data.validation_fraction is drawn. position: up to 64 runs of tokens of each source. hash: "
           "documents, by a hash of their text alone."),
    /* The path may differ between machines; the fingerprint of its content counts. The default needs no file,
     * so that the smallest configuration trains. */
    TEXT("data.tokenizer", tokenizer, "bytes", CONTENT,
         "The tokenizer: bytes, or a Hugging Face tokenizer.json, or a tiktoken rank file.",
         ELSEWHERE("tokenizer_path hf_assets_path tokenizer_name tokenizer_dir tokenizer_name_or_path")),
    /* Each machine may have its own. Caches are found by the content that they were built from, so they
     * cannot be confused. */
    TEXT("data.cache_dir", cache_dir, ".weft-cache", NOTHING, "Where token caches are kept.", LOCAL,
         REQUIRED),
    /* Copies are found by URL and version, so they cannot be confused. */
    REAL("data.remote_cache_gib", remote_cache_gib, "0", 0, 1e9, NOTHING,
         "GiB that copies of files from https:// and s3:// may take in data.cache_dir; those not used for "
         "longest go first; 0: no limit.",
         LOCAL),
    /* Documents of one source may be long and those of another short, so fractions of tokens and of documents
     * differ. */
    CHOICE("data.weights", weights, "tokens", CHOICE_WORDS(MIXTURE_WEIGHTS), CURVE,
           "Unit of the sources' weights: shares of tokens or of documents."),
    /* Another order is other samples in each step. */
    CHOICE(
        "data.order", order, "shuffle", CHOICE_WORDS(SAMPLE_ORDERS), CURVE,
        "shuffle: all samples of an epoch, once everything is tokenized; stream: training begins while the "
        "sources are being tokenized, in blocks of data.stream_block."),
    INT("data.stream_block", stream_block, "4194304", 1, MOST_EXACT, CURVE,
        "With data.order: stream: tokens of a block. Samples are shuffled within a block, and the block is "
        "tokenized before its first sample is drawn."),
    /* Changes which keys a token sees, and so the mathematics. */
    BOOL("data.document_mask", document_mask, "false", CURVE,
         "Attention stays inside a document, and positions restart with each one; for conversations this is "
         "always so."),
    /* Both by default, so that a model learns where a text begins and ends: generate starts with BOS and
     * stops at EOS. */
    BOOL("data.add_bos", add_bos, "true", CURVE,
         "Begin each document of text with the tokenizer's BOS, if any."),
    BOOL("data.add_eos", add_eos, "true", CURVE,
         "End each document of text with the tokenizer's EOS, if any."),
    /* What is left out is missing from the data. */
    CHOICE("data.dedup", dedup, "none", CHOICE_WORDS(DEDUP_KINDS), CURVE,
           "exact: of the documents of a source that are the same, token by token, only the first stays."),
    /* Skipped lines are missing from the data. */
    CHOICE("data.bad_lines", bad_lines, "error", CHOICE_WORDS(BAD_LINES_KINDS), CURVE,
           "What to do with a line of JSON that is broken or has no text. error: end the run. skip: leave "
           "the line out, count it and list it."),
    REAL("data.bad_lines_limit", bad_lines_limit, "0.01", 0, 1e12, NOTHING,
         "With data.bad_lines: skip: how many lines of a source may be skipped: a count or, below 1, a share "
         "of its lines."),
    /* Conversations. What is trained on decides the targets. The template is compared by its text, which is
     * part of the data's fingerprint. */
    CHOICE("data.chat_loss_on", chat_loss_on, "assistant", CHOICE_WORDS(CHAT_LOSS_ON_KINDS), CURVE,
           "Which tokens of a conversation are trained on: the answers of the assistant, the last of them, "
           "or everything.",
           WAS("data.chat_learn")),
    TEXT("data.chat_template", chat_template, "", CONTENT,
         "A chat template (Jinja) for sources of format chat; empty: the one next to data.tokenizer.",
         ELSEWHERE("chat_template_path")),
    /* A fixed date: with today's, the same lines would be other data tomorrow. */
    TEXT("data.chat_date", chat_date, "", CURVE,
         "The date, YYYY-MM-DD, for chat templates that ask for today's date; empty: strftime_now is "
         "undefined in templates."),
    /* Separate from run.seed, so that the order of samples and the initial weights can be changed
     * independently. */
    INT("data.seed", seed, "42", 0, MOST_EXACT, CURVE, "Seed of the order of samples."),
    /* Written next to the run; it can be switched on or off at any start. */
    BOOL("data.audit", audit, "false", NOTHING,
         "Record the samples of each step, for \"weft audit\"; about 25 bytes a sample."),
    /* Only how far to read ahead; the sampler decides what is read. */
    INT("data.prefetch", prefetch, "4", 1, 1024, NOTHING, "Microbatches that are read ahead and kept ready.",
        LOCAL, ELSEWHERE("prefetch_factor prefetch_size")),
    TABLE_END};

uint64_t data_remote_limit(const DataConfig *c) {
    return (uint64_t)(c->remote_cache_gib * (double)(1 << 30));
}

static const char *source_conflict(const DataSource *s) {
    if (s->format == FORMAT_CHAT)
        return "format: chat: conversations are packed when all of them are tokenized";
    return NULL;
}

const char *data_order_conflict(const DataConfig *c) {
    const DataSource *sources = (const DataSource *)(const void *)c->sources.items;
    const char *why = NULL;
    if (c->order != ORDER_STREAM) return NULL;
    if (c->validation_fraction > 0)
        return "data.validation_fraction, a share of the whole: name files in data.validation";
    if (c->weights == WEIGHTS_DOCUMENTS)
        return "data.weights: documents, which needs their mean length: give weights in tokens";
    for (size_t i = 0; !why && i < c->sources.count; i++) why = source_conflict(&sources[i]);
    return why;
}
