/* The key mesh.cp_comm (program/cp_comm.h). */
#include "base/option_rows.h"
#include "config/config.h"

#define TARGET Config
const Option cp_options[] = {
    /* In exact numerics both have the same bits. */
    CHOICE("mesh.cp_comm", cp_comm, "auto", CHOICE_WORDS(CP_COMMS), SUMS,
           "How ranks of mesh.cp attend to each other's tokens. all_to_all: they exchange tokens for heads "
           "(DeepSpeed Ulysses), at most as many ranks as key and value heads; all_gather: each gathers "
           "keys and values of all, any number of ranks; auto: what sends fewer bytes, of those that can "
           "be.",
           WAS("parallel.context"), CHOICES_WERE("heads", "all_to_all", "keys", "all_gather"),
           ELSEWHERE("context_parallel_load_balancer context_parallel_rotate_method cp_comm_type")),
    TABLE_END};
