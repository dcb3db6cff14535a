/* Parses tokens into a tree, by recursive descent.
 *
 *     body        {text | {{ expression }} | statement}
 *     statement   if | for | set | macro | generation | break | continue
 *     expression  or [if or [else expression]]
 *     or          and {or and}         and      not {and not}        not  [not] compare
 *     compare     sum {== != < <= > >= in "not in" sum}
 *     sum         joined {+ - joined}  joined   product {~ product}  product  power {* / // % power}
 *     power       unary {** unary}     unary    [- +] postfix {| filter} {is [not] test}
 *     postfix     primary {.name | [index] | (arguments)}
 *
 *  P1. Callees are resolved when the template is parsed: filters, tests, methods and functions are looked up
 *      here, so that an unsupported one is refused with its line before anything is rendered.
 *  P2. Nesting depth is bounded, since it uses stack here and at run time. */
#include <stdlib.h>
#include <string.h>

#include "template/internal.h"

enum { DEEPEST = 100 };

typedef struct Parser {
    Lexer l;
    Template *t;
    const char **macros; /* [macro_count] names, so that calls of them are recognised */
    const Node **calls;  /* [call_count] calls of names that were not functions or macros so far */
    size_t macro_count, call_count;
    int depth, loops;
} Parser;

static ErrorCode parse_expression(Parser *p, Node **out);
static ErrorCode parse_or(Parser *p, Node **out);
static ErrorCode parse_unary(Parser *p, Node **out);

/* ---- tokens ---- */

static bool is_sign(const Parser *p, const char *sign) {
    const TagToken *t = &p->l.token;
    return t->kind == TAG_SIGN && t->length == strlen(sign) && memcmp(t->text, sign, t->length) == 0;
}

static bool is_word(const Parser *p, const char *word) {
    const TagToken *t = &p->l.token;
    return t->kind == TAG_NAME && t->length == strlen(word) && memcmp(t->text, word, t->length) == 0;
}

static ErrorCode unexpected(Parser *p, const char *expected) {
    char shown[80];
    const TagToken *t = &p->l.token;
    error_escape(shown, sizeof shown, t->text, t->length);
    return lexer_fail(&p->l, t->line, "expected %s, found %s", expected, shown);
}

/* Skips a sign or a word if it comes next. */
static ErrorCode take_sign(Parser *p, const char *sign, bool *taken) {
    *taken = is_sign(p, sign);
    return *taken ? lexer_next(&p->l) : OK;
}

static ErrorCode take_word(Parser *p, const char *word, bool *taken) {
    *taken = is_word(p, word);
    return *taken ? lexer_next(&p->l) : OK;
}

static ErrorCode need_sign(Parser *p, const char *sign) {
    bool taken;
    char expected[8] = "'";
    TRY(take_sign(p, sign, &taken));
    strcat(strcat(expected, sign), "'");
    return taken ? OK : unexpected(p, expected);
}

static ErrorCode need_end(Parser *p) {
    return p->l.token.kind == TAG_END ? OK : unexpected(p, "the end of the tag");
}

