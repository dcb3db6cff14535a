/* The compact protocol: varints with the low bits first, zigzag for signed numbers, field numbers as
 * differences. Every read goes through take, which alone compares with the end. */
#include "formats/thrift.h"

#include <limits.h>

enum { MOST_DEPTH = 32, LONG_FORM = 15 };

static void fail(Thrift *t, const char *wrong) {
    if (!t->wrong) t->wrong = wrong;
    t->at = t->end;
}

/* The next `count` bytes; NULL, and wrong, if there are fewer. */
static const uint8_t *take(Thrift *t, uint64_t count) {
    if (t->wrong) return NULL;
    if (count > (uint64_t)(t->end - t->at)) {
        t->cut = true;
        fail(t, "it ends in the middle of a value");
        return NULL;
    }
    const uint8_t *bytes = t->at;
    t->at += count;
    return bytes;
}

static uint8_t byte(Thrift *t) {
    const uint8_t *b = take(t, 1);
    return b ? *b : 0;
}

static uint64_t varint(Thrift *t) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t b = byte(t);
        if (shift == 63 && b > 1) break;
        value |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) return value;
    }
    fail(t, "a number has more than 64 bits");
    return 0;
}

static int64_t zigzag(Thrift *t) {
    uint64_t u = varint(t);
    return (int64_t)(u >> 1 ^ (0 - (u & 1)));
}

static bool is_type(Thrift *t, const ThriftField *f, int type) {
    if (t->wrong) return false;
    if (f->type != type) fail(t, "a field has an unexpected type");
    return !t->wrong;
}

/* Numbers of fields rise by up to 15 as a rule; else the number stands by itself. */
bool thrift_field(Thrift *t, ThriftField *f) {
    uint8_t head = byte(t);
    if (t->wrong || head == 0) return false;
    int64_t id = head >> 4 ? f->id + (head >> 4) : zigzag(t);
    if (id < 1 || id > INT16_MAX) fail(t, "a field has no valid number");
    *f = (ThriftField){(int)id, head & 15};
    return !t->wrong;
}

/* Of a field the type is the value. */
bool thrift_bool(Thrift *t, const ThriftField *f) {
    if (f->type != THRIFT_TRUE && f->type != THRIFT_FALSE) fail(t, "a field has an unexpected type");
    return !t->wrong && f->type == THRIFT_TRUE;
}

int32_t thrift_i32(Thrift *t, const ThriftField *f) {
    if (!is_type(t, f, THRIFT_I32)) return 0;
    int64_t value = zigzag(t);
    if (value < INT32_MIN || value > INT32_MAX) fail(t, "a number has more than 32 bits");
    return t->wrong ? 0 : (int32_t)value;
}

int64_t thrift_i64(Thrift *t, const ThriftField *f) {
    if (!is_type(t, f, THRIFT_I64)) return 0;
    int64_t value = zigzag(t);
    return t->wrong ? 0 : value;
}

ThriftBytes thrift_element_bytes(Thrift *t) {
    uint64_t length = varint(t);
    const uint8_t *bytes = take(t, length);
    return bytes ? (ThriftBytes){(const char *)bytes, (size_t)length} : (ThriftBytes){"", 0};
}

ThriftBytes thrift_bytes(Thrift *t, const ThriftField *f) {
    return is_type(t, f, THRIFT_BINARY) ? thrift_element_bytes(t) : (ThriftBytes){"", 0};
}

void thrift_struct(Thrift *t, const ThriftField *f) { (void)is_type(t, f, THRIFT_STRUCT); }

/* Each element has at least one byte, a struct the one of its end. */
static size_t count_of(Thrift *t, uint64_t count) {
    if (!t->wrong && count > (uint64_t)(t->end - t->at)) {
        t->cut = true;
        fail(t, "a list has more elements than bytes");
    }
    return t->wrong ? 0 : (size_t)count;
}

static size_t list_head(Thrift *t, int *element) {
    uint8_t head = byte(t);
    uint64_t count = head >> 4;
    *element = head & 15;
    return count_of(t, count == LONG_FORM ? varint(t) : count);
}

/* Writers may state any type for an empty list. */
size_t thrift_list(Thrift *t, const ThriftField *f, int element) {
    int found;
    if (!is_type(t, f, THRIFT_LIST)) return 0;
    size_t count = list_head(t, &found);
    if (count > 0 && found != element) fail(t, "a list has elements of an unexpected type");
    return t->wrong ? 0 : count;
}

/* In a list a truth value is a byte of its own. */
static void skip_element(Thrift *t, int type) {
    if (type == THRIFT_TRUE || type == THRIFT_FALSE)
        (void)byte(t);
    else
        thrift_skip(t, type);
}

static void skip_list(Thrift *t) {
    int type;
    size_t count = list_head(t, &type);
    for (size_t i = 0; i < count && !t->wrong; i++) skip_element(t, type);
}

static void skip_map(Thrift *t) {
    size_t count = count_of(t, varint(t));
    int types = count > 0 ? byte(t) : 0;
    for (size_t i = 0; i < count && !t->wrong; i++) {
        skip_element(t, types >> 4);
        skip_element(t, types & 15);
    }
}

static void skip_struct(Thrift *t) {
    ThriftField f = {0};
    while (thrift_field(t, &f)) thrift_skip(t, f.type);
}

static void skip_value(Thrift *t, int type) {
    switch (type) {
    case THRIFT_TRUE:
    case THRIFT_FALSE: break;
    case THRIFT_I8: (void)byte(t); break;
    case THRIFT_I16:
    case THRIFT_I32:
    case THRIFT_I64: (void)varint(t); break;
    case THRIFT_DOUBLE: (void)take(t, 8); break;
    case THRIFT_BINARY: (void)thrift_element_bytes(t); break;
    case THRIFT_LIST:
    case THRIFT_SET: skip_list(t); break;
    case THRIFT_MAP: skip_map(t); break;
    case THRIFT_STRUCT: skip_struct(t); break;
    case THRIFT_UUID: (void)take(t, 16); break;
    default: fail(t, "a field has an unknown type");
    }
}

void thrift_skip(Thrift *t, int type) {
    if (t->depth == MOST_DEPTH) fail(t, "it is nested too deeply");
    if (t->wrong) return;
    t->depth++;
    skip_value(t, type);
    t->depth--;
}
