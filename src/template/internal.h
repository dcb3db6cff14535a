/* Between the files of a template:
 *
 *     lex.c        text and tags; tokens within tags
 *     parse.c      statements and expressions, to a tree of nodes
 *     value.c      what expressions are worth, and how it is written out
 *     builtins.c   filters, tests, methods, functions: tables
 *     format.c     Python's two ways to put values into a text
 *     run.c        walks the tree
 *     growth.c     renders a conversation message by message, without beginning anew
 *
 *  J1. Nodes and the strings in them lie in the template's arena; values of a rendering in its own, which is
 *      freed as a whole. Nothing is freed by itself.
 *  J2. Values are constant but for namespaces, as in the sandbox that transformers runs templates in. */
#ifndef WEFT_TEMPLATE_INTERNAL_H
#define WEFT_TEMPLATE_INTERNAL_H

#include <stdint.h>

#include "template/template.h"

typedef struct Arena {
    struct ArenaChunk *chunks;
    size_t used;
} Arena;
void *arena_take(Arena *a, size_t bytes); /* zeroed */
void arena_free(Arena *a);

/* ---- values ---- */

typedef enum ValueKind {
    VALUE_UNDEFINED, /* text: the name that was looked for */
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_LONG, /* a whole number beyond 64 bits: its digits, as JSON has them */
    VALUE_FLOAT,
    VALUE_STRING,
    VALUE_LIST,
    VALUE_DICT,
    VALUE_NAMESPACE,
    VALUE_MACRO
} ValueKind;

/* How a list came about: tuples print otherwise, and what Python makes item by item has no text. A string may
 * be Markup, which escapes what is joined to it for HTML (filters safe and escape). */
typedef enum ValueForm { FORM_PLAIN, FORM_TUPLE, FORM_VIEW, FORM_MARKUP } ValueForm;

/* A rendering of more messages may have more of it, or another one (growth.c). */
typedef enum Open {
    CLOSED,
    OPEN,       /* a list that may go on; of a loop, what its end decides */
    OPEN_PROMPT /* add_generation_prompt */
} Open;

typedef struct Value {
    ValueKind kind;
    ValueForm form;
    Open open;
    union {
        int64_t integer; /* of a bool: 0, 1 */
        double number;
        const char *bytes;         /* [size] UTF-8, and what a caller put between; of a long one its digits */
        const struct Value *items; /* [size] of a dict [2 size]: key, value, key, value */
        struct Namespace *space;
        const struct Node *macro;
    };
    size_t size;
} Value;

