/* Build facts. */
#ifndef WEFT_CLI_VERSION_H
#define WEFT_CLI_VERSION_H

#include "base/text.h"

void version_write(Text *out); /* lines "name: value"; the first is "weft 0.2.0" */

#endif
