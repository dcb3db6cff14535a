/* Plans one rank for each pipeline rank, simulates the step, and prints tables.
 *
 * Ranks at one pipeline rank that differ only on data-parallel axes hold, do and send the same (where shards
 * are unequal, the fullest stands for all). So a mesh of thousands needs as many plans as it has pipeline
 * ranks. Neighbouring pipeline ranks with equal figures share a row.
 *
 * FLOPs always come from layout_unit_costs, so the shares and times of all tables are comparable. Without
 * --tflops, times are in TFLOP of the computing rank: a schedule can be judged before any machine has been
 * measured. */
#include "forecast/forecast.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "forecast/exposed.h"
#include "forecast/published.h"
#include "plan/sync.h"

/* ---- planning ---- */

/* Number of ranks that share the tokens and widths of a microbatch: tp x cp. */
static double token_ranks(const Forecast *f) {
    return mesh_size(&f->layout.mesh, MESH_TENSOR | MESH_CONTEXT);
}

/* FLOPs of a step: those of the stages of a pipeline rank for all of its microbatches, including
 * recomputation. */
static double flops_of(const Forecast *f, int pipe_rank) {
    const Config *c = f->config;
    const Partition *p = &f->ranks[pipe_rank].plan.partition;
    StageCost *units = mem_alloc_array((size_t)p->table->units, sizeof *units);
    double sum = 0;
    layout_unit_costs(c, units);
    for (int u = 0; u < p->table->units; u++)
        if (partition_runs(p, u)) sum += units[u].forward + units[u].input + units[u].weight;
    free(units);
    return sum * (double)(f->layout.sequences * c->train.context * f->layout.microbatches) / token_ranks(f);
}

static double over_steps(Cost c, const Layout *l) {
    return (c.forward + c.input + c.weight) * l->microbatches;
}

/* Also keeps `fullest`, which limits, --compare and the full table use. */
static ErrorCode plan_pipe_rank(Forecast *f, const Device *d, int pipe_rank, Error *err) {
    RankForecast *r = &f->ranks[pipe_rank];
    r->count = f->layout.mesh.world / f->pipe_ranks;
    r->first = pipe_rank * r->count;
    RankSpec spec = rank_spec(f->config, &f->layout, d);
    f->cp_comm = rank_cp_comm(&spec, &f->layout.mesh);
    f->cp_comm.model = &f->config->model.shape; /* the spec's own model ends with this function */
    TRY(rank_plan_fullest(&r->plan, &spec, &f->layout, pipe_rank, d, err));
    r->traffic = rank_traffic(&r->plan);
    r->flops = flops_of(f, pipe_rank);
    if (forecast_memory(f, pipe_rank) > forecast_memory(f, f->fullest)) f->fullest = pipe_rank;
    return OK;
}

/* All boundaries of a pipeline are alike: one [T, h] tensor of the compute dtype. */
static size_t message_bytes(const Forecast *f) { return boundary_bytes(&f->ranks[0].plan.model); }

/* Seconds of a message between stages whose ranks are `stride` apart. 0: free, which the table mentions. */
static double seconds_of_message(const ForecastSpeed *speed, int stride, double bytes) {
    if (speed->hardware) return hardware_message(speed->hardware, stride, bytes);
    return speed->link > 0 ? speed->delay + bytes / (speed->link * 1e9) : 0;
}

const char *forecast_link(const ForecastSpeed *speed, char out[48]) {
    int n = snprintf(out, 48, "%g GB/s", speed->link);
    if (speed->delay > 0) snprintf(out + n, (size_t)(48 - n), " and %g ms", 1e3 * speed->delay);
    return out;
}

/* One second in the simulation's unit: the FLOPs of a rank in it, or 1 if the simulation counts seconds. */
static double second_of(const ForecastSpeed *speed) { return speed->hardware ? 1 : speed->tflops * 1e12; }
static double measure_of_second(const Forecast *f) { return second_of(&f->speed); }

double forecast_message(const ForecastSpeed *speed, int stride, double bytes) {
    return seconds_of_message(speed, stride, bytes) * second_of(speed);
}

/* Adds the collectives inside passes that no work hides, by the programs of ranks. `byte` and `delay` are in
 * FLOPs. */
static void count_exposed(const Forecast *f, double tokens, double byte, double delay, Cost *units) {
    const ModelConfig *model = &f->config->model.shape;
    ExposedSpec spec = {model, f->config->train.context, tokens, byte, delay};
    if (byte <= 0) return;
    for (int i = 0; i < f->pipe_ranks; i++)
        exposed_comm(&spec, &f->ranks[i].plan.program, &f->ranks[i].plan.model, units);
}

