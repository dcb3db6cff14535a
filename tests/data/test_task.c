/* Tasks: the questions that documents become, where context ends and continuation begins, windows of long
 * texts, and metrics computed by hand. */
#include "support/bytes_tokenizer.h"

#include <math.h>

#include "base/json.h"
#include "data/task.h"

/* ---- questions ---- */

typedef struct Asked {
    const char *task, *document;
    int count, gold;
    const char *context, *continuation; /* of the last pair; the description precedes the context */
} Asked;

/* The wording of lm-evaluation-harness; tests/interop/test_eval_interop.sh compares with the harness
 * itself. */
static const Asked asked[] = {
    {"hellaswag",
     "{\"activity_label\": \"Cutting [x] grass\", \"ctx_a\": \"A man  [title] mows   it. \", \"ctx_b\": \"HE "
     "then "
     "[step] stops\", \"endings\": [\"runs.\", \" sits [a\\nb] [c]down \"], \"label\": \"1\"}",
     2, 1, "Cutting grass: A man . mows  it. He then stops", " sits [a\nb] down"},
    {"arc_easy",
     "{\"question\": \"Why?\", \"choices\": {\"text\": [\"a\", \"b\", \"c\"], \"label\": [\"1\", \"2\", "
     "\"3\"]}, \"answerKey\": \"3\"}",
     3, 2, "Question: Why?\nAnswer:", " c"},
    {"arc_challenge",
     "{\"question\": \"Why?\", \"choices\": {\"text\": [\"a\", \"b\"], \"label\": [\"A\", \"B\"]}, "
     "\"answerKey\": \"A\"}",
     2, 0, "Question: Why?\nAnswer:", " b"},
    {"piqa", "{\"goal\": \"Open it\", \"sol1\": \"Push.\", \"sol2\": \"Pull.\", \"label\": 1}", 2, 1,
     "Question: Open it\nAnswer:", " Pull."},
    {"sciq",
     "{\"support\": \" \\n Air.\", \"question\": \"What?\", \"distractor1\": \"x\", \"distractor2\": \"y\", "
     "\"distractor3\": \"z\", \"correct_answer\": \"w\"}",
     4, 3, "Air.\nQuestion: What?\nAnswer:", " w"},
    {"openbookqa",
     "{\"question_stem\": \"The sun\", \"choices\": {\"text\": [\"is\", \"was\"], \"label\": [\"A\", "
     "\"B\"]}, \"answerKey\": \" B\"}",
     2, 1, "The sun", " was"},
    {"boolq", "{\"passage\": \"Cats purr.\", \"question\": \"do cats purr\", \"label\": 1}", 2, 1,
     "Cats purr.\nQuestion: do cats purr?\nAnswer:", " yes"},
    {"boolq", "{\"passage\": \"Cats purr.\", \"question\": \"do cats bark\", \"answer\": false}", 2, 0,
     "Cats purr.\nQuestion: do cats bark?\nAnswer:", " yes"},
    {"winogrande",
     "{\"sentence\": \"Ann saw Eve because _ looked  around. \", \"option1\": \"Ann\", \"option2\": "
     "\"Eve\", \"answer\": \"2\"}",
     2, 1, "Ann saw Eve because Eve", " looked  around."},
    {"social_iqa",
     "{\"context\": \"Bo fell.\", \"question\": \"Why?\", \"answerA\": \"a\", \"answerB\": \"b\", "
     "\"answerC\": \"c\", \"label\": \"1\"}",
     3, 0, "Q: Bo fell. Why?\nA:", " c"},
    {"commonsense_qa",
     "{\"question\": \" Where? \", \"choices\": {\"label\": [\"A\", \"B\", \"C\", \"D\", \"E\"], \"text\": "
     "[\"1\", "
     "\"2\", \"3\", \"4\", \"5\"]}, \"answerKey\": \"D\"}",
     5, 3, "Question: Where?\nA. 1\nB. 2\nC. 3\nD. 4\nE. 5\nAnswer:", " E"},
    {"mmlu",
     "{\"subject\": \"high_school_math\", \"question\": \" 1+1? \", \"choices\": [\"1\", \"2\", \"3\", "
     "\"4\"], \"answer\": 1}",
     4, 1,
     "The following are multiple choice questions (with answers) about high school math.\n\n1+1?\nA. 1\nB. "
     "2\nC. 3\nD. 4\nAnswer:",
     " D"},
    {"lambada", "{\"text\": \"He went  home\"}", 1, 0, "He went ", " home"},
    {"text", "{\"text\": \"All of it.\"}", 1, 0, "", "All of it."},
};

