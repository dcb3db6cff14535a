/* Shared by the files of template/:
 *
 *     lex.c        text and tags; tokens within tags
 *     parse.c      statements and expressions into a syntax tree
 *     value.c      values of expressions, and their output
 *     builtins.c   filters, tests, methods, functions: tables
 *     format.c     Python's % operator and str.format
 *     run.c        evaluates the tree
 *     growth.c     renders a conversation message by message, without starting over
 *
 *  J1. Nodes and the strings in them are in the template's arena. Values of a rendering are in an arena of
 *      its own. Arenas are freed as a whole, never by item.
 *  J2. Values are constant except namespaces, as in the sandbox in which transformers runs templates. */
#ifndef WEFT_TEMPLATE_INTERNAL_H
#define WEFT_TEMPLATE_INTERNAL_H

#include <stdint.h>

#include "template/template.h"
#include "tokenizer/utf8.h"

typedef struct Arena {
    struct ArenaChunk *chunks;
    size_t used;
} Arena;
void *arena_take(Arena *a, size_t bytes); /* zeroed */
void arena_free(Arena *a);

/* ---- values ---- */

typedef enum ValueKind {
    VALUE_UNDEFINED, /* bytes: the undefined name */
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_LONG, /* an integer beyond 64 bits: its digits, as JSON has them */
    VALUE_FLOAT,
    VALUE_STRING,
    VALUE_LIST,
    VALUE_DICT,
    VALUE_NAMESPACE,
    VALUE_MACRO
} ValueKind;

/* Origin of a list: tuples print differently, and Python's views and iterators have no text. A string may be
 * Markup, which HTML-escapes everything that is joined to it (filters safe and escape). */
typedef enum ValueForm { FORM_PLAIN, FORM_TUPLE, FORM_VIEW, FORM_MARKUP } ValueForm;

/* Whether a rendering with more messages may change the value (growth.c). */
typedef enum Open {
    CLOSED,
    OPEN,       /* a list that may grow; in a loop, what depends on its end */
    OPEN_PROMPT /* add_generation_prompt */
} Open;

typedef struct Value {
    ValueKind kind;
    ValueForm form;
    Open open;
    union {
        int64_t integer; /* bool: 0, 1 */
        double number;
        const char *bytes;         /* [size] UTF-8, with a caller's marks between; VALUE_LONG: digits */
        const struct Value *items; /* [size]; dict: [2 size] key, value, key, value */
        struct Namespace *space;
        const struct Node *macro;
    };
    size_t size;
} Value;

typedef struct Namespace {
    Value *items; /* [2 count] */
    size_t count, capacity;
    struct Namespace *before; /* the previously created one */
} Namespace;

static inline Value value_bool(bool truth) { return (Value){.kind = VALUE_BOOL, .integer = truth}; }
static inline Value value_int(int64_t integer) { return (Value){.kind = VALUE_INT, .integer = integer}; }
static inline Value value_string(const char *bytes, size_t size) {
    return (Value){.kind = VALUE_STRING, .bytes = bytes, .size = size};
}
static inline Value value_list(const Value *items, size_t size) {
    return (Value){.kind = VALUE_LIST, .items = items, .size = size};
}
Value value_word(const char *word);
/* A copy in the arena. */
Value value_copy(Arena *a, const char *bytes, size_t size);
/* The integer with these digits, with or without a sign, of any size. */
Value value_whole(Arena *a, const char *digits);
/* Without `copies`, strings still point into `item`. */
Value value_of_json(Arena *a, const cJSON *item, bool copies);

bool value_truth(const Value *v);
bool value_equal(const Value *a, const Value *b);
bool value_is_number(const Value *v); /* bools are numbers, as in Python */
double value_number(const Value *v);
/* -1, 0, 1 as a is less than, equal to, greater than b, both numbers, exactly; 2: one is NaN. */
int value_order(const Value *a, const Value *b);
/* The value of a key of a dict or namespace; NULL when it has none. */
const Value *value_member(const Value *v, const char *key, size_t length);
/* The same for a dict's key of any kind. */
const Value *value_item(const Value *dict, const Value *key);
bool value_is_key(const Value *v);           /* valid dict keys: strings, numbers, none */
const char *value_kind_name(const Value *v); /* for messages */
void value_print(const Value *v, Text *out); /* as Python's str */
/* Python's json.dumps. */
typedef struct JsonStyle {
    int indent; /* < 0: one line */
    bool sorted, ascii;
    Value comma, colon; /* between items; between a key and its value */
    int depth;          /* nesting at its start */
} JsonStyle;
void value_json(const Value *v, JsonStyle style, Text *out);

