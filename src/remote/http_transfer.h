/* One exchange with a server, of which http.c makes requests. */
#ifndef WEFT_REMOTE_HTTP_TRANSFER_H
#define WEFT_REMOTE_HTTP_TRANSFER_H

#include "remote/http.h"

/* target: where a redirect points to, as the server sent it. */
void http_transfer(HttpClient *client, const HttpRequest *request, HttpReply *reply, Text *target);

#endif
