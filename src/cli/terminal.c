/* Standard output: a terminal with width and colours, or a file as plain text.
 *
 * Drawings go to standard output; base/log.c handles messages and their status line on stderr. */
#include "cli/terminal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "observe/plot.h"

/* NO_COLOR (no-color.org): any non-empty value turns colours off. A terminal without TERM is assumed to have
 * no colours. */
static bool colour_on_stdout(void) {
    const char *term = getenv("TERM"), *no_colour = getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb") != 0 && !(no_colour && *no_colour);
}

/* 128 columns if it is not a terminal: what a page or an editor shows. A terminal of fewer than 40 columns is
 * treated the same, since a drawing to scale does not fit. */
static int columns_of_stdout(void) {
    struct winsize size;
    return isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40
               ? size.ws_col
               : 128;
}

/* UTF-8 depends on the locale even without a terminal: the file is most likely read in the same locale. */
TerminalStyle terminal_style(int width) {
    return (TerminalStyle){.width = width > 0 ? width : columns_of_stdout(),
                           .utf8 = plot_locale_is_utf8(),
                           .colour = colour_on_stdout()};
}

/* Flushed, so that a full disk is this verb's error and not a silent loss at exit. */
static ErrorCode write_out(const Text *out, Error *err) {
    if (fwrite(out->data, 1, out->length, stdout) != out->length || fflush(stdout) != 0)
        return error_errno(err, ERR_IO, "standard output: writing failed");
    return OK;
}

ErrorCode terminal_print(const Text *out, Error *err) {
    Text shown = {0};
    text_puts(&shown, "");
    text_add_shown(&shown, out->data, out->length, TEXT_KEEP_LINES | TEXT_KEEP_COLOURS);
    ErrorCode code = write_out(&shown, err);
    text_free(&shown);
    return code;
}

void terminal_printf(const char *format, ...) {
    char *line = NULL;
    Text shown = {0};
    va_list args;
    va_start(args, format);
    int length = vasprintf(&line, format, args);
    va_end(args);
    if (length < 0) return;
    text_puts(&shown, "");
    text_add_shown(&shown, line, (size_t)length, TEXT_KEEP_LINES);
    fwrite(shown.data, 1, shown.length, stdout);
    text_free(&shown);
    free(line);
}

ErrorCode terminal_write_file(const char *path, const Text *out, Error *err) {
    if (strcmp(path, "-") == 0) return write_out(out, err);
    TRY(file_write_atomic(path, out->data, out->length, err));
    log_info("wrote %s", path);
    return OK;
}