/* Dispatch and combine of tokens to experts; no work hides them. */
static Cost count_dispatches(const Forecast *f, int unit, double byte, double delay) {
    const PassTraffic *t = &f->passes[unit][PASS_EXPERTS];
    double sum = t->bytes.forward + t->bytes.input + t->bytes.weight;
    if (sum <= 0) return (Cost){0, 0, 0};
    return cost_scaled(t->bytes, byte + delay * t->operations / sum);
}

static int segments_of(const Forecast *f) { return f->layout.schedule.segments; }

/* FLOPs of a microbatch or of its segments, and its exposed collectives at the speed of --link. */
static void count_units(Forecast *f, Cost *units) {
    size_t n = (size_t)f->config->model.shape.num_hidden_layers + 2;
    Cost *flops = mem_alloc_array(n, sizeof *flops);
    int segments = segments_of(f);
    double tokens = (double)(f->layout.sequences * f->config->train.context) / token_ranks(f) / segments;
    double byte = f->speed.link > 0 ? measure_of_second(f) / (f->speed.link * 1e9) : 0;
    double delay = measure_of_second(f) * f->speed.delay;
    for (int i = 0; i < segments; i++, units += n) {
        layout_segment_costs(f->config, &f->layout, i, flops);
        count_exposed(f, tokens, byte, delay, units);
        for (size_t u = 0; u < n; u++)
            units[u] = cost_plus(cost_plus(units[u], count_dispatches(f, (int)u, byte, delay)),
                                 cost_scaled(flops[u], tokens));
    }
    free(flops);
}

static void count_passes(Forecast *f) {
    const Hardware *h = f->speed.hardware;
    bool narrow = h && h->links.narrow_sums;
    f->passes = mem_alloc_array((size_t)f->config->model.shape.num_hidden_layers + 2, sizeof *f->passes);
    for (int i = 0; i < f->pipe_ranks; i++) {
        const RankPlan *p = &f->ranks[i].plan;
        program_pass_traffic(&p->program, &p->model, narrow ? dtype_bytes(p->spec.compute) : sizeof(float),
                             f->passes);
    }
}

static void time_units(Forecast *f) {
    size_t n = (size_t)f->config->model.shape.num_hidden_layers + 2, all = n * (size_t)segments_of(f);
    f->units = mem_alloc_array(all, sizeof *f->units);
    if (!f->speed.hardware) {
        count_units(f, f->units);
        return;
    }
    f->unit_time = mem_alloc_array(all, sizeof *f->unit_time);
    for (size_t at = 0; at < all; at += n)
        steptime_exposed_comm(f->speed.hardware, &f->layout.mesh, f->passes, n, f->unit_time + at);
    for (int i = 0; i < f->pipe_ranks; i++)
        opcosts_count(&f->ranks[i].ops, f->speed.hardware, &f->ranks[i].plan, f->unit_time);
    for (size_t u = 0; u < all; u++) f->units[u] = steptime_sum(&f->unit_time[u]);
}

ErrorCode forecast_simulate(Simulation *out, const Cost *units, const Layout *l, double latency, Error *err) {
    const Stages *stages = &l->stages;
    int segments = l->schedule.segments, each = stages->first[stages->count];
    StageCost *costs = mem_alloc_array((size_t)(segments * stages->count), sizeof *costs);
    for (int i = 0; i < segments; i++)
        for (int s = 0; s < stages->count; s++)
            for (int u = stages->first[s]; u < stages->first[s + 1]; u++)
                costs[i * stages->count + s] = cost_plus(costs[i * stages->count + s], units[i * each + u]);
    SimulateCosts all = {.stages = costs, .segments = segments, .latency = latency};
    ErrorCode code = simulate(out, &l->schedule, &all, err);
    free(costs);
    return code;
}

static ErrorCode time_passes(Forecast *f, Error *err) {
    return forecast_simulate(&f->timing, f->units, &f->layout,
                             forecast_message(&f->speed, f->ranks[0].count, (double)message_bytes(f)), err);
}

/* Sums the parts of the passes of a pipeline rank. */
static ForecastTime passes_of(const Forecast *f, int pipe_rank) {
    const Partition *p = &f->ranks[pipe_rank].plan.partition;
    ForecastTime t = {.step = 0};
    for (int i = 0; i < segments_of(f) * p->table->units; i++) {
        const UnitTime *unit = &f->unit_time[i];
        if (!partition_runs(p, i % p->table->units)) continue;
        t.products += over_steps(unit->products, &f->layout);
        t.attention += over_steps(unit->attention, &f->layout);
        t.memory += over_steps(unit->memory, &f->layout);
        t.tensor += over_steps(unit->tensor, &f->layout);
        t.context += over_steps(unit->context, &f->layout);
        t.experts += over_steps(unit->experts, &f->layout);
    }
    return t;
}

