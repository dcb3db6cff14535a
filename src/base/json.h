/* JSON: cJSON for reading, made strict, and a small streaming writer.
 *
 * json_parse refuses what cJSON accepts: trailing bytes, duplicate keys, nesting beyond 64, \u0000, invalid
 * UTF-8, numbers that are not JSON or not finite. Errors give line and column. */
#ifndef WEFT_BASE_JSON_H
#define WEFT_BASE_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"

/* `where` names the source in errors (a path). Free with cJSON_Delete. */
ErrorCode json_parse(const char *where, const char *data, size_t length, cJSON **root, Error *err);
ErrorCode json_read(const char *path, size_t limit, cJSON **root, Error *err);

/* The same for one line of a file, so that errors give the line of the file. Here a value, though not a key,
 * may contain \u0000. cJSON shows the string before it; json_line_string replaces `out` by the whole string,
 * with its NULs. `member` is a string in the object that data[0, length) was parsed to; the object loses it,
 * since a text may be as large as the line and is not copied. */
ErrorCode json_parse_line(const char *where, size_t line, const char *data, size_t length, cJSON **root,
                          Error *err);
void json_line_string(const char *data, size_t length, const cJSON *root, cJSON *member, Text *out);

/* Where a text begins, for errors. */
typedef struct JsonPlace {
    const char *where; /* names the source; "": an error begins with its position */
    size_t line;       /* of the source, from 1 */
    bool row;          /* it is that row of a table, and not a line: errors name the column */
} JsonPlace;

/* The same for a line whose numbers are written out again: `valuestring` of a number is its literal, which
 * may be out of the range of doubles and have as many digits as Python reads (4300). */
ErrorCode json_parse_literals(JsonPlace place, const char *data, size_t length, cJSON **root, Error *err);
/* The same without a copy of the line; numbers in it are overwritten. */
ErrorCode json_parse_literals_in(JsonPlace place, char *data, size_t length, cJSON **root, Error *err);

/* The first few names of an object's members for an error, escaped, since they come from a file: "a, b". */
enum { JSON_NAMES = 160 };
const char *json_names(const cJSON *object, char out[JSON_NAMES]);

/* For a member that may be a value or a list of values: the first, and the one after `item`; NULL at the
 * end. */
const cJSON *json_first(const cJSON *member);
const cJSON *json_next(const cJSON *member, const cJSON *item);

/* Typed members of an object; `where` names the object in errors. A missing or null member keeps *out and
 * succeeds when `required` is false. Integers must be integral, within [min, max], and below 2^53 in
 * magnitude: cJSON stores doubles, which cannot represent larger integers exactly. */
ErrorCode json_get_int(const cJSON *object, const char *where, const char *key, bool required, int64_t min,
                       int64_t max, int64_t *out, Error *err);
ErrorCode json_get_double(const cJSON *object, const char *where, const char *key, bool required, double *out,
                          Error *err);
ErrorCode json_get_bool(const cJSON *object, const char *where, const char *key, bool required, bool *out,
                        Error *err);
ErrorCode json_get_string(const cJSON *object, const char *where, const char *key, bool required,
                          const char **out, Error *err);

/* Writer: appends to a Text and places the commas. indent 0 writes one line. Doubles are written with the
 * fewest digits that read back the same; non-finite ones as null, since JSON cannot express them. */
typedef struct JsonWriter {
    Text *out;
    int indent, depth;
    bool first, after_key;
} JsonWriter;
void json_start(JsonWriter *w, Text *out, int indent);
void json_key(JsonWriter *w, const char *key);
void json_begin_object(JsonWriter *w);
void json_end_object(JsonWriter *w);
void json_begin_array(JsonWriter *w);
void json_end_array(JsonWriter *w);
void json_int(JsonWriter *w, int64_t value);
void json_double(JsonWriter *w, double value);
void json_bool(JsonWriter *w, bool value);
void json_null(JsonWriter *w);
void json_string(JsonWriter *w, const char *value); /* NUL-terminated UTF-8 */
void json_bytes(JsonWriter *w, const char *value,
                size_t length); /* may hold NULs; invalid UTF-8 becomes U+FFFD */

/* A member of an object: the key and its value. */
void json_put_int(JsonWriter *w, const char *key, int64_t value);
void json_put_double(JsonWriter *w, const char *key, double value);
void json_put_bool(JsonWriter *w, const char *key, bool value);
void json_put_null(JsonWriter *w, const char *key);
void json_put_string(JsonWriter *w, const char *key, const char *value);
void json_put_bytes(JsonWriter *w, const char *key, const char *value, size_t length);

#endif
