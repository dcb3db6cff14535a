/* Standard output: width and colour of drawings on it, and writing to it. */
#ifndef WEFT_CLI_TERMINAL_H
#define WEFT_CLI_TERMINAL_H

#include "base/text.h"
#include "forecast/draw.h"

/* width 0: the terminal's, or 128 without one. Colour only on a terminal, and not if NO_COLOR is set. */
TerminalStyle terminal_style(int width);
/* Escapes everything except newlines and colours (text_add_shown): names and paths are untrusted bytes. */
ErrorCode terminal_print(const Text *out, Error *err);
/* The same with a format. Reports no failure: main checks standard output at the end. */
void terminal_printf(const char *format, ...) PRINTF_LIKE(1, 2);
/* Writes the text unchanged to a file and reports its name on stderr; "-" is standard output. */
ErrorCode terminal_write_file(const char *path, const Text *out, Error *err);

#endif
