/* Matrix instructions on a CPU. device/cuda/plugin/mma.cuh says which elements a lane holds; this file has
 * the inverse: which lane holds an element.
 *
 * Sums are taken in double and rounded once. Hardware adds in groups, and truncates what is below the
 * largest term of each. */
#include "cuda_runtime.h"
#include "sim.h"

#include <vector>

namespace {

/* A lane's operands of a product. */
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

/* ---- asynchronous products ---- */

/* Sums of products in flight, and their values meanwhile. */
struct Beside {
    float (*sums)[4];
    int columns, products;
    float values[16][4];
};
struct Begun {
    SimProduct product;
    int group; /* index of its group, in the order in which the thread closes them */
};
struct Thread {
    std::vector<Begun> begun;
    std::vector<Beside> beside;
    int closed; /* groups closed */
    bool open;
};
Thread threads[SIM_THREADS_MAX];

Thread &this_thread(void) { return threads[sim_number()]; }

bool is_beside(Thread &t, float (*sums)[4]) {
    for (Beside &b : t.beside)
        if (b.sums == sums) return true;
    return false;
}
Beside &beside_of(Thread &t, float (*sums)[4]) {
    for (Beside &b : t.beside)
        if (b.sums == sums) return b;
    sim_broken("sums that no product has: a bug of the simulation");
}

/* Fetches all 16 elements of the lane's two rows of a left operand. */
void exchange_left(SimProduct *p) {
    SimLane *published = sim_lanes();
    int lane = sim_lane();
    memcpy(published[lane].bytes, p->left, sizeof p->left);
    sim_meet_warp("a product of four warps");
    for (int r = 0; r < 2; r++)
        for (int k = 0; k < 16; k++) {
            uint32_t left[4];
            memcpy(left, published[lane / 4 * 4 + k % 8 / 2].bytes, sizeof left);
            p->rows[r][k] = (float)widened(left[r + k / 8 * 2], k % 2);
        }
}

/* Writes sums back once no product in flight uses them. */
void settle(Thread &t) {
    for (size_t i = 0; i < t.beside.size();) {
        Beside &b = t.beside[i];
        if (b.products > 0) {
            i++;
            continue;
        }
        memcpy(b.sums, b.values, (size_t)(b.columns / 8) * sizeof *b.values);
        t.beside.erase(t.beside.begin() + (long)i);
    }
}

} // namespace

void sim_group(bool begins) {
    Thread &t = this_thread();
    if (!begins) t.closed++;
    t.open = begins;
    sim_meet_warp(begins ? "a group's beginning" : "a group's end");
}

void sim_begin_product(SimProduct p, bool add) {
    Thread &t = this_thread();
    if (!t.open) sim_broken("a product that no group_begin() is in front of");
    sim_check_shown();
    if (!p.left_rows.first) exchange_left(&p);
    if (!is_beside(t, p.sums)) {
        size_t bytes = (size_t)(p.columns / 8) * sizeof *p.sums;
        t.beside.push_back({p.sums, p.columns, 0, {}});
        memcpy(t.beside.back().values, p.sums, bytes);
        memset((void *)p.sums, 0xff, bytes);
    }
    Beside &b = beside_of(t, p.sums);
    if (!add && b.products > 0) sim_broken("sums that begin again while products add to them");
    if (!add) memset(b.values, 0, sizeof b.values);
    b.products++;
    t.begun.push_back({p, t.closed});
}

bool sim_next_product(int left, SimProduct *p, float sums[16][4]) {
    Thread &t = this_thread();
    if (t.begun.empty() || t.begun.front().group >= t.closed - left) {
        settle(t);
        sim_meet_warp("waiting for products");
        return false;
    }
    *p = t.begun.front().product;
    t.begun.erase(t.begun.begin());
    memcpy(sums, beside_of(t, p->sums).values, sizeof Beside::values);
    return true;
}

void sim_end_product(const SimProduct *p, const float sums[16][4]) {
    Beside &b = beside_of(this_thread(), p->sums);
    memcpy(b.values, sums, sizeof b.values);
    b.products--;
}

void sim_end_products(void) {
    Thread &t = this_thread();
    if (!t.begun.empty()) sim_broken("it ends before its products have been waited for");
    t.closed = 0;
    t.open = false;
}

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
