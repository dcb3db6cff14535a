/* Trains a tokenizer from files: reads chunks of all sources in order and counts their words. One thread
 * reads, all threads count, and merges are learned from the counts (tokenizer_train.c). */
#include "base/file.h"
#include "base/log.h"
#include "data/corpus.h"
#include "data/input_files.h"
#include "tokenizer/tokenizer_train.h"

typedef struct FileDocuments {
    InputFiles inputs;
    size_t current;  /* index of an input */
    CorpusFile file; /* that input */
    CorpusReader *reader;
    Text json;              /* text of the current line */
    bool named[TEXT_FORMS]; /* forms that were warned of */
} FileDocuments;

/* Next chunk of the current file; *text stays NULL at its end. Chunks of a long document are cut where no
 * word changes. */
static ErrorCode next_chunk(FileDocuments *f, const char **text, size_t *length, Error *err) {
    CorpusChunk chunk;
    bool more = false;
    TRY(corpus_next(f->reader, &chunk, &more, err));
    if (!more) return OK;
    *text = chunk.bytes;
    *length = chunk.length;
    if (corpus_format(&f->file) != FORMAT_JSONL) return OK;
    TRY(corpus_decode_json(&f->file, &chunk, &f->json, err));
    *text = f->json.length ? f->json.data : "";
    *length = f->json.length;
    return OK;
}

/* Of each form once: there may be many files. */
static void warn_of_form(FileDocuments *f, const InputFile *input) {
    const TextForm *form = corpus_doubtful_form(f->reader);
    if (!form || f->named[text_form_index(form)]) return;
    f->named[text_form_index(form)] = true;
    log_warn("%s: this is %s: extract its text first if only that is meant", input->name, form->name);
}

/* Of the current file, which is opened first. */
static ErrorCode read_on(FileDocuments *f, const InputFile *input, const char **text, size_t *length,
                         Error *err) {
    if (!f->reader) {
        f->file.path = input->path;
        TRY(corpus_open(&f->reader, &f->file, NULL, err));
        warn_of_form(f, input);
    }
    return next_chunk(f, text, length, err);
}

/* Chunks of a document count as documents: no word crosses the newline after which they are cut
 * (data/corpus.h). */
static ErrorCode next_document(void *context, const char **text, size_t *length, Error *err) {
    FileDocuments *f = context;
    *text = NULL;
    *length = 0;
    for (; f->current < f->inputs.count; f->current++) {
        const InputFile *input = &f->inputs.items[f->current];
        TRY(input_file_failed(input, read_on(f, input, text, length, err), err));
        if (*text) return OK;
        corpus_report(f->reader);
        corpus_close(f->reader);
        f->reader = NULL;
    }
    return OK;
}

/* Bytes of all files; 0 (unknown) if one is compressed. */
static ErrorCode total_size(const InputFiles *inputs, uint64_t *total, Error *err) {
    bool compressed = false;
    *total = 0;
    for (size_t i = 0; i < inputs->count; i++) {
        uint64_t bytes = 0;
        TRY(file_size(inputs->items[i].path, &bytes, err));
        compressed |= corpus_named_compressed(inputs->items[i].path);
        *total += bytes;
    }
    if (compressed) *total = 0;
    return OK;
}

/* Files are not split into lines: the words are the same, and reading whole files is faster. */
static ErrorCode train(Tokenizer **t, const TokenizerTrainOptions *options, FileDocuments *f, Error *err) {
    TokenizerTrainOptions o = *options;
    TRY(total_size(&f->inputs, &o.total_bytes, err));
    return tokenizer_train(t, &o, next_document, f, err);
}

ErrorCode tokenizer_train_files(Tokenizer **t, const TokenizerTrainOptions *options, const char *const *paths,
                                size_t count, const char *key, Error *err) {
    *t = NULL;
    FileDocuments f = {.file = {.format = FORMAT_AUTO,
                                .split = SPLIT_FILE,
                                .key = key,
                                .encoding = options->any_bytes ? ENCODING_BYTES : ENCODING_UTF8}};
    InputCache cache = {.dir = options->cache_dir};
    ErrorCode code = input_files_open(&f.inputs, paths, count, &cache, err);
    if (code == OK) code = train(t, options, &f, err);
    corpus_close(f.reader);
    input_files_close(&f.inputs);
    text_free(&f.json);
    return code;
}