/* A name that a variable may have. */
static ErrorCode need_name(Parser *p, const char **name) {
    static const char *const words[] = {"and",  "or",    "not",  "in",   "is",    "if",  "else",
                                        "true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (is_word(p, words[i])) return unexpected(p, "a name");
    if (p->l.token.kind != TAG_NAME) return unexpected(p, "a name");
    *name = value_copy(&p->t->arena, p->l.token.text, p->l.token.length).bytes;
    return lexer_next(&p->l);
}

/* ---- nodes ---- */

static Node *node_new(Parser *p, NodeKind kind) {
    Node *n = arena_take(&p->t->arena, sizeof *n);
    n->kind = kind;
    n->line = p->l.token.line;
    return n;
}

static Node *node_of(Parser *p, NodeKind kind, int line, Node *a, Node *b) {
    Node *n = node_new(p, kind);
    n->line = line;
    n->a = a;
    n->b = b;
    return n;
}

static ErrorCode enter(Parser *p) {
    if (++p->depth <= DEEPEST) return OK;
    return lexer_fail(&p->l, p->l.line, "nested more than %d deep", DEEPEST);
}

/* ---- arguments ---- */

static ErrorCode parse_argument(Parser *p, Node **out) {
    Node *n = node_new(p, NODE_ARGUMENT), *value;
    bool named = false;
    TRY(parse_expression(p, &value));
    if (value->kind == NODE_NAME) TRY(take_sign(p, "=", &named));
    if (named) {
        n->name = value->name;
        TRY(parse_expression(p, &value));
    }
    n->a = value;
    *out = n;
    return OK;
}

/* Parses from after '(' to after ')'. Positional arguments come first. */
static ErrorCode parse_arguments(Parser *p, Node **at) {
    bool closed, more = true, named = false;
    int count = 0;
    *at = NULL;
    TRY(take_sign(p, ")", &closed));
    while (!closed) {
        if (!more) return unexpected(p, "',' or ')'");
        if (++count > MOST_ARGUMENTS)
            return lexer_fail(&p->l, p->l.line, "more than %d arguments", MOST_ARGUMENTS);
        TRY(parse_argument(p, at));
        if (named && !(*at)->name)
            return lexer_fail(&p->l, (*at)->line, "an argument by place behind one by name");
        named = (*at)->name != NULL;
        at = &(*at)->next;
        TRY(take_sign(p, ",", &more));
        TRY(take_sign(p, ")", &closed));
    }
    return OK;
}

/* ---- primaries ---- */

static ErrorCode parse_list(Parser *p, const char *close, Node **out) {
    Node *n = node_new(p, NODE_LIST), **at = &n->a;
    bool closed, more = true;
    TRY(take_sign(p, close, &closed));
    while (!closed) {
        if (!more) return unexpected(p, "',' or the end of the list");
        TRY(parse_expression(p, at));
        at = &(*at)->next;
        TRY(take_sign(p, ",", &more));
        TRY(take_sign(p, close, &closed));
    }
    *out = n;
    return OK;
}

static ErrorCode parse_dict(Parser *p, Node **out) {
    Node *n = node_new(p, NODE_DICT), **at = &n->a;
    bool closed, more = true;
    TRY(take_sign(p, "}", &closed));
    while (!closed) {
        if (!more) return unexpected(p, "',' or '}'");
        Node *item = node_new(p, NODE_OPERAND);
        TRY(parse_expression(p, &item->a));
        TRY(need_sign(p, ":"));
        TRY(parse_expression(p, &item->b));
        *at = item;
        at = &item->next;
        TRY(take_sign(p, ",", &more));
        TRY(take_sign(p, "}", &closed));
    }
    *out = n;
    return OK;
}

/* With a comma they contain a tuple. */
static ErrorCode parse_parentheses(Parser *p, Node **out) {
    bool closed;
    TRY(take_sign(p, ")", &closed));
    if (closed) {
        *out = node_new(p, NODE_LIST);
        (*out)->op = FORM_TUPLE;
        return OK;
    }
    TRY(parse_expression(p, out));
    bool tuple;
    TRY(take_sign(p, ",", &tuple));
    if (!tuple) return need_sign(p, ")");
    Node *first = *out;
    TRY(parse_list(p, ")", out));
    first->next = (*out)->a;
    (*out)->a = first;
    (*out)->op = FORM_TUPLE;
    return OK;
}

/* Adjacent strings are joined. */
static ErrorCode parse_literal(Parser *p, Node **out) {
    Node *n = node_new(p, NODE_LITERAL);
    n->literal = p->l.token.literal;
    TagTokenKind kind = p->l.token.kind;
    TRY(lexer_next(&p->l));
    while (kind == TAG_STRING && p->l.token.kind == TAG_STRING) {
        const Value *more = &p->l.token.literal;
        char *joined = arena_take(&p->t->arena, n->literal.size + more->size + 1);
        memcpy(joined, n->literal.bytes, n->literal.size);
        memcpy(joined + n->literal.size, more->bytes, more->size);
        n->literal = value_string(joined, n->literal.size + more->size);
        TRY(lexer_next(&p->l));
    }
    *out = n;
    return OK;
}

static ErrorCode parse_name(Parser *p, Node **out) {
    static const struct {
        const char *word;
        Value value;
    } constants[] = {{"true", {.kind = VALUE_BOOL, .integer = 1}},
                     {"True", {.kind = VALUE_BOOL, .integer = 1}},
                     {"false", {.kind = VALUE_BOOL, .integer = 0}},
                     {"False", {.kind = VALUE_BOOL, .integer = 0}},
                     {"none", {.kind = VALUE_NONE}},
                     {"None", {.kind = VALUE_NONE}}};
    Node *n = node_new(p, NODE_NAME);
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (is_word(p, constants[i].word)) {
            n->kind = NODE_LITERAL;
            n->literal = constants[i].value;
            *out = n;
            return lexer_next(&p->l);
        }
    *out = n;
    return need_name(p, &n->name);
}

static ErrorCode parse_primary(Parser *p, Node **out) {
    bool taken;
    if (p->l.token.kind == TAG_NAME) return parse_name(p, out);
    if (p->l.token.kind != TAG_SIGN && p->l.token.kind != TAG_END) return parse_literal(p, out);
    TRY(take_sign(p, "[", &taken));
    if (taken) return parse_list(p, "]", out);
    TRY(take_sign(p, "{", &taken));
    if (taken) return parse_dict(p, out);
    TRY(take_sign(p, "(", &taken));
    return taken ? parse_parentheses(p, out) : unexpected(p, "an expression");
}

/* ---- postfixes ---- */

/* a[b], a[b:c], a[b:c:d]; b, c and d are optional. */
static ErrorCode parse_subscript(Parser *p, Node *of, Node **out) {
    Node *n = node_of(p, NODE_INDEX, p->l.token.line, of, NULL), **parts[] = {&n->b, &n->c, &n->d};
    for (int i = 0; i < 3; i++) {
        bool colon = false;
        if (!is_sign(p, ":") && !is_sign(p, "]")) TRY(parse_expression(p, parts[i]));
        if (i < 2) TRY(take_sign(p, ":", &colon));
        if (!colon) break;
        n->kind = NODE_SLICE;
    }
    if (n->kind == NODE_INDEX && !n->b) return unexpected(p, "an index");
    *out = n;
    return need_sign(p, "]");
}

static bool is_macro(const Parser *p, const char *name) {
    for (size_t i = 0; i < p->macro_count; i++)
        if (strcmp(p->macros[i], name) == 0) return true;
    return false;
}

/* A call of a function or macro by its name, or of a method of a value. */
static ErrorCode parse_call(Parser *p, Node *of, Node **out) {
    Node *n = node_of(p, NODE_CALL, of->line, of, NULL);
    TRY(parse_arguments(p, &n->arguments));
    *out = n;
    if (of->kind == NODE_NAME && (function_exists(of->name) || is_macro(p, of->name))) return OK;
    if (of->kind == NODE_NAME) { /* a macro that is defined later; otherwise check_calls refuses it */
        p->calls = mem_grow(p->calls, (p->call_count + 1) * sizeof *p->calls);
        p->calls[p->call_count++] = of;
        return OK;
    }
    if (of->kind != NODE_MEMBER) return lexer_fail(&p->l, of->line, "a call of what is no function");
    n->kind = NODE_METHOD;
    n->a = of->a;
    n->name = of->name;
    n->op = method_find(of->name);
    if (n->op >= 0) return OK;
    return lexer_fail(&p->l, of->line, "weft knows no method .%s()", of->name);
}

static ErrorCode parse_member(Parser *p, Node *of, Node **out) {
    Node *n = node_of(p, NODE_MEMBER, p->l.token.line, of, NULL);
    if (p->l.token.kind != TAG_NAME) return unexpected(p, "a name behind '.'");
    n->name = value_copy(&p->t->arena, p->l.token.text, p->l.token.length).bytes;
    *out = n;
    return lexer_next(&p->l);
}

static ErrorCode parse_postfix(Parser *p, Node **out) {
    TRY(parse_primary(p, out));
    for (int count = 0;; count++) {
        bool taken;
        if (count > DEEPEST) return lexer_fail(&p->l, p->l.line, "a chain of more than %d", DEEPEST);
        TRY(take_sign(p, ".", &taken));
        if (taken) {
            TRY(parse_member(p, *out, out));
            continue;
        }
        TRY(take_sign(p, "[", &taken));
        if (taken) {
            TRY(parse_subscript(p, *out, out));
            continue;
        }
        TRY(take_sign(p, "(", &taken));
        if (!taken) return OK;
        TRY(parse_call(p, *out, out));
    }
}

static ErrorCode parse_filter(Parser *p, Node **out) {
    Node *n = node_of(p, NODE_FILTER, p->l.token.line, *out, NULL);
    bool called;
    TRY(need_name(p, &n->name));
    n->op = filter_find(n->name);
    if (n->op < 0) return lexer_fail(&p->l, n->line, "weft knows no filter %s", n->name);
    TRY(take_sign(p, "(", &called));
    if (called) TRY(parse_arguments(p, &n->arguments));
    *out = n;
    return OK;
}

/* A test may have one argument without parentheses: "is divisibleby 3". */
static bool argument_follows(const Parser *p) {
    if (p->l.token.kind == TAG_NAME)
        return !is_word(p, "else") && !is_word(p, "or") && !is_word(p, "and") && !is_word(p, "if") &&
               !is_word(p, "is") && !is_word(p, "not") && !is_word(p, "in");
    if (p->l.token.kind == TAG_SIGN) return is_sign(p, "[") || is_sign(p, "{");
    return p->l.token.kind != TAG_END;
}

static ErrorCode parse_test(Parser *p, Node **out) {
    Node *n = node_of(p, NODE_TEST, p->l.token.line, *out, NULL);
    bool negated, called;
    TRY(take_word(p, "not", &negated));
    if (p->l.token.kind != TAG_NAME) return unexpected(p, "the name of a test");
    n->name = value_copy(&p->t->arena, p->l.token.text, p->l.token.length).bytes;
    TRY(lexer_next(&p->l));
    n->op = test_find(n->name);
    if (n->op < 0) return lexer_fail(&p->l, n->line, "weft knows no test %s", n->name);
    TRY(take_sign(p, "(", &called));
    if (called) {
        TRY(parse_arguments(p, &n->arguments));
    } else if (argument_follows(p)) {
        n->arguments = node_new(p, NODE_ARGUMENT);
        TRY(parse_postfix(p, &n->arguments->a));
    }
    *out = negated ? node_of(p, NODE_NOT, n->line, n, NULL) : n;
    return OK;
}

/* ---- operators ---- */

/* A minus applies to the operand, and filters to the result: "-x|abs" is (-x)|abs. */
static ErrorCode parse_unary(Parser *p, Node **out) {
    bool negative, positive;
    int line = p->l.token.line;
    TRY(enter(p));
    TRY(take_sign(p, "-", &negative));
    TRY(take_sign(p, "+", &positive));
    TRY(parse_postfix(p, out));
    if (negative) *out = node_of(p, NODE_NEGATIVE, line, *out, NULL);
    for (int count = 0;; count++) {
        bool taken;
        if (count > DEEPEST) return lexer_fail(&p->l, p->l.line, "a chain of more than %d", DEEPEST);
        TRY(take_sign(p, "|", &taken));
        if (taken) {
            TRY(parse_filter(p, out));
            continue;
        }
        TRY(take_word(p, "is", &taken));
        if (!taken) break;
        TRY(parse_test(p, out));
    }
    p->depth--;
    return OK;
}

typedef struct OperatorSign {
    const char *sign;
    Operator op;
} OperatorSign;

typedef ErrorCode (*ParseLevel)(Parser *p, Node **out);

/* Operators of one level, left-associative. Evaluating a chain nests as deep as it is long. */
static ErrorCode parse_level(Parser *p, const OperatorSign *signs, int count, ParseLevel operand,
                             Node **out) {
    TRY(operand(p, out));
    for (int length = 0;; length++) {
        int i = 0;
        while (i < count && !is_sign(p, signs[i].sign)) i++;
        if (i == count) return OK;
        if (length > DEEPEST) return lexer_fail(&p->l, p->l.line, "a chain of more than %d", DEEPEST);
        Node *n = node_of(p, NODE_BINARY, p->l.token.line, *out, NULL);
        n->op = signs[i].op;
        TRY(lexer_next(&p->l));
        TRY(operand(p, &n->b));
        *out = n;
    }
}

static ErrorCode parse_power(Parser *p, Node **out) {
    static const OperatorSign signs[] = {{"**", POWER}};
    return parse_level(p, signs, 1, parse_unary, out);
}

static ErrorCode parse_product(Parser *p, Node **out) {
    static const OperatorSign signs[] = {
        {"*", MULTIPLY}, {"/", DIVIDE}, {"//", DIVIDE_WHOLE}, {"%", REMAINDER}};
    return parse_level(p, signs, 4, parse_power, out);
}

static ErrorCode parse_joined(Parser *p, Node **out) {
    static const OperatorSign signs[] = {{"~", CONCATENATE}};
    return parse_level(p, signs, 1, parse_product, out);
}

static ErrorCode parse_sum(Parser *p, Node **out) {
    static const OperatorSign signs[] = {{"+", ADD}, {"-", SUBTRACT}};
    return parse_level(p, signs, 2, parse_joined, out);
}

/* Takes a comparison operator if one comes next, else OPERATOR_NONE. */
static ErrorCode take_comparison(Parser *p, Operator *op) {
    static const OperatorSign signs[] = {{"==", EQUAL},         {"!=", UNEQUAL}, {"<=", LESS_EQUAL},
                                         {">=", GREATER_EQUAL}, {"<", LESS},     {">", GREATER}};
    bool taken;
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        TRY(take_sign(p, signs[i].sign, &taken));
        *op = signs[i].op;
        if (taken) return OK;
    }
    *op = IN;
    TRY(take_word(p, "in", &taken));
    if (taken) return OK;
    *op = NOT_IN;
    TRY(take_word(p, "not", &taken));
    if (taken) {
        TRY(take_word(p, "in", &taken));
        return taken ? OK : unexpected(p, "'in' behind 'not'");
    }
    *op = OPERATOR_NONE;
    return OK;
}

