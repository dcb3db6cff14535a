/* Opcodes and their arguments as in Python's pickletools. Text does not pass for them: where an opcode is
 * expected there must be one, the stack must hold what it takes, and each argument has its own grammar. */
#include "formats/pickle.h"

#include <ctype.h>
#include <string.h>

#include "base/bytes.h"

typedef enum Argument {
    ARG_UNKNOWN, /* no opcode */
    ARG_NONE,
    ARG_NUMBER, /* a line of a number */
    ARG_QUOTED, /* a line in quotes */
    ARG_LINE,   /* any line */
    ARG_LINES,  /* two of them: module and name */
    ARG_1,      /* bytes */
    ARG_2,
    ARG_4,
    ARG_8,
    ARG_COUNTED_1, /* bytes behind their number, of one byte */
    ARG_COUNTED_4
} Argument;

static const unsigned char arguments[256] = {
    ['('] = ARG_NONE,     ['.'] = ARG_NONE,   ['0'] = ARG_NONE,      ['1'] = ARG_NONE,
    ['2'] = ARG_NONE,     ['N'] = ARG_NONE,   ['R'] = ARG_NONE,      ['Q'] = ARG_NONE,
    ['a'] = ARG_NONE,     ['b'] = ARG_NONE,   ['d'] = ARG_NONE,      ['e'] = ARG_NONE,
    ['l'] = ARG_NONE,     ['o'] = ARG_NONE,   ['s'] = ARG_NONE,      ['t'] = ARG_NONE,
    ['u'] = ARG_NONE,     [']'] = ARG_NONE,   ['}'] = ARG_NONE,      [')'] = ARG_NONE,
    ['I'] = ARG_NUMBER,   ['L'] = ARG_NUMBER, ['F'] = ARG_NUMBER,    ['p'] = ARG_NUMBER,
    ['g'] = ARG_NUMBER,   ['S'] = ARG_QUOTED, ['V'] = ARG_LINE,      ['P'] = ARG_LINE,
    ['c'] = ARG_LINES,    ['i'] = ARG_LINES,  ['K'] = ARG_1,         ['q'] = ARG_1,
    ['h'] = ARG_1,        ['M'] = ARG_2,      ['J'] = ARG_4,         ['j'] = ARG_4,
    ['r'] = ARG_4,        ['G'] = ARG_8,      ['U'] = ARG_COUNTED_1, ['T'] = ARG_COUNTED_4,
    ['X'] = ARG_COUNTED_4};

static const size_t widths[] = {
    [ARG_1] = 1, [ARG_2] = 2, [ARG_4] = 4, [ARG_8] = 8, [ARG_COUNTED_1] = 1, [ARG_COUNTED_4] = 4};

/* Deeper ones are not looked at; a longer string does not occur, and letters give a larger number. */
enum { MOST_MARKS = 64, LONGEST = 1 << 28 };

static bool is_number(const unsigned char *line, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (!strchr("0123456789+-.eLinfa", line[i])) return false;
    return length > 0;
}

static bool is_dotted_name(const unsigned char *line, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (!isalnum(line[i]) && line[i] != '_' && line[i] != '.' && line[i] < 0x80) return false;
    return length > 0;
}

/* The line's grammar, without its newline. */
static bool is_argument(Argument a, const unsigned char *line, size_t length) {
    if (a == ARG_NUMBER) return is_number(line, length);
    if (a == ARG_LINES) return is_dotted_name(line, length);
    bool quoted = length >= 2 && line[0] == line[length - 1] && (line[0] == '\'' || line[0] == '"');
    return a != ARG_QUOTED || quoted;
}

/* Length of the argument in front of bytes[length]: of lines with their newlines. SIZE_MAX: it is none; above
 * `length`: the bytes end in it. */
static size_t argument_length(Argument a, const unsigned char *bytes, size_t length) {
    if (a == ARG_NONE) return 0;
    if (a >= ARG_1) {
        if (widths[a] > length || a < ARG_COUNTED_1) return widths[a];
        return widths[a] + (size_t)little_endian(bytes, widths[a]);
    }
    size_t at = 0;
    for (int lines = a == ARG_LINES ? 2 : 1; lines > 0; lines--) {
        const unsigned char *end = memchr(bytes + at, '\n', length - at);
        if (!end) return length + 1;
        if (!is_argument(a, bytes + at, (size_t)(end - bytes) - at)) return SIZE_MAX;
        at = (size_t)(end - bytes) + 1;
    }
    return at;
}

/* The stack of a pickle: how many objects are behind each mark. */
typedef struct Stack {
    size_t objects[MOST_MARKS + 1]; /* of the level of each mark; [0]: in front of all */
    size_t marks;
} Stack;

static bool takes_objects(Stack *s, size_t least, size_t fewer) {
    if (s->objects[s->marks] < least) return false;
    s->objects[s->marks] -= fewer;
    return true;
}

/* All that is behind the last mark, and the mark. */
static bool takes_mark(Stack *s, size_t least_below, size_t more) {
    if (s->marks == 0 || s->objects[s->marks - 1] < least_below) return false;
    s->objects[--s->marks] += more;
    return true;
}

/* False if the stack lacks what the opcode takes. */
static bool runs(Stack *s, unsigned char op) {
    switch (op) {
    case '(':
        if (s->marks == MOST_MARKS) return false;
        s->objects[++s->marks] = 0;
        return true;
    case 'p':
    case 'q':
    case 'r':
    case 'Q': return takes_objects(s, 1, 0);
    case '0': return takes_objects(s, 1, 1);
    case 'a':
    case 'b':
    case 'R': return takes_objects(s, 2, 1);
    case 's': return takes_objects(s, 3, 2);
    case 't':
    case 'l':
    case 'd':
    case 'i':
    case 'o': return takes_mark(s, 0, 1);
    case 'e':
    case 'u': return takes_mark(s, 1, 0);
    case '1': return takes_mark(s, 0, 0);
    case '.': return s->marks == 0 && s->objects[0] == 1 && takes_objects(s, 1, 1);
    default: s->objects[s->marks]++; return true;
    }
}

bool pickle_begins(const unsigned char *bytes, size_t length, bool whole) {
    Stack stack = {0};
    bool stored = false, ended = false;
    for (size_t at = 0; at < length;) {
        unsigned char op = bytes[at++];
        Argument a = (Argument)arguments[op];
        size_t argument = a == ARG_UNKNOWN ? SIZE_MAX : argument_length(a, bytes + at, length - at);
        if (argument > LONGEST || !runs(&stack, op)) return false;
        ended = op == '.';
        if (argument > length - at) break;
        stored |= op == 'p' || op == 'q' || op == 'r';
        at += argument;
    }
    return stored && (ended || !whole);
}