/* All ranks meet at the norm, so the slowest rank counts. For gathers, reductions and updates, which no
 * pipeline bubble hides, that is the maximum over ranks. */
static void time_step(Forecast *f) {
    int busiest = 0;
    double exposed = 0, update = 0;
    if (!f->speed.hardware) return;
    for (int i = 0; i < f->pipe_ranks; i++) {
        const RankPlan *p = &f->ranks[i].plan;
        if (f->timing.rank[i].busy > f->timing.rank[busiest].busy) busiest = i;
        exposed = fmax(exposed, steptime_exposed(f->speed.hardware, p, &f->layout.mesh, f->units));
        update = fmax(update, f->ranks[i].ops.update);
    }
    f->time = passes_of(f, busiest);
    f->time.busiest = busiest;
    f->time.waiting = f->timing.rank[busiest].idle;
    f->time.exposed = exposed, f->time.update = update;
    f->time.step = f->timing.makespan + exposed + update;
}

/* Layout, then a plan for each pipeline rank, then the simulated step. The user sees the first error. */
static ErrorCode build(Forecast *f, const Device *d, int world, Error *err) {
    TRY(layout_build(&f->layout, f->config, world, err));
    f->pipe_ranks = mesh_size(&f->layout.mesh, MESH_PIPELINE);
    f->ranks = mem_alloc_array((size_t)f->pipe_ranks, sizeof *f->ranks);
    for (int pipe_rank = 0; pipe_rank < f->pipe_ranks; pipe_rank++) TRY(plan_pipe_rank(f, d, pipe_rank, err));
    count_passes(f);
    time_units(f);
    TRY(time_passes(f, err));
    time_step(f);
    return OK;
}

ErrorCode forecast_build(Forecast *f, const Config *c, const Device *d, int world, ForecastSpeed speed,
                         Error *err) {
    *f = (Forecast){.config = c, .speed = speed};
    ErrorCode code = build(f, d, world, err);
    if (code != OK) forecast_free(f);
    return code;
}

/* Also valid for an unfinished forecast. */
void forecast_free(Forecast *f) {
    for (int i = 0; f->ranks && i < f->pipe_ranks; i++) rank_plan_free(&f->ranks[i].plan);
    free(f->ranks);
    free(f->passes);
    free(f->units);
    free(f->unit_time);
    simulation_free(&f->timing);
    layout_free(&f->layout);
    *f = (Forecast){0};
}

/* Everything that a rank takes, except for the libraries. */
size_t forecast_memory(const Forecast *f, int pipe_rank) {
    return memory_plan_total(rank_memory(&f->ranks[pipe_rank].plan));
}

/* Over all axes: what a rank with one network card would send. */
static uint64_t sum_traffic(const ProgramTraffic *t) {
    return t->pipeline + t->replicas + t->parameters + t->gradients + t->tensor + t->context + t->experts +
           t->partner;
}

uint64_t forecast_sent(const Forecast *f, int pipe_rank) { return sum_traffic(&f->ranks[pipe_rank].traffic); }

double forecast_seconds(const ForecastSpeed *speed, double measure) {
    if (speed->hardware) return measure;
    return measure / 1e12 / (speed->tflops > 0 ? speed->tflops : 1);
}

static double printed_time(const Forecast *f, double measure) { return forecast_seconds(&f->speed, measure); }

static const char *time_unit(const Forecast *f) {
    return f->speed.hardware || f->speed.tflops > 0 ? "s" : "TFLOP";
}

double forecast_step(const Forecast *f) {
    return f->speed.hardware ? f->time.step : printed_time(f, f->timing.makespan);
}

/* ---- tables: a row for neighbouring pipeline ranks with the same figures ---- */

enum { COLUMNS = 10, MEMORY_COLUMNS = 7 }; /* and one for the host, if its memory is separate */

/* Must write all COLUMNS figures of a pipeline rank, since rows are compared by their bytes. */
typedef void Fill(const Forecast *f, int pipe_rank, double *value);

typedef struct Row {
    int first, last; /* pipeline ranks */
    double value[COLUMNS];
} Row;

/* Number of blocks that a pipeline rank runs: units between the embedding (0) and the norm with the head
 * (last). */