static ErrorCode parse_compare(Parser *p, Node **out) {
    TRY(parse_sum(p, out));
    Operator op;
    Node **at = NULL;
    for (;;) {
        int line = p->l.token.line;
        TRY(take_comparison(p, &op));
        if (op == OPERATOR_NONE) return OK;
        if (!at) {
            *out = node_of(p, NODE_COMPARE, line, *out, NULL);
            at = &(*out)->b;
        }
        Node *operand = node_of(p, NODE_OPERAND, line, NULL, NULL);
        operand->op = op;
        TRY(parse_sum(p, &operand->a));
        *at = operand;
        at = &operand->next;
    }
}

static ErrorCode parse_not(Parser *p, Node **out) {
    bool negated;
    int line = p->l.token.line;
    TRY(take_word(p, "not", &negated));
    if (!negated) return parse_compare(p, out);
    TRY(enter(p));
    TRY(parse_not(p, out));
    p->depth--;
    *out = node_of(p, NODE_NOT, line, *out, NULL);
    return OK;
}

static ErrorCode parse_words(Parser *p, const char *word, NodeKind kind, ParseLevel operand, Node **out) {
    TRY(operand(p, out));
    for (int length = 0;; length++) {
        bool taken;
        int line = p->l.token.line;
        TRY(take_word(p, word, &taken));
        if (!taken) return OK;
        if (length > DEEPEST) return lexer_fail(&p->l, line, "a chain of more than %d", DEEPEST);
        Node *n = node_of(p, kind, line, *out, NULL);
        TRY(operand(p, &n->b));
        *out = n;
    }
}