static ErrorCode ask(const char *task, const char *document, TaskQuestion *q, Error *err) {
    cJSON *root;
    assert_int_equal(json_parse("test", document, strlen(document), &root, err), OK);
    ErrorCode code = task_question(task_format_find(task), "file:3", root, q, err);
    cJSON_Delete(root);
    return code;
}

static void documents_become_questions(void **state) {
    (void)state;
    TaskQuestion q = {0};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        const Asked *a = &asked[i];
        Error err = {0};
        if (ask(a->task, a->document, &q, &err) != OK) fail_msg("%s: %s", a->task, err.message);
        assert_int_equal(q.count, a->count);
        assert_int_equal(q.gold, a->gold);
        Text context = {0};
        text_add(&context, q.description.data, q.description.length);
        text_add(&context, q.contexts[q.count - 1].data, q.contexts[q.count - 1].length);
        assert_string_equal(context.data ? context.data : "", a->context);
        text_free(&context);
        assert_string_equal(q.continuations[q.count - 1].data, a->continuation);
    }
    task_question_free(&q);
}

static void what_is_missing_is_named(void **state) {
    (void)state;
    static const char *const wrong[][3] = {
        {"piqa", "{\"goal\": \"Open it\", \"sol1\": \"Push.\", \"label\": 1}",
         "file:3: sol2: expected a text"},
        {"piqa", "{\"goal\": 3, \"sol1\": \"a\", \"sol2\": \"b\", \"label\": 1}",
         "file:3: goal: expected a text"},
        {"piqa", "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\", \"label\": -1}",
         "label: expected which of the 2"},
        {"piqa", "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\"}", "label: expected which"},
        {"winogrande",
         "{\"sentence\": \"No blank\", \"option1\": \"a\", \"option2\": \"b\", \"answer\": \"1\"}",
         "sentence: expected a text with a \"_\""},
        {"winogrande", "{\"sentence\": \"A _\", \"option1\": \"a\", \"option2\": \"b\", \"answer\": \"\"}",
         "answer: expected which"},
        {"arc_easy", "{\"question\": \"q\", \"choices\": {\"text\": \"a\"}, \"answerKey\": \"A\"}",
         "choices.text: expected an array of texts"},
        {"arc_easy",
         "{\"question\": \"q\", \"choices\": {\"text\": [\"a\"], \"label\": [\"A\"]}, \"answerKey\": \"B\"}",
         "answerKey: expected which of the 1"},
        {"mmlu", "{\"subject\": \"s\", \"question\": \"q\", \"choices\": [\"a\"], \"answer\": 0}",
         "choices.1: expected a text"},
        {"text", "[1]", "file:3: expected an object"},
    };
    TaskQuestion q = {0};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        Error err = {0};
        assert_int_equal(ask(wrong[i][0], wrong[i][1], &q, &err), ERR_DATA);
        if (!strstr(err.message, wrong[i][2])) fail_msg("%s: %s", wrong[i][2], err.message);
    }
    task_question_free(&q);
}

static void formats_are_found_by_names(void **state) {
    (void)state;
    assert_string_equal(task_format_find("mmlu_anatomy")->name, "mmlu");
    assert_string_equal(task_format_find("arc_easy-test")->name, "arc_easy");
    assert_string_equal(task_format_find("arc_challenge")->name, "arc_challenge");
    assert_null(task_format_find("mmlux"));
    assert_null(task_format_find("arc"));
    assert_null(task_format_find(""));
}

static void white_space_is_pythons(void **state) {
    (void)state;
    assert_int_equal(task_leading_space("\x1c \xe3\x80\x80x", 6), 5);
    assert_int_equal(task_trailing_space("x\xc2\xa0 \n", 5), 4);
    assert_int_equal(task_trailing_space("   ", 3), 3);
    assert_int_equal(task_trailing_space("\xc3\xa9", 2), 0);
    assert_int_equal(task_words("", 0), 1);
    assert_int_equal(task_words("a  b\nc", 6), 3);
    assert_int_equal(task_words(" a ", 3), 3);
}

/* ---- tokens ---- */

static Task *open_task(const char *name, const char *text, int64_t context, bool add_bos, int64_t limit) {
    TaskSource source = {.path = mem_strdup(files_write(name, text, strlen(text))), .limit = limit};
    Task *t;
    Error err = {0};
    if (task_open(&t, &source, NULL, tokenizer, context, add_bos, &err) != OK) fail_msg("%s", err.message);
    free(source.path);
    return t;
}

