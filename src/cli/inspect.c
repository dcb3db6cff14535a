/* weft inspect: what is in a model file, a model directory, a checkpoint or the newest checkpoint of a run;
 * and the parameter groups of a run.
 *
 * Nothing is trusted unchecked: a checkpoint is first verified completely, a model directory by its headers
 * and index, each value as it is read. Names come from files and are escaped. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/find.h"
#include "checkpoint/manifest.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "model/families/family.h"
#include "optimizer/groups.h"
#include "plan/rank.h"
#include "train/setup.h"

/* The directory or file for the operand: RUN and RUN/checkpoints mean their newest checkpoint. The content of
 * a directory determines its kind. Tried in this order: a file, a checkpoint or model directory, a run, a
 * directory of checkpoints. The caller frees *path, also after a failure. */
static ErrorCode resolve(const char *operand, char **path, Error *err) {
    char *below;
    *path = NULL;
    if (file_is_url(operand)) return checkpoint_find_weights(operand, path, err);
    *path = mem_strdup(operand);
    if (!file_is_dir(operand) || file_holds(operand, MANIFEST_FILE) || file_holds(operand, MODEL_FILE) ||
        file_holds(operand, MODEL_INDEX) || file_holds(operand, ADAPTER_FILE))
        return OK;
    TRY(checkpoint_own_directory(operand, &below, err));
    Checkpoint c;
    /* Accepts checkpoints with weights only. Opening verifies; the checkpoint is closed again, since only its
     * path is needed. */
    ErrorCode code = checkpoint_open(&c, file_is_dir(below) ? below : operand, false, err);
    if (code == OK) {
        free(*path);
        *path = mem_strdup(c.path);
        checkpoint_close(&c);
    } else if (code == ERR_NOINPUT && !file_is_dir(below)) {
        error_set(err, ERR_NOINPUT, "%s: expected a model directory, a checkpoint or a run; it holds no %s",
                  operand, MODEL_FILE);
    }
    free(below);
    return code;
}

static void print_experts(const ModelConfig *c) {
    char count[32];
    if (c->num_experts == 0) return;
    terminal_printf("experts     %lld of width %lld in %lld layers, %lld a token: %s active parameters\n",
                    (long long)c->num_experts, (long long)model_dim(c, DIM_EXPERT),
                    (long long)model_expert_blocks(c), (long long)c->num_experts_per_tok,
                    text_count(model_active_count(c), count));
}

static void print_mixers(const ModelConfig *c) {
    Text text = {0};
    if (!model_is_recurrent(c)) return;
    model_mixers_text(c, &text);
    terminal_printf("blocks      %s\n", text.data);
    text_free(&text);
}

/* Names known sizes: "the shape of Llama 3.2 1B" says more than its numbers. */
static void print_shape(const ModelConfig *c) {
    char count[32];
    const PublishedSize *known = family_published(c);
    terminal_printf(
        "model       %s, %s parameters: %lld layers of %lld, %lld heads, %lld key/value heads, vocabulary "
        "%lld%s%s%s\n",
        model_family(c)->model_type, text_count(model_parameter_count(c), count),
        (long long)c->num_hidden_layers, (long long)c->hidden_size, (long long)c->num_attention_heads,
        (long long)c->num_key_value_heads, (long long)c->vocab_size, known ? " (the shape of " : "",
        known ? known->name : "", known ? ")" : "");
    print_experts(c);
    print_mixers(c);
}

/* A config.json of an unknown family is accepted; one that is not JSON is an error. */
static ErrorCode describe_config(const char *dir, Error *err) {
    cJSON *root = NULL;
    ModelConfig c;
    Error other;
    char *path = path_join(dir, "config.json");
    ErrorCode code = OK;
    if (file_exists(path)) {
        code = json_read(path, (size_t)1 << 20, &root, err);
        if (code == OK && model_config_read(&c, path, &other) == OK)
            print_shape(&c);
        else if (code == OK)
            log_warn("not a model that weft trains: %s", other.message);
        cJSON_Delete(root);
    }
    free(path);
    return code;
}