/* Number of characters of a string; byte offset of a character. */
size_t string_characters(const char *bytes, size_t size);
size_t string_offset(const char *bytes, size_t size, size_t character);
/* The string HTML-escaped (& < > ' "), as Markup; Markup is returned unchanged. */
Value value_escape(Arena *a, const Value *v);
bool is_python_space(uint32_t code);

/* Values share their parts, so a small one can have a huge output. Subtracts the number of parts that output
 * would visit from *left. False if there are more, or more levels than `depth`. */
bool value_weigh(const Value *v, int depth, size_t *left);

/* ---- nodes ---- */

typedef enum NodeKind {
    /* expressions */
    NODE_LITERAL, /* literal */
    NODE_NAME,    /* name */
    NODE_LIST,    /* a: items */
    NODE_DICT,    /* a: keys; b of each: its value */
    NODE_MEMBER,  /* a.name */
    NODE_INDEX,   /* a[b] */
    NODE_SLICE,   /* a[b:c:d], each of b, c, d may be NULL */
    NODE_CALL,    /* a(arguments) */
    NODE_METHOD,  /* a.name(arguments); op: index in methods[] */
    NODE_FILTER,  /* a | name(arguments); op: index in filters[] */
    NODE_TEST,    /* a is name(arguments); op: index in tests[] */
    NODE_NOT,
    NODE_NEGATIVE,
    NODE_AND,
    NODE_OR,
    NODE_CHOICE,  /* b if a else c (NULL: undefined) */
    NODE_BINARY,  /* a op b */
    NODE_COMPARE, /* a, then pairs in b: op and operand in a */
    /* statements */
    NODE_TEXT,      /* literal */
    NODE_PRINT,     /* a */
    NODE_IF,        /* a ? b : c */
    NODE_FOR,       /* for `arguments` in a if d: b, else c; op: it is not nested */
    NODE_SET,       /* name = a, or name.member = a */
    NODE_SET_BLOCK, /* name = rendering of b */
    NODE_FILTERED,  /* rendering of b, through the filters in a (on an unnamed name) */
    NODE_MACRO,     /* name(arguments), body b */
    NODE_BREAK,
    NODE_CONTINUE,
    NODE_GENERATION, /* b */
    /* parts of others */
    NODE_ARGUMENT, /* name = a; name NULL: positional. Of a macro: name, default a or NULL */
    NODE_OPERAND   /* op a */
} NodeKind;

typedef enum Operator {
    OPERATOR_NONE,
    ADD,
    SUBTRACT,
    MULTIPLY,
    DIVIDE,
    DIVIDE_WHOLE,
    REMAINDER,
    POWER,
    CONCATENATE,
    EQUAL,
    UNEQUAL,
    LESS,
    LESS_EQUAL,
    GREATER,
    GREATER_EQUAL,
    IN,
    NOT_IN
} Operator;

typedef struct Node {
    NodeKind kind;
    int line;
    int op; /* Operator, or an index in a table of builtins */
    const char *name, *member;
    Value literal;
    struct Node *a, *b, *c, *d, *arguments;
    struct Node *next; /* in a list of statements, items or arguments */
} Node;

struct Template {
    char *where;
    Arena arena;
    Node *body;
    bool marks_assistant;
};

/* ---- tokens ---- */

typedef enum TokenKindOfTag { TAG_NAME, TAG_STRING, TAG_INT, TAG_FLOAT, TAG_SIGN, TAG_END } TagTokenKind;

/* A token within a tag. The text of a sign is its one or two bytes. */
typedef struct TagToken {
    TagTokenKind kind;
    int line;
    const char *text;
    size_t length;
    Value literal; /* of a string or a number */
} TagToken;