static ErrorCode parse_and(Parser *p, Node **out) { return parse_words(p, "and", NODE_AND, parse_not, out); }

static ErrorCode parse_or(Parser *p, Node **out) { return parse_words(p, "or", NODE_OR, parse_and, out); }

static ErrorCode parse_expression(Parser *p, Node **out) {
    bool taken;
    TRY(enter(p));
    TRY(parse_or(p, out));
    int line = p->l.token.line;
    TRY(take_word(p, "if", &taken));
    if (taken) {
        Node *n = node_of(p, NODE_CHOICE, line, NULL, *out);
        TRY(parse_or(p, &n->a));
        TRY(take_word(p, "else", &taken));
        if (taken) TRY(parse_expression(p, &n->c));
        *out = n;
    }
    p->depth--;
    return OK;
}

/* ---- statements ---- */

/* Parses statements up to a tag with one of the words in `ends` ("": the end of the template), and leaves
 * that tag to the caller. *word is the one found; NULL: the end of the template. */
static ErrorCode parse_body(Parser *p, const char *const *ends, const char **word, Node **out);

/* As parse_body, for a statement that began in `line`: the template must not end within it. */
static ErrorCode parse_until(Parser *p, int line, const char *const *ends, const char **word, Node **out) {
    TRY(enter(p));
    TRY(parse_body(p, ends, word, out));
    p->depth--;
    if (*word) return lexer_next(&p->l);
    return lexer_fail(&p->l, line, "no {%% %s %%} before the template ends", ends[0]);
}