typedef struct Namespace {
    Value *items; /* [2 count] */
    size_t count, capacity;
    struct Namespace *before; /* the one that was made before it */
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
/* The whole number of these digits, with or without a sign, of any size. */
Value value_whole(Arena *a, const char *digits);
/* Texts in it stay the tree's, unless they are copied. */
Value value_of_json(Arena *a, const cJSON *item, bool copies);

bool value_truth(const Value *v);
bool value_equal(const Value *a, const Value *b);
bool value_is_number(const Value *v); /* bools are numbers, as in Python */
double value_number(const Value *v);
/* -1, 0, 1 as a is less than, equal to, greater than b, both numbers, exactly; 2: one is no number. */
int value_order(const Value *a, const Value *b);
/* The value of a key of a dict or namespace; NULL when it has none. */
const Value *value_member(const Value *v, const char *key, size_t length);
/* The same for any key of a dict. */
const Value *value_item(const Value *dict, const Value *key);
bool value_is_key(const Value *v);           /* what a dict may have for a key: texts, numbers, none */
const char *value_kind_name(const Value *v); /* for messages */
void value_print(const Value *v, Text *out); /* as Python's str */
/* As json.dumps of Python does. */
typedef struct JsonStyle {
    int indent; /* < 0: one line */
    bool sorted, ascii;
    Value comma, colon; /* between items; between a key and its value */
    int depth;          /* of where it begins */
} JsonStyle;
void value_json(const Value *v, JsonStyle style, Text *out);

/* Characters of a string. */
size_t string_characters(const char *bytes, size_t size);
size_t string_offset(const char *bytes, size_t size, size_t character);
/* The string with & < > ' " written as in HTML, as Markup; Markup as it is. */
Value value_escape(Arena *a, const Value *v);
bool is_python_space(uint32_t code);
void text_put_character(Text *t, uint32_t code); /* in UTF-8 */

/* Values share their parts, so a small one can be written out as a large one: takes the number of parts that
 * writing would meet off *left. False where there are more, or more levels than `depth`. */
bool value_weigh(const Value *v, int depth, size_t *left);

/* ---- nodes ---- */

typedef enum NodeKind {
    /* expressions */
    NODE_LITERAL, /* literal */
    NODE_NAME,    /* name */
    NODE_LIST,    /* a: items */
    NODE_DICT,    /* a: keys, each with its value in b */
    NODE_MEMBER,  /* a.name */
    NODE_INDEX,   /* a[b] */
    NODE_SLICE,   /* a[b:c:d], any of the three NULL */
    NODE_CALL,    /* a(arguments) */
    NODE_METHOD,  /* a.name(arguments); op: of methods[] */
    NODE_FILTER,  /* a | name(arguments); op: of filters[] */
    NODE_TEST,    /* a is name(arguments); op: of tests[] */
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
    NODE_FOR,       /* names in `arguments`; over a, of which those with d; b, else c; op: in no other */
    NODE_SET,       /* name = a, or name.member = a */
    NODE_SET_BLOCK, /* name = what b renders */
    NODE_FILTERED,  /* a, filters of a nameless name, which is what b renders */
    NODE_MACRO,     /* name(arguments), body b */
    NODE_BREAK,
    NODE_CONTINUE,
    NODE_GENERATION, /* b */
    /* parts of others */
    NODE_ARGUMENT, /* name = a; name NULL: by place. Of a macro: name, default a or NULL */
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

/* A token within a tag. A sign is its one or two bytes in `text`. */
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
    int line, depth;  /* brackets that are open within a tag */
    bool print;       /* the tag is {{ */
    bool line_starts; /* what came before ends with a newline */
    TagToken token;   /* the one that is looked at, within a tag */
    Error *err;
} Lexer;

ErrorCode lexer_fail(const Lexer *l, int line, const char *format, ...) PRINTF_LIKE(3, 4);
/* The next text, or tag that begins: of a tag, its first token is in l->token. Comments are passed over. */
ErrorCode lexer_piece(Lexer *l, PieceKind *kind, Value *text);
ErrorCode lexer_next(Lexer *l); /* to l->token; TAG_END behind the end of the tag */

/* ---- running ---- */

typedef struct Scope {
    const struct Scope *parent;
    Namespace names;
} Scope;

typedef struct Run {
    const Template *t;
    Arena arena;
    Scope root;
    Namespace *spaces;             /* the last that was made */
    bool looked_ahead;             /* at what is open */
    struct TemplateGrowth *growth; /* NULL: a rendering by itself */
    const char *date;
    Text *out;
    TemplateSpans *answers;
    int captures; /* within {% set %} blocks and macros */
    int depth;
    int64_t steps;
    Error *err;
} Run;

ErrorCode run_fail(const Run *r, int line, const char *format, ...) PRINTF_LIKE(3, 4);
/* Refuses to make something of so many bytes, where that is beyond reason. */
ErrorCode run_room(Run *r, int line, size_t bytes);
/* Refuses a list or mapping of lists and mappings without end (value_weigh). */
ErrorCode run_weigh(Run *r, int line, const Value *v);
void namespace_set(Arena *a, Namespace *n, const char *name, const Value *v);

enum { MOST_ARGUMENTS = 8 };

ErrorCode run_template(Run *r); /* from the beginning; its names are set */
/* From the loop `n` on, before its item `from`, to the end of the template. */
ErrorCode run_on(Run *r, const Node *n, const Value *over, size_t from);
/* Before each item of a loop that stands in no other statement, while nothing that is open was looked at. */
void growth_save(struct TemplateGrowth *g, const Node *loop, const Value *over, size_t at);

/* Arguments of a call, evaluated. */
typedef struct Call {
    Run *run;
    int line;
    const char *name; /* of what is called */
    const Value *self;
    size_t count; /* by place */
    Value items[MOST_ARGUMENTS];
    size_t named;
    const char *names[MOST_ARGUMENTS];
    Value named_items[MOST_ARGUMENTS];
} Call;

/* What is called, by its place in a table, or -1. Names that Jinja has and weft has not are none. */
int filter_find(const char *name);
int test_find(const char *name);
int method_find(const char *name);
ErrorCode filter_call(int filter, Call *c, Value *out);
ErrorCode test_call(int test, Call *c, bool *out);
ErrorCode method_call(int method, Call *c, Value *out);
bool test_is_of_kind(int test); /* the answer follows from the kind of a value alone */
/* Whether the method is one of values of this kind; a member of that name counts otherwise. */
bool method_is_of(int method, const Value *v);
/* A function by its name; false: there is none. */
bool function_exists(const char *name);
ErrorCode function_call(Call *c, Value *out);

/* "%s of %d" % args, and "{} of {n}".format(...): what of Python's languages for it templates use. Behind
 * Markup, what is put in is escaped. */
ErrorCode format_percent(Run *r, int line, const Value *format, const Value *args, size_t count, Value *out);
ErrorCode format_braces(const Call *c, Value *out);

/* Items that a loop goes through: of a dict its keys, of a string its characters. */
ErrorCode value_iterate(Run *r, int line, const Value *v, const Value **items, size_t *count);
ErrorCode value_compare(Run *r, int line, Operator op, const Value *a, const Value *b, bool *out);
Value value_attribute(const Value *v, const char *name, size_t length);

#endif
