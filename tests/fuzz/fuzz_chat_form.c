/* A line of JSON in any of the forms of conversations; the first byte selects the one that is named. It
 * becomes messages that each have a role, or an error. */
#include "base/json.h"
#include "data/chat_form.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error err = {0};
    const JsonPlace place = {.where = "line", .line = 1, .row = size > 0 && data[0] & 128};
    cJSON *line;
    if (size < 1 || json_parse_literals(place, (const char *)data + 1, size - 1, &line, &err) != OK) return 0;
    Conversation v = {.where = "file:1"};
    if (fuzz_ok(chat_form_read(&v, (ChatForm)(data[0] % 5), line, "messages", &err), &err)) {
        int count = 0;
        REQUIRE(v.first <= v.count);
        for (const cJSON *m = v.messages->child; m; m = m->next, count++) REQUIRE(chat_role(m) != NULL);
        REQUIRE(count > 0 && count == v.count);
    }
    cJSON_Delete(v.messages);
    cJSON_Delete(line);
    return 0;
}
