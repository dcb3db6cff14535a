/* The sections mesh and comm. */
#include "comm/options.h"

#include "base/option_rows.h"

#define TARGET MeshOptions
const Option mesh_options[] = {
    /* How ranks are laid out. Sums over data-parallel ranks have their order by how many there are, so
     * another mesh is other last bits, unless numerics are exact. */
    INT("mesh.pp", pp, "1", 1, 1e6, SUMS, "Pipeline-parallel ranks: each has stages of the model's layers."),
    /* Between these groups gradients cross and parameters do not: the axis for the slower network. */
    INT("mesh.dp_replicate", dp_replicate, "1", 1, 1e6, SUMS,
        "Data-parallel groups that hold whole copies of the parameters' shards: DDP, or the outer axis of "
        "HSDP."),
    /* -1 by default: all ranks that nobody else takes share the parameters, so that a mesh need not be
     * counted out. Rajbhandari and others, "ZeRO", 2020; Zhao and others, "PyTorch FSDP", 2023. */
    INT("mesh.dp_shard", dp_shard, "-1", -1, 1e6, SUMS,
        "Ranks that share parameters, gradients and optimizer out among them: FSDP; -1: the ranks that are "
        "left."),
    INT("mesh.cp", cp, "1", 1, 1e6, SUMS,
        "Context-parallel ranks: they share the tokens of each sequence, and what a rank holds as dp_shard "
        "does; see parallel.context."),
    INT("mesh.tp", tp, "1", 1, 1e6, NOTHING,
        "Tensor-parallel ranks: they share heads, the MLP, the vocabulary, and the tokens between them; the "
        "curve has the same bits (numerics.canonical_tp)."),
    INT("mesh.ep", ep, "1", 1, 1e6, NOTHING,
        "Expert-parallel ranks: of those of dp_shard x cp, so many neighbours share the experts of each "
        "layer out, and send them each other's tokens; a power of two. The curve has the same bits."),
    TABLE_END};

#undef TARGET
#define TARGET CommOptions
const Option comm_options[] = {
    /* Many MPI libraries move data only while a call into them is going on: without a thread, transfers
     * that ought to be hidden behind products would wait for the end of these. */
    CHOICE("comm.progress_thread", progress_thread, "auto", CHOICE_WORDS(PROGRESS_THREADS), NOTHING,
           "A thread that moves messages while the others compute; auto: where a core is left for it.",
           LOCAL),
    /* Not an option of the curve: raising it must be possible for a run that goes on. */
    REAL("comm.watchdog_s", watchdog_s, "600", 0, 1e9, NOTHING,
         "A rank that waits this many seconds for another ends the run, and each says what it was doing; 0: "
         "never."),
    TABLE_END};