/* With the byte tokenizer: context before the bar, scored text after it; '^' is the BOS. */
static void expect_request(const Task *t, size_t i, const char *expected) {
    char shown[256];
    size_t n = 0;
    const TaskRequest *r = &t->request[i];
    for (int32_t k = 0; k < r->count; k++) {
        if (k == r->first) shown[n++] = '|';
        int32_t id = t->tokens.ids[r->at + (size_t)k];
        shown[n++] = id == BOS ? '^' : (char)id;
    }
    shown[n] = '\0';
    assert_string_equal(shown, expected);
}

#define PIQA(goal, one, two) \
    "{\"goal\": \"" goal "\", \"sol1\": \"" one "\", \"sol2\": \"" two "\", \"label\": 0}\n"

static void borders_are_where_the_harness_has_them(void **state) {
    (void)state;
    Task *t = open_task("piqa.jsonl", PIQA("g", "a", "bc"), 100, false, 0);
    assert_string_equal(t->name, "piqa");
    assert_int_equal(t->requests, 2);
    expect_request(t, 0, "Question: g\nAnswer:| a");
    expect_request(t, 1, "Question: g\nAnswer:| bc");
    task_close(t);
    t = open_task("piqa.jsonl", PIQA("g", "a", "bc"), 100, true, 0);
    expect_request(t, 0, "^Question: g\nAnswer:| a");
    task_close(t);
    /* White space at the end of the context is scored with the continuation; an empty context is the BOS. */
    t = open_task("lambada.jsonl", "{\"text\": \"x  word\"}\n{\"text\": \"word\"}\n", 100, false, 0);
    expect_request(t, 0, "x|  word");
    expect_request(t, 1, "^| word");
    task_close(t);
}

static void long_contexts_lose_their_left(void **state) {
    (void)state;
    Task *t = open_task("piqa.jsonl", PIQA("0123456789", "a", "bc"), 8, false, 0);
    assert_int_equal(t->truncated, 2);
    expect_request(t, 0, "Answer:| a");
    expect_request(t, 1, "nswer:| bc");
    task_close(t);
    TaskSource source = {.path = mem_strdup(files_text("piqa.jsonl", PIQA("g", "a", "0123456789")))};
    Error err = {0};
    assert_int_equal(task_open(&t, &source, NULL, tokenizer, 8, false, &err), ERR_DATA);
    assert_non_null(
        strstr(err.message, "piqa.jsonl:1: an answer of 11 tokens does not fit the context of 8"));
    free(source.path);
}

static ErrorCode open_with(Task **t, const TaskSource *source, Error *err) {
    return task_open(t, source, NULL, tokenizer, 200, false, err);
}

/* From the task's own file: the first ones, except the question and equal ones. From another file: the first
 * ones, all of them. */
static void examples_stand_before_the_question(void **state) {
    (void)state;
    TaskSource source = {
        .path = mem_strdup(files_text("piqa.jsonl", PIQA("a", "x", "y") PIQA("b", "x", "y")
                                                        PIQA("a", "x", "z") PIQA("c", "u", "v"))),
        .num_fewshot = 2,
        .limit = 2};
    Task *t;
    Error err = {0};
    assert_int_equal(open_with(&t, &source, &err), OK);
    assert_int_equal(t->documents, 2);
    expect_request(t, 1, "Question: b\nAnswer: x\n\nQuestion: c\nAnswer: u\n\nQuestion: a\nAnswer:| y");
    expect_request(t, 2, "Question: a\nAnswer: x\n\nQuestion: a\nAnswer: x\n\nQuestion: b\nAnswer:| x");
    task_close(t);
    source.num_fewshot = 4;
    assert_int_equal(open_with(&t, &source, &err), ERR_DATA);
    assert_non_null(
        strstr(err.message, "piqa.jsonl:1: num_fewshot is 4, but there are only 2 examples for it"));
    source.examples = mem_strdup(files_text("other.jsonl", PIQA("a", "x", "y") PIQA("d", "m", "n")));
    source.num_fewshot = 1;
    assert_int_equal(open_with(&t, &source, &err), OK);
    expect_request(t, 0, "Question: a\nAnswer: x\n\nQuestion: a\nAnswer:| x");
    task_close(t);
    source.num_fewshot = 0;
    assert_int_equal(open_with(&t, &source, &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "examples goes with num_fewshot"));
    free(source.path);
    free(source.examples);
}

static void expect_one_shot(const char *file, const char *text, const char *expected) {
    TaskSource source = {.path = mem_strdup(files_text(file, text)), .num_fewshot = 1};
    Task *t;
    Error err = {0};
    if (open_with(&t, &source, &err) != OK) fail_msg("%s: %s", file, err.message);
    expect_request(t, 0, expected);
    task_close(t);
    free(source.path);
}