typedef enum PieceKind { PIECE_TEXT, PIECE_PRINT, PIECE_BLOCK, PIECE_END } PieceKind;

typedef struct Lexer {
    const char *where;
    Arena *arena;
    const char *text; /* [length], newlines are "\n" */
    size_t length, at;
    int line, depth;  /* open brackets within a tag */
    bool print;       /* the tag is {{ */
    bool line_starts; /* the preceding text ends with a newline */
    TagToken token;   /* current token within a tag */
    Error *err;
} Lexer;

ErrorCode lexer_fail(const Lexer *l, int line, const char *format, ...) PRINTF_LIKE(3, 4);
/* The next text, or the next tag with its first token in l->token. Skips comments. */
ErrorCode lexer_piece(Lexer *l, PieceKind *kind, Value *text);
ErrorCode lexer_next(Lexer *l); /* into l->token; TAG_END after the end of the tag */

/* ---- running ---- */

typedef struct Scope {
    const struct Scope *parent;
    Namespace names;
} Scope;

typedef struct Run {
    const Template *t;
    Arena arena;
    Scope root;
    Namespace *spaces;             /* the last created */
    bool looked_ahead;             /* it read an open value */
    struct TemplateGrowth *growth; /* NULL: not incremental */
    const char *date;
    Text *out;
    TemplateSpans *answers;
    int captures; /* within {% set %} blocks and macros */
    int depth;
    int64_t steps;
    Error *err;
} Run;

ErrorCode run_fail(const Run *r, int line, const char *format, ...) PRINTF_LIKE(3, 4);
/* Fails if a value of this many bytes would exceed the limits. */
ErrorCode run_check_size(Run *r, int line, size_t bytes);
/* Fails for lists and mappings nested without end (value_weigh). */
ErrorCode run_weigh(Run *r, int line, const Value *v);
void namespace_set(Arena *a, Namespace *n, const char *name, const Value *v);

enum { MOST_ARGUMENTS = 8 };

ErrorCode run_template(Run *r); /* from the start; its names are set */
/* Resumes at loop `n`, before its item `from`, and runs to the end of the template. */
ErrorCode run_on(Run *r, const Node *n, const Value *over, size_t from);
/* Saves a resume point. Called before each item of a top-level loop, as long as no open value was read. */
void growth_save(struct TemplateGrowth *g, const Node *loop, const Value *over, size_t at);

/* Arguments of a call, evaluated. */
typedef struct Call {
    Run *run;
    int line;
    const char *name; /* of the callee */
    const Value *self;
    size_t count; /* positional */
    Value items[MOST_ARGUMENTS];
    size_t named;
    const char *names[MOST_ARGUMENTS];
    Value named_items[MOST_ARGUMENTS];
} Call;

/* Index of a callee in its table, or -1. Jinja's names that weft lacks are -1. */
int filter_find(const char *name);
int test_find(const char *name);
int method_find(const char *name);
ErrorCode filter_call(int filter, Call *c, Value *out);
ErrorCode test_call(int test, Call *c, bool *out);
ErrorCode method_call(int method, Call *c, Value *out);
bool test_is_of_kind(int test); /* the result depends on the value's kind alone */
/* Whether values of this kind have the method. If not, a member of that name counts. */
bool method_is_of(int method, const Value *v);
/* Whether there is a function of this name. */
bool function_exists(const char *name);
ErrorCode function_call(Call *c, Value *out);

/* "%s of %d" % args, and "{} of {n}".format(...): the parts of Python's format languages that templates use.
 * If the format is Markup, arguments are escaped. */
ErrorCode format_percent(Run *r, int line, const Value *format, const Value *args, size_t count, Value *out);
ErrorCode format_braces(const Call *c, Value *out);

/* Items of a loop: keys of a dict, characters of a string. */
ErrorCode value_iterate(Run *r, int line, const Value *v, const Value **items, size_t *count);
ErrorCode value_compare(Run *r, int line, Operator op, const Value *a, const Value *b, bool *out);
Value value_attribute(const Value *v, const char *name, size_t length);

#endif