static ErrorCode parse_if(Parser *p, Node *n) {
    static const char *const ends[] = {"endif", "else", "elif", NULL};
    const char *word;
    TRY(parse_expression(p, &n->a));
    TRY(need_end(p));
    TRY(parse_until(p, n->line, ends, &word, &n->b));
    if (strcmp(word, "elif") == 0) {
        n->c = node_new(p, NODE_IF);
        TRY(enter(p));
        TRY(parse_if(p, n->c));
        p->depth--;
        return OK;
    }
    if (strcmp(word, "else") == 0) {
        TRY(need_end(p));
        TRY(parse_until(p, n->line, (const char *const[]){"endif", NULL}, &word, &n->c));
    }
    return need_end(p);
}

/* Names of a loop, with or without parentheses. */
static ErrorCode parse_targets(Parser *p, Node **at) {
    bool open, more = true;
    TRY(take_sign(p, "(", &open));
    for (int count = 0; more; count++) {
        if (count == MOST_ARGUMENTS) return lexer_fail(&p->l, p->l.line, "too many names of a loop");
        *at = node_new(p, NODE_ARGUMENT);
        TRY(need_name(p, &(*at)->name));
        at = &(*at)->next;
        TRY(take_sign(p, ",", &more));
    }
    return open ? need_sign(p, ")") : OK;
}