/* The description once; the blank filled in; two spaces before a word, as in the harness. */
static void examples_are_as_the_harness_has_them(void **state) {
    (void)state;
#define MMLU(question, answer)                                                                         \
    "{\"subject\": \"x\", \"question\": \"" question "\", \"choices\": [\"1\", \"2\", \"3\", \"4\"], " \
    "\"answer\": " answer "}\n"
    expect_one_shot("mmlu.jsonl", MMLU("q", "1") MMLU("r", "2"),
                    "The following are multiple choice questions (with answers) about x.\n\n"
                    "r\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer: C\n\nq\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:| A");
#define WINO(sentence) \
    "{\"sentence\": \"" sentence "\", \"option1\": \"k\", \"option2\": \"l\", \"answer\": \"2\"}\n"
    expect_one_shot("winogrande.jsonl", WINO("a _ b") WINO("c _ d"), "c l d\n\na k| b");
    expect_one_shot("lambada.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"c d\"}\n", "c  d\n\na| b");
    TaskSource source = {.path = mem_strdup(files_text("text.jsonl", "{\"text\": \"a\"}\n")),
                         .num_fewshot = 1};
    Task *t;
    Error err = {0};
    assert_int_equal(open_with(&t, &source, &err), ERR_CONFIG);
    free(source.path);
}

/* Each token is scored once; the last window reaches back. */
static void texts_are_scored_in_windows(void **state) {
    (void)state;
    Task *t = open_task("text.jsonl", "{\"text\": \"0123456789\"}\n{\"text\": \"ab\"}\n", 4, true, 0);
    assert_int_equal(t->requests, 4);
    assert_int_equal(t->truncated, 0);
    expect_request(t, 0, "^|0123");
    expect_request(t, 1, "3|4567");
    expect_request(t, 2, "567|89");
    expect_request(t, 3, "^|ab");
    assert_int_equal(t->request[2].slot, 0);
    assert_int_equal(t->request[3].slot, 1);
    assert_int_equal(t->length[0].bytes, 10);
    task_close(t);
    t = open_task("text.txt", "one\n\ntwo", 100, false, 0);
    assert_int_equal(t->documents, 1);
    expect_request(t, 0, "^|one\n\ntwo");
    task_close(t);
}

static void files_are_read_as_far_as_asked(void **state) {
    (void)state;
    const char *three = PIQA("a", "x", "y") PIQA("b", "x", "y") PIQA("c", "x", "y");
    Task *all = open_task("piqa.jsonl", three, 100, false, 0),
         *two = open_task("piqa.jsonl", three, 100, false, 2),
         *other = open_task("piqa_2.jsonl", PIQA("a", "x", "y") "\n" PIQA("b", "x", "y"), 100, false, 0);
    assert_int_equal(all->documents, 3);
    assert_int_equal(two->documents, 2);
    assert_string_equal(two->print, other->print);
    assert_string_not_equal(all->print, two->print);
    task_close(all);
    task_close(two);
    task_close(other);
}

static void expect_refused(const char *file, const char *text, const char *task, ErrorCode code,
                           const char *words) {
    TaskSource source = {.path = mem_strdup(files_path(file)), .task = (char *)(uintptr_t)task};
    Task *t;
    Error err = {0};
    if (text) files_text(file, text);
    assert_int_equal(task_open(&t, &source, NULL, tokenizer, 100, false, &err), code);
    assert_null(t);
    if (!strstr(err.message, words)) fail_msg("%s: %s", words, err.message);
    free(source.path);
}

/* A small file that expands without bound is refused before it exhausts memory; the same content uncompressed
 * would be accepted. */
static void what_no_text_compresses_to_is_refused(void **state) {
    (void)state;
    size_t length = (size_t)80 << 20;
    char *text = malloc(length);
    assert_non_null(text);
    for (size_t i = 0; i < length; i++) text[i] = "a word and "[i % 11];
    Task *t;
    Error err = {0};
    TaskSource source = {.path = (char *)(uintptr_t)files_zstd("bomb.txt.zst", text, length, SIZE_MAX),
                         .task = (char[]){"text"}};
    assert_int_equal(task_open(&t, &source, NULL, tokenizer, 100, false, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "hold more than 64 MiB"));
    free(text);
}

