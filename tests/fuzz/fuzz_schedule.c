/* Fuzzes a pipeline schedule as CSV. An accepted one is written and reads back the same; after lowering it is
 * still a schedule, and runs to the end under every transport if the transfers are weft's own. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "schedule/schedule.h"
#include "schedule/simulate.h"

/* A comma makes a cell of 16 bytes, in arrays that double; a line makes an order. */
enum { PER_BYTE = 256, FIXED = 1 << 18 };

static void check_round_trip(const Schedule *s) {
    Error err = {0};
    Schedule back;
    Text first = {0}, second = {0};
    schedule_write_csv(s, &first);
    if (schedule_parse_csv(&back, "again.csv", first.data, first.length, &err) != OK)
        fuzz_fail(__FILE__, __LINE__, "what was written reads back", err.message);
    schedule_write_csv(&back, &second);
    if (strcmp(first.data, second.data) != 0)
        fuzz_fail(__FILE__, __LINE__, "it is written as before", first.data);
    REQUIRE(back.stages == s->stages && back.microbatches == s->microbatches &&
            back.split_backward == s->split_backward);
    schedule_free(&back);
    text_free(&first);
    text_free(&second);
}

static void check_simulation(const Schedule *s) {
    Error err = {0};
    Simulation sim;
    SimulateCosts costs = {.uniform = {1, 2, 1.5}, .latency = 0.5};
    REQUIRE(simulate(&sim, s, &costs, &err) == OK);
    for (int r = 0; r < sim.ranks; r++) {
        REQUIRE(sim.rank[r].end <= sim.makespan && sim.rank[r].idle >= 0);
        REQUIRE(sim.rank[r].peak_input >= 1 && sim.rank[r].peak_weight >= sim.rank[r].peak_input);
    }
    simulation_free(&sim);
}

/* Lowers *s. */
static void check_lowered(Schedule *s, int active) {
    Error err = {0};
    bool own = !schedule_has_transfers(s);
    schedule_add_parameters(s, active);
    REQUIRE(schedule_add_transfers(s, &err) == OK);
    REQUIRE(schedule_check(s, &err) == OK);
    if (own)
        for (int t = TRANSPORT_EAGER; t <= TRANSPORT_BLOCKING; t++)
            REQUIRE(simulate_transport(s, (Transport)t, &err) == OK);
    check_round_trip(s);
    check_simulation(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error err = {0};
    Schedule s;
    fuzz_memory_start();
    bool good = fuzz_ok(schedule_parse_csv(&s, "fuzz.csv", (const char *)data, size, &err), &err);
    fuzz_memory_check(size, PER_BYTE, FIXED);
    if (!good) return 0;
    check_round_trip(&s);
    check_simulation(&s);
    check_lowered(&s, 1 + (int)(size % 4));
    schedule_free(&s);
    return 0;
}
