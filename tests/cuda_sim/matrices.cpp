/* Matrix instructions on a CPU. Which lane holds what stands in device/cuda/plugin/mma.cuh; here it is said
 * once more, the other way round: where an element is.
 *
 * Sums are taken in double and rounded once; hardware adds in groups, and cuts off what is below the largest
 * term of each. */
#include "cuda_runtime.h"

namespace {

/* What a lane brings to a product. */
struct Operands {
    uint32_t left[4], right[2];
};
static_assert(sizeof(Operands) <= sizeof(SimLane), "lanes exchange 24 bytes at most");

double widened(uint32_t pair, int half) { return __uint_as_float(half ? pair & 0xffff0000 : pair << 16); }

double left_at(const Operands *lanes, int row, int column) {
    const Operands &o = lanes[row % 8 * 4 + column % 8 / 2];
    return widened(o.left[row / 8 + column / 8 * 2], column % 2);
}
double right_at(const Operands *lanes, int row, int column) {
    return widened(lanes[column * 4 + row % 8 / 2].right[row / 8], row % 2);
}

} // namespace

void multiply_matrices(float (&sums)[4], const uint32_t (&left)[4], uint32_t right0, uint32_t right1) {
    SimLane *published = sim_lanes();
    int lane = sim_lane();
    Operands mine = {{left[0], left[1], left[2], left[3]}, {right0, right1}}, lanes[32];
    memcpy(published[lane].bytes, &mine, sizeof mine);
    sim_meet_warp("a product of matrices");
    for (int i = 0; i < 32; i++) memcpy(&lanes[i], published[i].bytes, sizeof lanes[i]);
    for (int i = 0; i < 4; i++) {
        double sum = sums[i];
        for (int k = 0; k < 16; k++)
            sum += left_at(lanes, lane / 4 + i / 2 * 8, k) * right_at(lanes, k, lane % 4 * 2 + i % 2);
        sums[i] = (float)sum;
    }
}

void sim_exchange_rows(const void *row, const char *rows[32]) {
    SimLane *lanes = sim_lanes();
    sim_check_access(row, 16, true);
    memcpy(lanes[sim_lane()].bytes, &row, sizeof row);
    sim_meet_warp("loading matrices");
    for (int i = 0; i < 32; i++) memcpy(&rows[i], lanes[i].bytes, sizeof rows[i]);
}