static int count_blocks(const Forecast *f, int pipe_rank) {
    const Partition *p = &f->ranks[pipe_rank].plan.partition;
    int n = 0;
    for (int u = 1; u < p->table->units - 1; u++) n += partition_runs(p, u);
    return n;
}

/* Number of stages of a pipeline rank. Looped and V schedules have several, which need not be adjacent. */
static int count_stages(const Forecast *f, int pipe_rank) {
    const Stages *s = &f->layout.stages;
    int n = 0;
    for (int i = 0; i < s->count; i++) n += s->rank[i] == pipe_rank;
    return n;
}

/* Every pipeline rank has at least one stage. */
static int first_stage(const Forecast *f, int pipe_rank) {
    int i = 0;
    while (i + 1 < f->layout.stages.count && f->layout.stages.rank[i] != pipe_rank) i++;
    return i;
}

/* Adjacent pipeline ranks of one stage each form a run of units. Where units are named, pipeline ranks of
 * several stages have rows of their own. */
static bool same_row(const Forecast *f, const Row *a, const Row *b, bool names_units) {
    if (memcmp(a->value, b->value, sizeof a->value) != 0) return false;
    if (!names_units) return true;
    if (count_stages(f, a->last) != 1 || count_stages(f, b->first) != 1) return false;
    return count_blocks(f, a->last) == count_blocks(f, b->first);
}

/* Compares exact figures, not printed ones: pipeline ranks that differ by a byte have different rows. */
static int make_rows(const Forecast *f, Fill *fill, bool names_units, Row *rows) {
    int n = 0;
    for (int pipe_rank = 0; pipe_rank < f->pipe_ranks; pipe_rank++) {
        Row row = {.first = pipe_rank, .last = pipe_rank};
        fill(f, pipe_rank, row.value);
        if (n > 0 && same_row(f, &rows[n - 1], &row, names_units))
            rows[n - 1].last = pipe_rank;
        else
            rows[n++] = row;
    }
    return n;
}

/* The ranks of a pipeline rank are consecutive, since pp is the outermost axis, and so are those of
 * neighbouring pipeline ranks. */
static void put_ranks(const Forecast *f, const Row *row, Text *out) {
    char name[32];
    int first = f->ranks[row->first].first, last = f->ranks[row->last].first + f->ranks[row->last].count - 1;
    if (first == last)
        snprintf(name, sizeof name, "%d", first);
    else
        snprintf(name, sizeof name, "%d-%d", first, last);
    text_printf(out, "  %-11s", name);
}

/* Writes no bytes as a bare 0, which stands out among sizes. */
static void put_bytes(double bytes, Text *out) {
    char text[32];
    text_printf(out, " %11s", bytes > 0 ? text_bytes(bytes, text) : "0");
}

/* Prints "embedding, layers 0-3; layers 28-31, norm and head" and ends the line. */
static void put_units(const Forecast *f, const Row *row, Text *out) {
    const Stages *s = &f->layout.stages;
    int blocks = (int)f->config->model.shape.num_hidden_layers;
    text_puts(out, "  ");
    if (row->first < row->last) {
        split_describe_units(blocks, s->first[first_stage(f, row->first)],
                             s->first[first_stage(f, row->last) + 1], out);
        text_printf(out, ", %d each", count_blocks(f, row->first));
    }
    const char *semicolon = "";
    for (int i = 0; row->first == row->last && i < s->count; i++) {
        if (s->rank[i] != row->first) continue;
        text_puts(out, semicolon);
        split_describe_units(blocks, s->first[i], s->first[i + 1], out);
        semicolon = "; ";
    }
    text_puts(out, "\n");
}

/* ---- memory ---- */

/* Column 5 is everything else: workspace, communication, constants, statistics, staging, partner copy. */
static void fill_memory(const Forecast *f, int pipe_rank, double *value) {
    const MemoryPlan *m = rank_memory(&f->ranks[pipe_rank].plan);
    value[0] = (double)(m->parameters + m->copy);
    value[1] = (double)m->arena[ARENA_GATHERED];
    value[2] = (double)(m->gradients + m->arena[ARENA_GRADIENTS]);
    value[3] = (double)m->optimizer;
    value[4] = (double)m->arena[ARENA_ACTIVATIONS];
    value[6] = (double)forecast_memory(f, pipe_rank);
    value[7] = m->separate_memory ? (double)memory_plan_host(m) : 0;
    value[8] = value[9] = 0;
    value[5] = value[6] - value[0] - value[1] - value[2] - value[3] - value[4];
}

