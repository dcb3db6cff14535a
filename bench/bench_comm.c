/* Bandwidth of the collectives compared with those of the MPI library, best of several rounds:
 *     mpirun -n 2 --bind-to none build/bench_comm [rounds]
 * Bytes are those of the full tensor; GB/s is what each rank sends, (n-1)/n of them (twice that in an
 * all-reduce), per second. The first row is the record of a step: combined in a tree (comm_combine), compared
 * with an MPI all-gather of all ranks' records, after which each rank combines them. A table goes to stderr,
 * and one JSON object per line of it to stdout. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/pool.h"
#include "base/text.h"
#include "comm/comm.h"
#include "engine/record.h"

typedef struct Bench {
    Comm *comm;
    int rounds, ranks, rank;
    size_t bytes; /* of the full tensor */
    float *a, *b;
    void *work;
    CommRange *parts;            /* [ranks] */
    StepRecord record, *records; /* [ranks] */
} Bench;

static void check(ErrorCode code, const Error *err) {
    if (code == OK) return;
    fprintf(stderr, "bench_comm: %s\n", err->message);
    exit((int)code);
}

/* ---- measured collectives ---- */

static void ours_gather(Bench *b) {
    Error err;
    CommRequest h;
    check(comm_all_gather(b->comm, MESH_SHARDS, b->parts, sizeof(float), b->a, &h, &err), &err);
    check(comm_wait(b->comm, h, &err), &err);
}

static void ours_scatter(Bench *b) {
    Error err;
    CommRequest h;
    check(comm_reduce_scatter(b->comm, MESH_SHARDS, COMM_F32, b->parts, b->a, b->b, b->work, &h, &err), &err);
    check(comm_wait(b->comm, h, &err), &err);
}

static void ours_reduce(Bench *b) {
    Error err;
    CommRequest h;
    check(comm_all_reduce(b->comm, MESH_SHARDS, COMM_F32, b->a, (int64_t)(b->bytes / sizeof(float)), b->work,
                          &h, &err),
          &err);
    check(comm_wait(b->comm, h, &err), &err);
}

static void ours_record(Bench *b) {
    Error err;
    check(comm_combine(b->comm, &b->record, sizeof b->record, record_combine, &err), &err);
}

static void raw_gather(Bench *b) {
    int count = (int)(b->bytes / sizeof(float)) / b->ranks;
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, b->a, count, MPI_FLOAT, MPI_COMM_WORLD);
}

static void raw_scatter(Bench *b) {
    int count = (int)(b->bytes / sizeof(float)) / b->ranks;
    MPI_Reduce_scatter_block(b->a, b->b, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void raw_reduce(Bench *b) {
    MPI_Allreduce(MPI_IN_PLACE, b->a, (int)(b->bytes / sizeof(float)), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void raw_record(Bench *b) {
    int bytes = (int)sizeof b->record;
    MPI_Allgather(&b->record, bytes, MPI_BYTE, b->records, bytes, MPI_BYTE, MPI_COMM_WORLD);
    b->record = b->records[0];
    for (int r = 1; r < b->ranks; r++) record_combine(&b->record, &b->records[r]);
}

/* ---- measuring ---- */

static double best(Bench *b, void (*what)(Bench *)) {
    double least = 1e30;
    what(b);
    for (int i = 0; i < b->rounds; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = clock_seconds();
        what(b);
        double took = clock_seconds() - start, slowest = 0;
        MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (slowest < least) least = slowest;
    }
    return least;
}

static void row(Bench *b, const char *name, void (*ours)(Bench *), void (*raw)(Bench *), double sent) {
    char size[32];
    memset(b->a, 0, b->bytes);
    double mine = best(b, ours), theirs = best(b, raw), bytes = (double)b->bytes * sent;
    if (b->rank != 0) return;
    fprintf(stderr, "%-16s %10s  %9.1f us %7.2f GB/s   %9.1f us %7.2f GB/s   %5.2f\n", name,
            text_bytes((double)b->bytes, size), mine * 1e6, bytes / mine / 1e9, theirs * 1e6,
            bytes / theirs / 1e9, theirs / mine);
    printf(
        "{\"name\": \"%s\", \"ranks\": %d, \"tensor_bytes\": %zu, \"sent_bytes\": %.0f, \"seconds\": %.3g, "
        "\"mpi_seconds\": %.3g}\n",
        name, b->ranks, b->bytes, bytes, mine, theirs);
}

static void run(Bench *b) {
    static const size_t sizes[] = {4096, 65536, 1 << 20, 8 << 20, 32 << 20, 128 << 20};
    double part = (double)(b->ranks - 1) / b->ranks;
    if (b->rank == 0)
        fprintf(stderr, "%d ranks\n%-16s %10s  %26s   %26s   %s\n", b->ranks, "", "tensor", "weft", "MPI",
                "MPI's time / weft's");
    b->bytes = sizeof b->record;
    record_start(&b->record);
    row(b, "record", ours_record, raw_record, ceil(log2(b->ranks)));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        b->bytes = sizes[i] / (64 * (size_t)b->ranks) * 64 * (size_t)b->ranks;
        int64_t each = (int64_t)(b->bytes / sizeof(float)) / b->ranks;
        for (int p = 0; p < b->ranks; p++) b->parts[p] = (CommRange){p * each, each};
        row(b, "all-gather", ours_gather, raw_gather, part);
        row(b, "reduce-scatter", ours_scatter, raw_scatter, part);
        row(b, "all-reduce", ours_reduce, raw_reduce, 2 * part);
    }
}

int main(int argc, char **argv) {
    enum { LARGEST = 128 << 20 };
    Error err;
    Mesh mesh;
    Bench b = {.rounds = argc > 1 ? atoi(argv[1]) : 10};
    check(comm_open(&b.comm, &err), &err);
    b.ranks = comm_size(b.comm);
    b.rank = comm_rank(b.comm);
    if (b.ranks == 1) {
        fprintf(stderr, "bench_comm measures several ranks: mpirun -n 2 --bind-to none bench_comm\n");
        return 0;
    }
    check(mesh_build(&mesh, &(MeshOptions){1, 1, -1, 1, 1, 1, 0, 0}, b.ranks, &err), &err);
    check(comm_set_mesh(b.comm, &mesh, &err), &err);
    Device device;
    Pool pool = {.name = "bench"};
    check(device_open_cpu(&device, NULL, 1, &err), &err);
    size_t work = comm_all_reduce_workspace(b.ranks, COMM_F32, LARGEST / 4);
    pool_take(&pool, 2 * (size_t)LARGEST + work);
    check(pool_commit(&pool, &device, &err), &err);
    b.records = mem_alloc_array((size_t)b.ranks, sizeof *b.records);
    b.a = pool_take(&pool, LARGEST);
    b.b = pool_take(&pool, LARGEST);
    b.work = pool_take(&pool, work);
    b.parts = mem_alloc_array((size_t)b.ranks, sizeof *b.parts);
    run(&b);
    free(b.parts);
    free(b.records);
    pool_free(&pool);
    device_close(&device);
    comm_close(b.comm);
    return 0;
}
