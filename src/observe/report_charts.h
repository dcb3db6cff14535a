/* The curves of a report, of one run or of several in the same charts. */
#ifndef WEFT_OBSERVE_REPORT_CHARTS_H
#define WEFT_OBSERVE_REPORT_CHARTS_H

#include "observe/compare.h"

void report_write_charts(Text *out, const Runs *runs);
/* Data of the read-out under the pointer, as JSON for the page's script. */
void report_write_data(Text *out, const Runs *runs);

#endif