/* Excess of the fullest shard of a pipeline rank over the average one. */
static double excess(const Partition *p) {
    double sum = 0, most = 0;
    for (int i = 0; i < p->shards; i++) {
        sum += (double)p->load[i];
        most = fmax(most, (double)p->load[i]);
    }
    return sum > 0 ? most * p->shards / sum - 1 : 0;
}

/* Explains what the table does not show: which ranks hold the same, and what is held twice. */
static void put_shares(const Forecast *f, Text *out) {
    const Partition *p = &f->ranks[0].plan.partition;
    double most = 0;
    for (int i = 0; i < f->pipe_ranks; i++) most = fmax(most, excess(&f->ranks[i].plan.partition));
    if (p->shards > 1)
        text_printf(out,
                    "  parameters and optimizer: a rank holds 1/%d of its units, the fullest %.2g%% more\n",
                    p->shards, 100 * most);
    if (p->replicas > 1)
        text_printf(out, "  %d replicas hold the same; only the first one's ranks hold the copy to save\n",
                    p->replicas);
    if (f->ranks[0].plan.copied)
        text_puts(out, "  other includes the copy of another rank's state (recovery.partner_copy)\n");
    for (int i = 0; i < f->pipe_ranks; i++)
        if (f->ranks[i].plan.partition.tied_copy)
            text_printf(out, "  pipeline rank %d holds a second copy of the tied embedding, for the head\n",
                        i);
}

/* For the fullest rank, since that is what a job needs. */
static void put_limit(const Forecast *f, double limit, Text *out) {
    char most[32], allowed[32];
    double bytes = (double)forecast_memory(f, f->fullest);
    if (limit <= 0) return;
    text_printf(out, "  of %s a rank: %.1f%% at most, on rank %d%s\n", text_bytes(limit, allowed),
                100 * bytes / limit, f->ranks[f->fullest].first, bytes > limit ? ": it will not fit" : "");
    if (bytes > limit) text_printf(out, "  %s more are needed\n", text_bytes(bytes - limit, most));
}

/* Prints one row where all ranks are alike, as on a mesh without pipelines. */
void forecast_print_memory(const Forecast *f, double limit, Text *out) {
    Row *rows = mem_alloc_array((size_t)f->pipe_ranks, sizeof *rows);
    int n = make_rows(f, fill_memory, true, rows);
    bool separate_memory = rank_memory(&f->ranks[0].plan)->separate_memory;
    text_printf(out,
                "memory of a rank\n"
                "  ranks        parameters    gathered   gradients   optimizer activations       other    "
                "   total%s  holds\n",
                separate_memory ? "     on host" : "");
    for (int i = 0; i < n; i++) {
        put_ranks(f, &rows[i], out);
        for (int k = 0; k < MEMORY_COLUMNS + separate_memory; k++) put_bytes(rows[i].value[k], out);
        put_units(f, &rows[i], out);
    }
    free(rows);
    put_shares(f, out);
    put_limit(f, limit, out);
}

/* Prints the full plan of one rank, and the matrices that it has where these stay whole. */
void forecast_print_pipe_rank(const Forecast *f, int pipe_rank, Text *out) {
    const RankForecast *r = &f->ranks[pipe_rank];
    text_printf(out, "memory of rank %d", r->first);
    if (r->count > 1) text_printf(out, ", and of those to %d", r->first + r->count - 1);
    text_puts(out, "\n");
    memory_plan_print(rank_memory(&r->plan), &r->plan.program, &r->plan.model, &r->plan.groups, out);
    partition_print_owners(&r->plan.partition, &r->plan.groups, out);
}

/* ---- work and traffic ---- */

/* By axis, since links differ: traffic over dp_shard may stay inside a machine while that over pp leaves
 * it. */
static void fill_work(const Forecast *f, int pipe_rank, double *value) {
    const RankForecast *r = &f->ranks[pipe_rank];
    value[0] = r->flops / 1e12;
    value[1] = (double)r->traffic.pipeline;
    value[2] = (double)r->traffic.replicas;
    value[3] = (double)r->traffic.parameters;
    value[4] = (double)r->traffic.gradients;
    value[5] = (double)r->traffic.tensor;
    value[6] = (double)r->traffic.context;
    value[7] = (double)r->traffic.experts;
    value[8] = (double)r->traffic.partner;
    value[9] = (double)forecast_sent(f, pipe_rank);
}

