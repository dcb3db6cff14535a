/* The sections mesh and comm. */
#include "comm/options.h"

#include "base/option_rows.h"

#define TARGET MeshOptions
const Option mesh_options[] = {
    /* How ranks are laid out. The order of sums over data-parallel ranks depends on their number, so another
     * mesh has other last bits, unless numerics are exact. */
    INT("mesh.pp", pp, "1", 1, 1e6, SUMS, "Pipeline-parallel ranks: each has stages of the model's layers.",
        ELSEWHERE("pp_size pipeline_parallel_degree pipeline_parallel_size pipeline_model_parallel_size")),
    /* Gradients are reduced between these groups, but no parameters are gathered: this is the axis for the
     * slower network. */
    INT("mesh.dp_replicate", dp_replicate, "1", 1, 1e6, SUMS,
        "Data-parallel groups that hold whole copies of the parameters' shards: DDP, or the outer axis of "
        "HSDP.",
        ELSEWHERE("ddp data_parallel_replicate_degree")),
    /* -1 by default: all ranks that no other axis takes shard the parameters, so that nobody need compute the
     * mesh. Rajbhandari and others, "ZeRO", 2020; Zhao and others, "PyTorch FSDP", 2023. */
    INT("mesh.dp_shard", dp_shard, "-1", -1, 1e6, SUMS,
        "Ranks over which parameters, gradients and optimizer states are sharded (FSDP); -1: the ranks "
        "that are left.",
        ELSEWHERE(
            "dp dp_size data_parallel_size data_parallel_degree data_parallel_shard_degree fsdp fsdp_type")),
    INT("mesh.cp", cp, "1", 1, 1e6, SUMS,
        "Context-parallel ranks: each has a shard of the tokens of each sequence, and of the parameters as "
        "with dp_shard; see mesh.cp_comm.",
        ELSEWHERE("cp_size context_parallel_degree context_parallel_size")),
    INT("mesh.tp", tp, "1", 1, 1e6, NOTHING,
        "Tensor-parallel ranks: each has a shard of the heads, the MLP, the vocabulary, and between these "
        "layers of the tokens; the curve has the same bits (numerics.tp_invariant_up_to).",
        ELSEWHERE("tp_size tensor_parallel_degree tensor_parallel_size tensor_model_parallel_size")),
    INT("mesh.ep", ep, "1", 1, 1e6, NOTHING,
        "Expert-parallel ranks: the experts of each layer are sharded over so many neighbours of dp_shard x "
        "cp, which send each other the tokens; a power of two. The curve has the same bits.",
        ELSEWHERE("ep_size expert_parallel_degree expert_model_parallel_size")),
    INT("mesh.etp", etp, "0", 0, 1e6, NOTHING,
        "Tensor-parallel ranks of an expert. 0 (or mesh.tp): experts are split over mesh.tp, like an MLP. 1: "
        "experts are whole; mesh.ep then includes the ranks of tp, so it is a multiple of mesh.tp, and each "
        "rank dispatches only its own tokens. The curve has the same bits for one value of "
        "numerics.etp_invariant_up_to.",
        ELSEWHERE("expert_tensor_parallel_degree expert_tensor_parallel_size")),
    TABLE_END};

#undef TARGET
#define TARGET CommOptions
const Option comm_options[] = {
    /* Sockets do not use the MPI library, start in less time, and report every death. MPI supports faster
     * networks. */
    CHOICE("comm.transport", transport, "mpi", CHOICE_WORDS(TRANSPORTS), NOTHING,
           "How weft train -n N starts and joins ranks. mpi: by mpirun, over MPI. sockets: by weft launch, "
           "over Unix sockets inside a machine and TCP between machines. The bits are the same.",
           LOCAL, ELSEWHERE("backend distributed_backend init_method")),
    /* Many MPI libraries move data only during calls into them: without a thread, transfers that should be
     * hidden behind products would wait for these to end. */
    CHOICE("comm.progress_thread", progress_thread, "auto", CHOICE_WORDS(PROGRESS_THREADS), NOTHING,
           "A thread that moves messages while the others compute; auto: where a core is left for it.",
           LOCAL),
    /* Movement and sums of blocks of the canonical tree: the curve has the same bits. */
    BOOL(
        "comm.two_levels", two_levels, "true", NOTHING,
        "Over several machines with equally many ranks, collectives of parameters and gradients move between "
        "machines and inside each apart, so that each byte crosses to another machine once (hierarchical "
        "all-gather, reduce-scatter and all-reduce); the curve has the same bits.",
        LOCAL, ELSEWHERE("hierarchical_allreduce")),
    /* Has no effect on the curve, so a resumed run may raise it. */
    REAL("comm.watchdog_s", watchdog_s, "600", 0, 1e9, NOTHING,
         "Seconds for which a rank may wait for others while nothing arrives and no rank reports progress. "
         "Then all ranks report what they were doing, and the run ends; with recovery.mode: in_place the "
         "rank that hangs is killed, and the others go on. 0: no limit.",
         ELSEWHERE("init_timeout_seconds train_timeout_seconds ddp_timeout")),
    TABLE_END};
