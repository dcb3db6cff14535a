/* The lines in front of an answer's body. */
#ifndef WEFT_REMOTE_HTTP_HEADERS_H
#define WEFT_REMOTE_HTTP_HEADERS_H

#include "remote/http.h"

/* Takes a line, with or without its end. The status line of another answer, behind "100 Continue", clears
 * what was taken before. target: of Location. */
void http_take_header(HttpReply *reply, Text *target, const char *line, size_t length);

#endif