/* Explains what determines the figures but is not in the table. */
static void put_why(const Forecast *f, Text *out) {
    static const char *const sync[] = {"once a step", "once a microbatch",
                                       "over dp_shard once a microbatch, over dp_replicate once a step"};
    const Program *p = &f->ranks[0].plan.program;
    const Mesh *mesh = &f->layout.mesh;
    if (mesh_size(mesh, MESH_SHARDS | MESH_REPLICAS) > 1)
        text_printf(out, "  gradients cross %s%s\n", sync[p->sync],
                    p->exact ? ", in fixed point of 8 bytes" : "");
    text_puts(out, "  0 on an axis of degree 1:");
    for (int a = 0; a < AXES; a++)
        if (axis_is_asked((Axis)a) && mesh_degree(mesh, (Axis)a) == 1)
            text_printf(out, " %s", axis_name((Axis)a));
    text_puts(out, "\n");
    if (mesh->world > 1)
        text_printf(out,
                    "  not in the table: the step's record, %d bytes in each of %d rounds over all ranks\n",
                    (int)STEP_RECORD_BYTES, program_record_rounds(mesh->world));
    if (mesh_size(mesh, MESH_EXPERTS) > 1)
        text_printf(out,
                    "  dispatch over ep: where tokens go evenly; buffers hold %.4g times a rank's local "
                    "assignments at a time\n",
                    f->config->train.ep_buffer_factor);
}

/* FLOPs and bytes of one step. All ranks of a pipeline rank do the same, so they share a row. */
void forecast_print_work(const Forecast *f, Text *out) {
    char tokens[32];
    Row *rows = mem_alloc_array((size_t)f->pipe_ranks, sizeof *rows);
    const Mesh *mesh = &f->layout.mesh;
    bool tp = mesh_size(mesh, MESH_TENSOR) > 1, cp = mesh_size(mesh, MESH_CONTEXT) > 1,
         ep = mesh_size(mesh, MESH_EXPERTS) > 1, partner = f->ranks[0].traffic.partner > 0;
    int n = make_rows(f, fill_work, false, rows);
    int64_t each = f->layout.sequences * f->layout.microbatches * f->config->train.context;
    text_printf(
        out,
        "work and bytes sent of a rank in a step, %s tokens\n"
        "  ranks             TFLOP          pp dp_replicate    dp_shard:   dp_shard:%s%s%s%s       total\n"
        "                           boundaries   gradients  parameters   gradients%s%s%s%s\n",
        text_count(each, tokens), tp ? "          tp" : "", cp ? "          cp" : "",
        ep ? "          ep" : "", partner ? "     partner" : "", tp ? "      passes" : "",
        cp ? "      passes" : "", ep ? "    dispatch" : "", partner ? "   gradients" : "");
    for (int i = 0; i < n; i++) {
        put_ranks(f, &rows[i], out);
        text_printf(out, " %11.4g", rows[i].value[0]);
        for (int k = 1; k < COLUMNS; k++)
            if ((k != 5 || tp) && (k != 6 || cp) && (k != 7 || ep) && (k != 8 || partner))
                put_bytes(rows[i].value[k], out);
        text_puts(out, "\n");
    }
    free(rows);
    put_why(f, out);
}

/* ---- what other keys would cost ---- */

/* Figures of the same rank and layout under another spec. */
typedef struct Other {
    double memory;
    uint64_t sent;
} Other;

static ErrorCode plan_other(const Forecast *f, const Device *d, int pipe_rank, const RankSpec *spec,
                            Other *out, Error *err) {
    RankPlan p;
    ErrorCode code = rank_plan_fullest(&p, spec, &f->layout, pipe_rank, d, err);
    if (code == OK) {
        ProgramTraffic t = rank_traffic(&p);
        *out = (Other){(double)memory_plan_pools(&p.memory), sum_traffic(&t)};
    }
    rank_plan_free(&p);
    return code;
}

/* The cost of exact numerics: plans the same rank without them. Prints nothing where numerics are not
 * exact. */
ErrorCode forecast_print_exact(const Forecast *f, const Device *d, int pipe_rank, Text *out, Error *err) {
    const RankForecast *r = &f->ranks[pipe_rank];
    RankSpec spec = rank_spec(f->config, &f->layout, d);
    Other fast;
    char memory[32], sent[32], fast_memory[32], fast_sent[32];
    if (!spec.exact) return OK;
    spec.exact = false;
    TRY(plan_other(f, d, pipe_rank, &spec, &fast, err));
    double after = (double)memory_plan_pools(&r->plan.memory);
    uint64_t more = forecast_sent(f, pipe_rank);
    text_printf(
        out, "numerics exact, on rank %d: memory %s instead of %s (%+.1f%%), sent in a step %s instead of %s",
        r->first, text_bytes(after, memory), text_bytes(fast.memory, fast_memory),
        100 * (after / fast.memory - 1), text_bytes((double)more, sent),
        text_bytes((double)fast.sent, fast_sent));
    if (fast.sent > 0) text_printf(out, " (%+.1f%%)", 100 * ((double)more / (double)fast.sent - 1));
    text_puts(out, "\n");
    return OK;
}

