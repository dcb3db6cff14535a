/* Reads the Thrift compact protocol, as far as Parquet's metadata needs it.
 *
 *     ThriftField f = {0};
 *     while (thrift_field(t, &f))
 *         switch (f.id) {
 *         case 1: rows = thrift_i64(t, &f); break;
 *         default: thrift_skip(t, f.type);
 *         }
 *
 * The first thing that is wrong is remembered in `wrong`; from there on every call gives zeros and no further
 * field, so a caller looks once, at the end. Nothing is allocated: a count of elements is at most the number
 * of bytes that are left. */
#ifndef WEFT_FORMATS_THRIFT_H
#define WEFT_FORMATS_THRIFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    THRIFT_TRUE = 1,
    THRIFT_FALSE,
    THRIFT_I8,
    THRIFT_I16,
    THRIFT_I32,
    THRIFT_I64,
    THRIFT_DOUBLE,
    THRIFT_BINARY,
    THRIFT_LIST,
    THRIFT_SET,
    THRIFT_MAP,
    THRIFT_STRUCT,
    THRIFT_UUID
};

typedef struct Thrift {
    const uint8_t *at, *end;
    const char *wrong; /* NULL: nothing so far */
    bool cut;          /* what is wrong is that the bytes end: more of them may help */
    int depth;         /* of what is skipped */
} Thrift;

typedef struct ThriftField {
    int id, type;
} ThriftField;

typedef struct ThriftBytes {
    const char *data; /* inside the input */
    size_t length;
} ThriftBytes;

/* Next field of a struct; *f is that of the field before, zeros at first. False at the end of the struct. */
bool thrift_field(Thrift *t, ThriftField *f);
/* The value of a field of that type; another type is wrong. */
bool thrift_bool(Thrift *t, const ThriftField *f);
int32_t thrift_i32(Thrift *t, const ThriftField *f);
int64_t thrift_i64(Thrift *t, const ThriftField *f);
ThriftBytes thrift_bytes(Thrift *t, const ThriftField *f);
/* Enters a struct: the next fields are its own. */
void thrift_struct(Thrift *t, const ThriftField *f);
/* Number of elements of a list of `element`s, which follow. */
size_t thrift_list(Thrift *t, const ThriftField *f, int element);
ThriftBytes thrift_element_bytes(Thrift *t); /* of a list of THRIFT_BINARY */
void thrift_skip(Thrift *t, int type);

#endif