/* Every byte is read before a checkpoint is called good. A damaged checkpoint is an error, and nothing more
 * of it is described. */
static ErrorCode describe_manifest(const char *dir, Error *err) {
    Manifest m;
    char bytes[32];
    TRY(checkpoint_verify(dir, err));
    TRY(manifest_read(&m, dir, err));
    terminal_printf("checkpoint  step %lld, %s, %s, every byte verified%s\n", (long long)m.step, m.time,
                    text_bytes((double)manifest_bytes(&m), bytes), m.resumable ? "" : ", weights only");
    manifest_free(&m);
    return OK;
}

/* Large enough for sixteen dimensions of twenty digits. */
static void shape_text(const SafeTensor *t, char out[320]) {
    size_t used = (size_t)snprintf(out, 320, "[");
    for (int i = 0; i < t->rank; i++)
        used += (size_t)snprintf(out + used, 320 - used, "%s%llu", i ? ", " : "",
                                 (unsigned long long)t->shape[i]);
    snprintf(out + used, 320 - used, "]");
}

/* With values each tensor is read as a whole, which takes most of the time. The name is escaped: it comes
 * from a file, and a terminal might interpret it. Types without figures get a line without numbers. */
static ErrorCode print_tensor(const ModelFiles *m, const ModelTensor *t, bool values, Error *err) {
    char name[256], shape[320];
    TensorFigures f = {0};
    error_escape(name, sizeof name, t->name, strlen(t->name));
    shape_text(t->tensor, shape);
    terminal_printf("%-52s %-5s %-18s", name, safe_type_name(t->tensor->type), shape);
    if (values) TRY(modelfiles_figures(m, t, &f, err));
    if (f.known) terminal_printf(" %12.6g %12.6g", f.norm, f.max);
    if (f.nonfinite) terminal_printf("  %llu not finite", (unsigned long long)f.nonfinite);
    terminal_printf("\n");
    return OK;
}

/* Totals first, since a list of hundreds would scroll them out of sight. Tensors come in the order of the
 * opened model, one line each, so that diff can compare two listings. An error in one ends the list there;
 * the lines above it are valid. */
static ErrorCode print_tensors(const ModelFiles *m, bool values, Error *err) {
    uint64_t elements = 0, bytes = 0;
    char count[32], size[32];
    for (size_t i = 0; i < m->count; i++) {
        const SafeTensor *t = m->tensors[i].tensor;
        bytes += t->end - t->begin;
        /* A sum beyond 64 bits means a nonsensical header; it is shown, not refused. */
        if (__builtin_add_overflow(elements, t->elements, &elements)) elements = INT64_MAX;
    }
    terminal_printf("tensors     %zu with %s elements in %d file%s, %s\n", m->count,
                    text_count((int64_t)elements, count), m->file_count, m->file_count == 1 ? "" : "s",
                    text_bytes((double)bytes, size));
    if (m->count > 0)
        terminal_printf("\n%-52s %-5s %-18s %s\n", "name", "dtype", "shape",
                        values ? "        norm          max" : "");
    for (size_t i = 0; i < m->count; i++) TRY(print_tensor(m, &m->tensors[i], values, err));
    return OK;
}

/* --digest prints only the digest, for scripts: it is equal for equal weights, so that comparing two lines
 * compares two models, however they are stored. */
static ErrorCode inspect_files(const Arguments *args, const char *path, Error *err) {
    ModelFiles m;
    char digest[65];
    bool digest_only = arguments_has(args, "--digest");
    TRY(modelfiles_open(&m, path, err));
    ErrorCode code = digest_only ? modelfiles_digest(&m, digest, err)
                                 : print_tensors(&m, !arguments_has(args, "--header"), err);
    if (code == OK && digest_only) terminal_printf("%s\n", digest);
    modelfiles_close(&m);
    return code;
}