/* Prices every other setting that differs from the present one on this mesh. */
ErrorCode forecast_print_sync(const Forecast *f, const Device *d, int pipe_rank, const char *why, Text *out,
                              Error *err) {
    static const GradientSync all[] = {SYNC_STEP, SYNC_REPLICA, SYNC_MICROBATCH};
    const RankForecast *r = &f->ranks[pipe_rank];
    const Partition *p = &r->plan.partition;
    RankSpec spec = rank_spec(f->config, &f->layout, d);
    GradientSync own = r->plan.program.sync;
    char memory[32], sent[32];
    if (p->shards * p->replicas == 1) return OK;
    text_printf(out, "gradient_sync %s%s%s%s, on rank %d: memory %s, sent in a step %s", sync_name(own),
                why ? " (" : "", why ? why : "", why ? ")" : "", r->first,
                text_bytes((double)memory_plan_pools(&r->plan.memory), memory),
                text_bytes((double)forecast_sent(f, pipe_rank), sent));
    for (int i = 0; i < 3; i++) {
        Other other;
        if (all[i] == own ||
            program_sync(all[i], p->shards, p->replicas, f->layout.schedule.microbatches) != all[i])
            continue;
        spec.sync = all[i];
        TRY(plan_other(f, d, pipe_rank, &spec, &other, err));
        text_printf(out, "; %s would take %s and send %s", sync_name(all[i]),
                    text_bytes(other.memory, memory), text_bytes((double)other.sent, sent));
    }
    text_puts(out, "\n");
    return OK;
}

/* ---- time on hardware ---- */

static void put_seconds(const char *name, double seconds, const char **gap, Text *out) {
    if (seconds <= 0) return;
    text_printf(out, "%s%s %.3g s", *gap, name, seconds);
    *gap = ", ";
}

static void put_parts(const ForecastTime *t, Text *out) {
    const char *gap = "  of the busiest rank: ";
    put_seconds("products", t->products, &gap, out);
    put_seconds("attention", t->attention, &gap, out);
    put_seconds("activations in memory", t->memory, &gap, out);
    put_seconds("tp", t->tensor, &gap, out);
    put_seconds("cp", t->context, &gap, out);
    put_seconds("ep", t->experts, &gap, out);
    put_seconds("waiting in the pipeline", t->waiting, &gap, out);
    put_seconds("gathers and reductions not hidden", t->exposed, &gap, out);
    put_seconds("update", t->update, &gap, out);
    text_puts(out, "\n");
}

/* The error bar of the step: where published runs of the same group were. */
static void put_range(const Forecast *f, double tokens, Text *out) {
    const Mesh *mesh = &f->layout.mesh;
    const Published *like = published_like(f->config, mesh->world, (int)f->speed.hardware->links.ranks);
    char least[32], most[32];
    if (!like) {
        text_puts(out, "  no published run is like it, so no range is known\n");
        return;
    }
    text_printf(
        out,
        "  like published runs of %s: step %.3g to %.3g s, %s to %s tokens/s of each rank (%d runs took "
        "%.2f to %.2f times as long as planned)\n",
        like->group, like->least * f->time.step, like->most * f->time.step,
        text_count((int64_t)(tokens / like->most / mesh->world), least),
        text_count((int64_t)(tokens / like->least / mesh->world), most), like->runs, like->least, like->most);
}

/* MFU as in model_flops_per_token: recomputation does not count. */
void forecast_print_time(const Forecast *f, Text *out) {
    const Hardware *h = f->speed.hardware;
    const Mesh *mesh = &f->layout.mesh;
    char whole[32], each[32], all[16];
    if (!h) return;
    Dtype compute = f->cp_comm.compute;
    double tokens = (double)(layout_samples(&f->layout) * f->config->train.context) / f->time.step;
    double flops = model_flops_per_token(&f->config->model.shape, f->config->train.context) * tokens;
    text_puts(out, "prediction on ");
    hardware_describe(h, compute, out);
    text_printf(out, "\n  step %.4g s, %s tokens/s, %s of each rank; %.4g TFLOP/s of each rank, MFU %.1f%%\n",
                f->time.step, text_count((int64_t)tokens, whole),
                text_count((int64_t)(tokens / mesh->world), each), flops / mesh->world / 1e12,
                100 * flops / mesh->world / hardware_peak(h, compute));
    put_range(f, tokens, out);
    text_printf(out, "  all %s steps of the run: %s\n", text_count(f->config->train.steps, each),
                clock_duration(config_steps_from(f->config, 0) * f->time.step, all));
    put_parts(&f->time, out);
    opcosts_print(&f->ranks[f->time.busiest].ops, out);
    text_printf(
        out, "  memory of rank %d: %s of %g GiB; on its host %s more, most of it the copy for checkpoints\n",
        f->ranks[f->fullest].first, text_bytes((double)forecast_memory(f, f->fullest), whole), h->memory.gib,
        text_bytes((double)memory_plan_host(rank_memory(&f->ranks[f->fullest].plan)), each));
    text_puts(out,
              "  assumed, not measured: these figures; all that crosses over tp and cp counts; no time for "
              "loading,\n           launching and saving\n");
}

