/* Standard output: how wide and colourful drawings on it may be, and writing to it. */
#ifndef WEFT_CLI_TERMINAL_H
#define WEFT_CLI_TERMINAL_H

#include "base/text.h"
#include "forecast/draw.h"

/* width 0: the terminal's, or 128 where there is none. Colour only on a terminal, and not against NO_COLOR.
 */
TerminalStyle terminal_style(int width);
/* Escaped, but for ends of lines and colours (text_add_shown): names and paths are somebody else's bytes. */
ErrorCode terminal_print(const Text *out, Error *err);
/* The same by a format, of which no failure is told: main looks at standard output in the end. */
void terminal_say(const char *format, ...) PRINTF_LIKE(1, 2);
/* As it is to a file, which is named on stderr; "-" is standard output. */
ErrorCode terminal_write_file(const char *path, const Text *out, Error *err);

#endif