static ErrorCode parse_for(Parser *p, Node *n) {
    static const char *const ends[] = {"endfor", "else", NULL};
    const char *word;
    bool taken;
    TRY(parse_targets(p, &n->arguments));
    TRY(take_word(p, "in", &taken));
    if (!taken) return unexpected(p, "'in'");
    TRY(parse_or(p, &n->a));
    TRY(take_word(p, "if", &taken));
    if (taken) TRY(parse_expression(p, &n->d));
    if (is_word(p, "recursive")) return lexer_fail(&p->l, n->line, "weft runs no recursive loops");
    TRY(need_end(p));
    p->loops++;
    TRY(parse_until(p, n->line, ends, &word, &n->b));
    p->loops--;
    if (strcmp(word, "else") == 0) {
        TRY(need_end(p));
        TRY(parse_until(p, n->line, (const char *const[]){"endfor", NULL}, &word, &n->c));
    }
    return need_end(p);
}

static ErrorCode parse_set(Parser *p, Node *n) {
    const char *word;
    bool taken;
    TRY(need_name(p, &n->name));
    TRY(take_sign(p, ".", &taken));
    if (taken) TRY(need_name(p, &n->member));
    TRY(take_sign(p, "=", &taken));
    if (taken) {
        TRY(parse_expression(p, &n->a));
        return need_end(p);
    }
    if (n->member) return unexpected(p, "'='");
    TRY(need_end(p));
    n->kind = NODE_SET_BLOCK;
    TRY(parse_until(p, n->line, (const char *const[]){"endset", NULL}, &word, &n->b));
    return need_end(p);
}