void forecast_print_context(const Forecast *f, Text *out) {
    if (f->cp_comm.cp == 1) return;
    text_printf(out, "context parallelism over %d ranks ", f->cp_comm.cp);
    cp_comm_describe(&f->cp_comm, out);
    text_puts(out, "\n");
}

/* ---- pipelines ---- */

/* The span of a receive is the time it was posted, and a send that takes no time has no span. Neither is of
 * use here, where windows of collectives follow. */
static void drop_receives(Timeline *t) {
    int kept = 0;
    for (int i = 0; i < t->count; i++)
        if (t->spans[i].kind != SPAN_RECV) t->spans[kept++] = t->spans[i];
    t->count = kept;
}

/* From FLOPs of the simulator to the unit of the drawing. */
static void scale_spans(Timeline *t, double factor) {
    for (int i = 0; i < t->count; i++) {
        t->spans[i].start *= factor;
        t->spans[i].end *= factor;
    }
}

/* The title describes the drawing completely, in case it is shown alone. It is cut to `size`: the name of a
 * schedule may be long. */
static void put_title(const Forecast *f, char *out, size_t size) {
    const Schedule *s = &f->layout.schedule;
    char bytes[32], link[48], messages[96] = "messages free";
    if (f->speed.hardware)
        snprintf(messages, sizeof messages, "messages of %s on %.40s",
                 text_bytes((double)message_bytes(f), bytes), f->speed.hardware->name);
    else if (f->speed.link > 0)
        snprintf(messages, sizeof messages, "messages of %s at %s",
                 text_bytes((double)message_bytes(f), bytes), forecast_link(&f->speed, link));
    char segments[32] = "";
    if (s->segments > 1) snprintf(segments, sizeof segments, " in %d segments", s->segments);
    snprintf(out, size, "%s: %d pipeline ranks, %d microbatches%s, %d stages, %s", s->name, s->ranks,
             s->microbatches / s->segments, segments, s->stages, messages);
}

/* First come the simulated cells, then the collectives of each pipeline rank's program, then the conversion
 * to seconds if a speed is known. Cannot fail, since forecast_build has built everything. The title is inside
 * *t, so *t must not be moved. Free with forecast_timeline_free. */
void forecast_timeline(const Forecast *f, ForecastTimeline *t) {
    const Layout *l = &f->layout;
    t->bytes = mem_alloc_array((size_t)f->pipe_ranks, sizeof *t->bytes);
    timeline_from_simulation(&t->timeline, t->title, &l->schedule, &f->timing);
    drop_receives(&t->timeline);
    for (int i = 0; i < f->pipe_ranks; i++) {
        const RankPlan *p = &f->ranks[i].plan;
        timeline_add_collectives(&t->timeline, &p->program, &l->schedule.orders[i], f->timing.rank[i].cells,
                                 f->units);
        t->bytes[i] = (double)rank_memory(p)->arena[ARENA_ACTIVATIONS];
    }
    /* The windows use the simulation's times, so both are scaled together. */
    scale_spans(&t->timeline, printed_time(f, 1));
    t->timeline.unit = time_unit(f);
    t->timeline.bytes = t->bytes;
    put_title(f, t->title, sizeof t->title);
}

void forecast_timeline_free(ForecastTimeline *t) {
    timeline_free(&t->timeline);
    free(t->bytes);
    t->bytes = NULL;
}

/* 1 when all pipeline ranks do the same work. A pipeline is as slow as its busiest pipeline rank. */
double forecast_balance(const Forecast *f) {
    double most = 0, all = 0;
    for (int i = 0; i < f->pipe_ranks; i++) {
        most = fmax(most, f->ranks[i].flops);
        all += f->ranks[i].flops;
    }
    return most > 0 ? all / (most * f->pipe_ranks) : 1;
}
