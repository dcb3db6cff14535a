/* Options of the section `pipeline`. */
#include "schedule/options.h"

#include "base/option_rows.h"

#define TARGET PipelineOptions
const Option pipeline_options[] = {
    /* Only some schedules take microbatches out of order (schedule_adds_in_order); the others do not affect
     * sums. Text and not a choice, since it may name a file. The default is 1f1b, which keeps the activations
     * of as many microbatches as there are stages, where gpipe keeps those of all. */
    TEXT("pipeline.schedule", schedule, "1f1b", SUMS,
         "Pipeline schedule: gpipe, 1f1b, interleaved_1f1b, looped_bfs, zb_h1, zb_h2, "
         "interleaved_zero_bubble, v_min, v_half, zbv, dualpipev, or a CSV file of compute actions.",
         ELSEWHERE("pipeline_parallel_schedule pipeline_parallel_schedule_csv")),
    /* An alternative to train.microbatch: each follows from the other. */
    INT("pipeline.microbatches", microbatches, "0", 0, 1e6, NOTHING,
        "Microbatches of a step through the pipeline; 0: as many as train.tokens_per_step and "
        "train.microbatch make.",
        ELSEWHERE("num_pp_microbatches")),
    /* Stages decide who computes a unit, not what it computes; the same holds for the keys below. */
    TEXTS("pipeline.split", split, "[auto]", NOTHING,
          "Stages: auto (even in time), uniform (TorchTitan's rule), or where new ones start, such as "
          "[layers.4, layers.8].",
          INSTEAD("the number of layers of a stage is pipeline.layers_per_stage"),
          ELSEWHERE("pipeline_parallel_split_points module_fqns_per_model_part")),
    INT("pipeline.layers_per_stage", layers_per_stage, "0", 0, 1e6, NOTHING,
        "At most this many layers a stage, by the uniform rule; 0: as many stages as the schedule wants.",
        ELSEWHERE("pipeline_parallel_layers_per_stage")),
    INT("pipeline.stages_per_rank", stages_per_rank, "0", 0, 1e6, NOTHING,
        "Stages of each rank, for schedules that take several; 0: 1, or 2 for those made for more."),
    /* Without exact sums it changes the order in which a microbatch's wgrads are added. */
    INT("pipeline.segments", segments, "1", 1, 64, SUMS,
        "Segments of a microbatch's tokens that go through the pipeline one after the other (Seq1F1B), for "
        "long contexts: a power of two, for the schedules 1f1b and gpipe; 1: microbatches are whole."),
    REAL("pipeline.activations", activations, "0", 0, 1, NOTHING,
         "Limit of zbv: the largest share of the activations of 1f1b that a rank keeps, such as 0.75; 0: as "
         "many as pipeline.memory_gib allows, or all of them."),
    /* TorchTitan's two numbers under its names: embedding and head take time like layers, so the first and
     * the last stage get fewer layers. 1 each unless measured. */
    INT("pipeline.first_stage_less_layers", first_stage_less, "1", 0, 1e6, NOTHING,
        "Split by the uniform rule: number of layers that the embedding counts as.",
        ELSEWHERE("pipeline_parallel_first_stage_less_layers")),
    INT("pipeline.last_stage_less_layers", last_stage_less, "1", 0, 1e6, NOTHING,
        "Split by the uniform rule: number of layers that the norm and the head count as.",
        ELSEWHERE("pipeline_parallel_last_stage_less_layers")),
    /* A number instead of this machine's memory: a plan is often made on another machine than it runs on, and
     * all ranks must arrive at the same stages. */
    REAL("pipeline.memory_gib", memory_gib, "0", 0, 1e9, NOTHING,
         "Memory of a rank, to which split: auto, train.gradient_sync: auto and the activations of zbv keep "
         "by "
         "the figures of \"weft plan\"; 0: they look at time and bytes only."),
    TABLE_END};