static ErrorCode parse_parameters(Parser *p, Node **at) {
    bool closed, more = true, given;
    int count = 0;
    TRY(need_sign(p, "("));
    TRY(take_sign(p, ")", &closed));
    while (!closed) {
        if (!more) return unexpected(p, "',' or ')'");
        if (++count > MOST_ARGUMENTS)
            return lexer_fail(&p->l, p->l.line, "more than %d arguments", MOST_ARGUMENTS);
        *at = node_new(p, NODE_ARGUMENT);
        TRY(need_name(p, &(*at)->name));
        TRY(take_sign(p, "=", &given));
        if (given) TRY(parse_expression(p, &(*at)->a));
        at = &(*at)->next;
        TRY(take_sign(p, ",", &more));
        TRY(take_sign(p, ")", &closed));
    }
    return OK;
}

/* The name is known before the body: a macro may call itself, as deep as run.c allows. */
static ErrorCode parse_macro(Parser *p, Node *n) {
    const char *word;
    TRY(need_name(p, &n->name));
    p->macros = mem_grow(p->macros, (p->macro_count + 1) * sizeof *p->macros);
    p->macros[p->macro_count++] = n->name;
    TRY(parse_parameters(p, &n->arguments));
    TRY(need_end(p));
    int loops = p->loops;
    p->loops = 0;
    TRY(parse_until(p, n->line, (const char *const[]){"endmacro", NULL}, &word, &n->b));
    p->loops = loops;
    if (is_word(p, n->name)) TRY(lexer_next(&p->l));
    return need_end(p);
}

static ErrorCode parse_generation(Parser *p, Node *n) {
    const char *word;
    p->t->marks_assistant = true;
    TRY(need_end(p));
    TRY(parse_until(p, n->line, (const char *const[]){"endgeneration", NULL}, &word, &n->b));
    return need_end(p);
}

/* {% filter one|two %}...{% endfilter %} */
static ErrorCode parse_filtered(Parser *p, Node *n) {
    const char *word;
    bool more;
    n->a = node_new(p, NODE_NAME);
    n->a->name = "";
    do {
        TRY(parse_filter(p, &n->a));
        TRY(take_sign(p, "|", &more));
    } while (more);
    TRY(need_end(p));
    TRY(parse_until(p, n->line, (const char *const[]){"endfilter", NULL}, &word, &n->b));
    return need_end(p);
}

static ErrorCode parse_jump(Parser *p, Node *n) {
    if (p->loops == 0) return lexer_fail(&p->l, n->line, "break or continue outside of a loop");
    return need_end(p);
}

static const struct {
    const char *word;
    NodeKind kind;
    ErrorCode (*parse)(Parser *p, Node *n);
} statements[] = {{"if", NODE_IF, parse_if},
                  {"for", NODE_FOR, parse_for},
                  {"set", NODE_SET, parse_set},
                  {"macro", NODE_MACRO, parse_macro},
                  {"filter", NODE_FILTERED, parse_filtered},
                  {"generation", NODE_GENERATION, parse_generation},
                  {"break", NODE_BREAK, parse_jump},
                  {"continue", NODE_CONTINUE, parse_jump}};

/* The current token is the word of a tag. */
static ErrorCode parse_statement(Parser *p, Node **out) {
    char shown[80];
    const TagToken *t = &p->l.token;
    if (t->kind != TAG_NAME) return unexpected(p, "a statement");
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!is_word(p, statements[i].word)) continue;
        *out = node_new(p, statements[i].kind);
        TRY(lexer_next(&p->l));
        return statements[i].parse(p, *out);
    }
    error_escape(shown, sizeof shown, t->text, t->length);
    return lexer_fail(&p->l, t->line, "weft runs no {%% %s %%}, or none here", shown);
}