/* Facts other than tensors are for people; a digest covers the tensors only. */
static ErrorCode inspect_path(const Arguments *args, const char *path, Error *err) {
    if (file_is_dir(path) && !arguments_has(args, "--digest")) {
        terminal_printf("path        %s\n", path);
        if (file_holds(path, MANIFEST_FILE)) TRY(describe_manifest(path, err));
        TRY(describe_config(path, err));
    }
    return inspect_files(args, path, err);
}

/* ---- parameter groups ---- */

/* Names and shapes follow from the configuration; no weights are opened. So one can see before starting a run
 * which parameters a pattern matches. */
static ErrorCode print_groups(const Config *c, Error *err) {
    ParamTable table;
    ParamGroups groups;
    Text out = {0};
    ModelConfig shape = c->model.shape;
    AdapterSpec adapters = rank_adapters(c);
    TRY(param_table_build(&table, &shape, err));
    ErrorCode code = adapters_put(&table, &shape, &c->model.shape, &adapters, err);
    if (code == OK) code = param_groups_build(&groups, &c->optimizer, &table, err);
    if (code == OK) {
        param_groups_print(&groups, &table, true, &out);
        fputs(out.data, stdout);
        param_groups_free(&groups);
    }
    text_free(&out);
    param_table_free(&table);
    return code;
}

/* The configuration is loaded as for a run, so the groups are the same. A run directory holds its own
 * resolved one: its groups are those of its last start, whatever has happened to the original file. */
static ErrorCode inspect_groups(const Arguments *args, Error *err) {
    Config c;
    OptionSet set;
    ErrorCode code = config_load_either(&c, &set, args->operands[0], args->operand_count - 1,
                                        args->operands + 1, checkpoint_find_shape, err);
    if (code == OK) code = setup_shape_alone(&c, &set, err);
    if (code == OK) code = print_groups(&c, err);
    options_free(&set);
    return code;
}

/* One verb for two questions: what is stored, and how it is trained. Output is flushed here, so that a full
 * disk is reported as such. */
static ErrorCode run_inspect(const Arguments *args, Error *err) {
    char *path = NULL;
    bool groups = arguments_has(args, "--groups");
    if (!groups && args->operand_count > 1)
        return error_set(err, ERR_USAGE,
                         "inspect: one file or directory at a time; only --groups takes section.key=value");
    ErrorCode code = groups ? inspect_groups(args, err) : resolve(args->operands[0], &path, err);
    if (code == OK && !groups) code = inspect_path(args, path, err);
    if (code == OK && (fflush(stdout) != 0 || ferror(stdout)))
        code = error_errno(err, ERR_IO, "standard output: writing failed");
    free(path);
    return code;
}

static const Flag flags[] = {
    {"--digest", 0, NULL,
     "print one SHA-256 over names, shapes and values, whatever the files, their order and the float type"},
    {"--header", 0, NULL, "names, types and shapes only: no value is read"},
    {"--groups", 0, NULL,
     "of a configuration or a run: which parameter is in which group of the optimizer, and what that does"},
    {NULL, 0, NULL, NULL},
};

const Verb verb_inspect = {
    .name = "inspect",
    .summary = "show the tensors of a model or a checkpoint, or its digest",
    .synopsis = "FILE_OR_DIR [--digest | --header | --groups [section.key=value ...]]",
    .details = "Takes a safetensors file, a Hugging Face model directory (sharded or not), a checkpoint, or "
               "a run, of which it takes the newest good checkpoint. Everything is checked on the way: the "
               "status is 0 for what is well formed, and another, with one error, for what is not.\n\n"
               "The digest is equal for equal weights, however they are stored: one file or shards, any "
               "order, fp32 or a shorter float type that holds the same values.\n\n"
               "Examples:\n"
               "  weft inspect runs/demo\n"
               "  weft inspect --digest runs/demo/checkpoints/step-00000300\n"
               "  weft inspect model.safetensors --header\n"
               "  weft inspect my.yaml --groups optimizer.kind=muon",
    .flags = flags,
    .min_operands = 1,
    .max_operands = -1,
    .run = run_inspect,
};