static void wrong_files_are_refused(void **state) {
    (void)state;
    expect_refused("nothing.jsonl", NULL, "piqa", ERR_NOINPUT, "nothing.jsonl");
    expect_refused("quiz.jsonl", "{}\n", NULL, ERR_CONFIG, "its name says that it is of \"quiz\"");
    expect_refused("quiz.jsonl", "{}\n", "piqua", ERR_CONFIG,
                   "\"piqua\" is no task: expected one of hellaswag");
    expect_refused("quiz.jsonl", "{}\n", "piqa_2", ERR_CONFIG, "\"piqa_2\" is no task");
    expect_refused("piqa.jsonl", "", "auto", ERR_DATA, "no documents");
    expect_refused("piqa.jsonl", PIQA("a", "x", "y") "{\"goal\": ", "auto", ERR_DATA, "piqa.jsonl:2");
    expect_refused("piqa.jsonl", PIQA("a", "x", "y") "{\"goal\": \"\\u0000\"}", "auto", ERR_DATA,
                   "piqa.jsonl:2");
}

/* ---- metrics ---- */

static void close_to(double a, double b) {
    if (!(fabs(a - b) <= 1e-12 * fabs(b))) fail_msg("%.17g is not %.17g", a, b);
}

/* Sums -2, -3 over 1 and 2 characters: the first is likelier, the second by character. */
static void choices_are_compared(void **state) {
    (void)state;
    Task *t = open_task("piqa.jsonl", PIQA("a", "x", "yz") PIQA("b", "x", "yz") PIQA("c", "x", "\xc3\xa9z"),
                        100, false, 0);
    TaskScore scores[6] = {{-2, 0, 0}, {-3, 1, 0}, {-4, 0, 0}, {-1, 0, 0}, {-2, 0, 0}, {-2, 0, 0}};
    TaskFigures f;
    task_figures(t, scores, &f);
    assert_int_equal(f.documents, 3);
    close_to(f.acc, 2.0 / 3); /* the first of equals */
    close_to(f.acc_stderr, sqrt(2.0 / 9 / 2));
    assert_true(f.acc_norm == 0);
    assert_true(f.acc_norm_stderr == 0);
    close_to(f.gold_bits_per_byte, 8 / log(2) / 3);
    assert_true(isnan(f.perplexity) && isnan(f.bits_per_byte));
    assert_int_equal(t->length[5].characters, 2);
    scores[1].nonfinite = 1;
    task_figures(t, scores, &f);
    assert_int_equal(f.nonfinite, 1);
    assert_true(isnan(f.acc) && isnan(f.acc_norm));
    task_close(t);
}

static void words_have_perplexities(void **state) {
    (void)state;
    Task *t = open_task("lambada.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"c d\"}\n", 100, false, 0);
    TaskFigures f;
    task_figures(t, (TaskScore[]){{-1, 0, 0}, {-3, 1, 0}}, &f);
    close_to(f.acc, 0.5);
    close_to(f.perplexity, exp(2));
    close_to(f.perplexity_stderr, exp(2) * 1); /* the deviation is sqrt 2, over the root of 2 */
    assert_true(isnan(f.acc_norm));
    task_close(t);
}

static void texts_have_perplexities(void **state) {
    (void)state;
    Task *t = open_task("text.jsonl", "{\"text\": \"0123456789\"}\n{\"text\": \"a b\"}\n", 4, false, 0);
    TaskFigures f;
    TaskScore slots[2];
    task_slots(t, (TaskScore[]){{-1, 0, 0}, {-2, 0, 0}, {-3, 0, 0}, {-7, 0, 0}}, slots);
    task_figures(t, slots, &f);
    close_to(f.word_perplexity, exp(13.0 / 3));
    close_to(f.byte_perplexity, exp(1));
    close_to(f.bits_per_byte, 1 / log(2));
    assert_true(isnan(f.acc));
    task_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_become_questions),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(formats_are_found_by_names),
        cmocka_unit_test(white_space_is_pythons),
        cmocka_unit_test(borders_are_where_the_harness_has_them),
        cmocka_unit_test(long_contexts_lose_their_left),
        cmocka_unit_test(examples_stand_before_the_question),
        cmocka_unit_test(examples_are_as_the_harness_has_them),
        cmocka_unit_test(texts_are_scored_in_windows),
        cmocka_unit_test(files_are_read_as_far_as_asked),
        cmocka_unit_test(wrong_files_are_refused),
        cmocka_unit_test(what_no_text_compresses_to_is_refused),
        cmocka_unit_test(choices_are_compared),
        cmocka_unit_test(words_have_perplexities),
        cmocka_unit_test(texts_have_perplexities),
    };
    return cmocka_run_group_tests(tests, bytes_setup, bytes_teardown);
}