static ErrorCode parse_body(Parser *p, const char *const *ends, const char **word, Node **out) {
    *out = NULL;
    *word = NULL;
    for (Node **at = out;; at = &(*at)->next) {
        PieceKind kind;
        Value text;
        TRY(lexer_piece(&p->l, &kind, &text));
        if (kind == PIECE_END) return OK;
        for (int i = 0; kind == PIECE_BLOCK && ends[i]; i++)
            if (is_word(p, ends[i])) {
                *word = ends[i];
                return OK;
            }
        if (kind == PIECE_BLOCK) {
            TRY(parse_statement(p, at));
            continue;
        }
        *at = node_new(p, kind == PIECE_TEXT ? NODE_TEXT : NODE_PRINT);
        (*at)->literal = text;
        if (kind == PIECE_TEXT) continue;
        TRY(parse_expression(p, &(*at)->a));
        TRY(need_end(p));
    }
}

/* ---- the whole template ---- */

/* Jinja reads every line end as "\n", and omits one at the end. */
static Value read_source(Template *t, const char *text, size_t length) {
    char *out = arena_take(&t->arena, length + 1);
    size_t n = 0;
    for (size_t i = 0; i < length; i++) {
        bool pair = text[i] == '\r' && i + 1 < length && text[i + 1] == '\n';
        if (!pair) out[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (n > 0 && out[n - 1] == '\n') n--;
    return value_string(out, n);
}

static ErrorCode check_calls(const Parser *p) {
    for (size_t i = 0; i < p->call_count; i++)
        if (!is_macro(p, p->calls[i]->name))
            return lexer_fail(&p->l, p->calls[i]->line, "weft knows no function %s", p->calls[i]->name);
    return OK;
}

static ErrorCode parse(Template *t, const char *text, size_t length, Error *err) {
    static const char *const none[] = {NULL};
    const char *word;
    Value source = read_source(t, text, length);
    Parser p = {.t = t,
                .l = {.where = t->where,
                      .arena = &t->arena,
                      .text = source.bytes,
                      .length = source.size,
                      .line = 1,
                      .line_starts = true,
                      .err = err}};
    for (size_t at = 0, n; at < source.size; at += n) {
        n = text_utf8(source.bytes + at, source.size - at, NULL);
        if (n == 0 || source.bytes[at] == 0)
            return error_set(err, ERR_DATA, "%s: byte %zu is no text in UTF-8", t->where, at);
    }
    ErrorCode code = parse_body(&p, none, &word, &t->body);
    if (code == OK) code = check_calls(&p);
    for (Node *n = t->body; code == OK && n; n = n->next)
        if (n->kind == NODE_FOR) n->op = 1;
    free(p.macros);
    free(p.calls);
    return code;
}

ErrorCode template_parse(Template **out, const char *where, const char *text, size_t length, Error *err) {
    char shown[400];
    *out = NULL;
    Template *t = mem_alloc(sizeof *t);
    t->where = mem_strdup(error_escape(shown, sizeof shown, where, strlen(where)));
    ErrorCode code = parse(t, text, length, err);
    if (code == OK)
        *out = t;
    else
        template_free(t);
    return code;
}

void template_free(Template *t) {
    if (!t) return;
    arena_free(&t->arena);
    free(t->where);
    free(t);
}

bool template_marks_assistant(const Template *t) { return t->marks_assistant; }

void template_spans_add(TemplateSpans *s, TemplateSpan span) {
    if (s->count == s->capacity) {
        s->capacity = 2 * s->capacity + 8;
        s->items = mem_grow(s->items, s->capacity * sizeof *s->items);
    }
    s->items[s->count++] = span;
}

void template_spans_free(TemplateSpans *s) {
    free(s->items);
    *s = (TemplateSpans){0};
}
