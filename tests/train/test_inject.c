/* Injected faults: their syntax, and which rank gets which fault when. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "train/inject.h"

static Error err;

static Inject parse(const char *text) {
    Inject in;
    if (inject_parse(&in, text, 4, 100, &err) != OK) fail_msg("%s", err.message);
    return in;
}

static void each_kind_is_read(void **state) {
    (void)state;
    Inject in =
        parse("kill:rank=1,step=7;stop:rank=2,step=5 nan:rank=0,step=3; bitflip:rank=1,step=4,seed=9\n"
              "slow:rank=3,step=2,ms=500;kill:step=100,attempt=2");
    assert_int_equal(in.count, 6);
    assert_true(in.faults[0].kind == FAULT_KILL && in.faults[0].rank == 1 && in.faults[0].step == 7);
    assert_true(in.faults[1].kind == FAULT_STOP && in.faults[1].rank == 2 && in.faults[1].attempt == 0);
    assert_true(in.faults[2].kind == FAULT_NAN && in.faults[2].rank == 0);
    assert_true(in.faults[3].kind == FAULT_BITFLIP && in.faults[3].seed == 9);
    assert_true(in.faults[4].kind == FAULT_SLOW && in.faults[4].ms == 500);
    assert_true(in.faults[5].attempt == 2 && in.faults[5].rank == 0 && in.faults[5].step == 100);
    inject_free(&in);
    assert_int_equal(inject_parse(&in, "", 4, 100, &err), ERR_USAGE);
    assert_non_null(strstr(err.message, "names no fault"));
    inject_free(&in);
    in = parse(NULL);
    assert_int_equal(in.count, 0);
    assert_null(inject_at(&in, 0, 1, 0, NULL));
    inject_free(&in);
}

static void a_fault_happens_once(void **state) {
    (void)state;
    Inject in = parse("kill:rank=1,step=7;nan:rank=1,step=7;slow:rank=1,step=7,attempt=1");
    const Fault *first = inject_at(&in, 1, 7, 0, NULL), *second = inject_at(&in, 1, 7, 0, first);
    assert_true(first && first->kind == FAULT_KILL);
    assert_true(second && second->kind == FAULT_NAN);
    assert_null(inject_at(&in, 1, 7, 0, second));
    assert_null(inject_at(&in, 0, 7, 0, NULL));
    assert_null(inject_at(&in, 1, 6, 0, NULL));
    first = inject_at(&in, 1, 7, 1, NULL);
    assert_true(first && first->kind == FAULT_SLOW && !inject_at(&in, 1, 7, 1, first));
    assert_null(inject_at(&in, 1, 7, 2, NULL));
    inject_free(&in);
}

static void phases_have_faults(void **state) {
    (void)state;
    Inject in = parse(
        "stop:rank=1,phase=saving; kill:rank=2,phase=validation,step=20,attempt=1; kill:rank=1,step=20");
    FaultPoint point = {.rank = 1, .phase = PHASE_SAVING, .step = 20, .first = true};
    const Fault *f = inject_in(&in, &point, NULL);
    assert_true(f == &in.faults[0] && !inject_in(&in, &point, f));
    /* Only the first time, on that rank, in that phase and attempt; and a step is not a phase. */
    point.first = false;
    assert_null(inject_in(&in, &point, NULL));
    point = (FaultPoint){.rank = 0, .phase = PHASE_SAVING, .first = true};
    assert_null(inject_in(&in, &point, NULL));
    point = (FaultPoint){.rank = 1, .phase = PHASE_LOADING, .first = true};
    assert_null(inject_in(&in, &point, NULL));
    point = (FaultPoint){.rank = 1, .phase = PHASE_STEPS, .step = 20, .first = true};
    assert_null(inject_in(&in, &point, NULL));
    assert_ptr_equal(inject_at(&in, 1, 20, 0, NULL), &in.faults[2]);
    assert_null(inject_at(&in, 2, 20, 1, NULL));
    /* After a given step, whether for the first time or not. */
    point = (FaultPoint){.rank = 2, .attempt = 1, .phase = PHASE_VALIDATION, .step = 20};
    assert_ptr_equal(inject_in(&in, &point, NULL), &in.faults[1]);
    point.step = 10, point.first = true;
    assert_null(inject_in(&in, &point, NULL));
    inject_free(&in);
    static const char *const bad[] = {"stop:rank=1,phase=steps",    "stop:phase=MPI start",
                                      "nan:phase=saving",           "bitflip:phase=saving,step=3",
                                      "random:phase=saving",        "stop:phase=",
                                      "stop:phase=saving,step=101", "stop:rank=4,phase=saving"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(inject_parse(&in, bad[i], 4, 100, &err), ERR_USAGE);
        inject_free(&in);
    }
}

static void actions_have_faults(void **state) {
    (void)state;
    Inject in = parse("kill:rank=1,step=7,action=UPDATE;stop:step=2,action=FWD;kill:step=3");
    assert_int_equal(in.faults[0].action, ACT_UPDATE);
    assert_int_equal(in.faults[1].action, ACT_FWD);
    assert_int_equal(in.faults[2].action, ACT_KINDS);
    inject_free(&in);
    static const char *const bad[] = {
        "kill:step=7,action=update", "kill:step=7,action=",   "kill:phase=saving,action=FWD",
        "slow:step=7,action=FWD",    "nan:step=7,action=FWD", "random:action=FWD"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(inject_parse(&in, bad[i], 4, 100, &err), ERR_USAGE);
        inject_free(&in);
    }
}

static void random_faults_come_from_the_seed(void **state) {
    (void)state;
    Inject a = parse("random:seed=7,count=40,kinds=kill|slow,ms=3"),
           b = parse("random:seed=7,count=40,kinds=kill|slow,ms=3"),
           c = parse("random:seed=8,count=40,kinds=kill|slow,ms=3");
    assert_int_equal(a.count, 40);
    size_t kinds[FAULT_KINDS] = {0}, ranks[4] = {0}, other = 0;
    int attempt = 0;
    for (size_t i = 0; i < 40; i++) {
        const Fault *f = &a.faults[i], *g = &b.faults[i], *h = &c.faults[i];
        assert_true(f->kind == g->kind && f->rank == g->rank && f->step == g->step && f->seed == g->seed);
        other += f->step != h->step || f->rank != h->rank;
        assert_true(f->step >= 1 && f->step <= 100 && f->rank < 4 && f->ms == 3);
        assert_true(i == 0 || f->step > a.faults[i - 1].step);
        assert_int_equal(f->attempt, attempt); /* the attempt after the kills so far */
        attempt += f->kind == FAULT_KILL;
        kinds[f->kind]++;
        ranks[f->rank]++;
    }
    assert_true(other > 20);
    assert_true(kinds[FAULT_KILL] > 5 && kinds[FAULT_SLOW] > 5 &&
                kinds[FAULT_KILL] + kinds[FAULT_SLOW] == 40);
    for (int r = 0; r < 4; r++) assert_true(ranks[r] > 0);
    inject_free(&a);
    inject_free(&b);
    inject_free(&c);
    a = parse("random:count=500"); /* more than steps, of every kind */
    assert_int_equal(a.count, 500);
    inject_free(&a);
}

static void what_is_wrong_is_named(void **state) {
    (void)state;
    static const char *const bad[] = {
        "explode:step=1",
        "kill",
        "kill:",
        "kill:rank=1",
        "kill:rank=4,step=1",
        "kill:step=0",
        "kill:step=101",
        "kill:step=-1",
        "kill:step=1,step=2",
        "kill:step=",
        "kill:step",
        "kill:when=3",
        "kill:step=1,ms=5",
        "kill:step=1x",
        "nan:step=1,,",
        "kill:step=99999999999999999999",
        "random:rank=1",
        "random:kinds",
        "random:kinds=",
        "random:kinds=kill|explode",
        "random:count=1000000",
        "kill:step=1;",
        "\x1b[31mkill",
        "nan:step=1,what=weights",
        "bitflip:step=1,what=gradient",
        "kill:step=1,what=weights",
        "kill:step=1,microbatch=1",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Inject in;
        ErrorCode code = inject_parse(&in, bad[i], 4, 100, &err);
        inject_free(&in);
        if (strcmp(bad[i], "kill:step=1;") == 0) {
            assert_int_equal(code, OK); /* nothing after a separator */
            continue;
        }
        if (code != ERR_USAGE) fail_msg("%s was taken", bad[i]);
        assert_non_null(strstr(err.message, "--inject"));
        assert_null(strchr(err.message, '\x1b'));
    }
}

/* A NaN is made among gradients, and a bit flips in weights, unless the text says otherwise. */
static void faults_have_places(void **state) {
    (void)state;
    Inject in = parse("nan:step=1; nan:step=2,what=activations,microbatch=3; bitflip:step=3; "
                      "bitflip:step=4,what=moments; bitflip:step=5,what=messages");
    static const FaultPlace want[] = {FAULT_IN_GRADIENTS, FAULT_IN_ACTIVATIONS, FAULT_IN_WEIGHTS,
                                      FAULT_IN_MOMENTS, FAULT_IN_MESSAGES};
    assert_int_equal(in.count, 5);
    for (size_t i = 0; i < 5; i++) assert_int_equal(in.faults[i].place, want[i]);
    assert_int_equal(in.faults[0].microbatch, 0);
    assert_int_equal(in.faults[1].microbatch, 3);
    inject_free(&in);
}

static void memory_has_faults(void **state) {
    (void)state;
    Inject in = parse("bitflip:step=1,pool=parameters; bitflip:step=2,pool=partner,seed=3; "
                      "bitflip:step=3,what=tokens,times=4; bitflip:step=4,what=staging");
    assert_true(in.faults[0].place == FAULT_IN_POOL && in.faults[0].pool == POOL_PARAMETERS);
    assert_true(in.faults[1].place == FAULT_IN_POOL && in.faults[1].pool == POOL_PARTNER);
    assert_true(in.faults[2].place == FAULT_IN_TOKENS && in.faults[2].times == 4);
    assert_true(in.faults[3].place == FAULT_IN_STAGING && in.faults[3].times == 1);
    inject_free(&in);
    static const char *const bad[] = {"bitflip:step=1,pool=memory",
                                      "bitflip:step=1,pool=",
                                      "bitflip:step=1,pool=copy,what=weights",
                                      "bitflip:step=1,pool=copy,microbatch=1",
                                      "nan:step=1,pool=copy",
                                      "nan:step=1,what=tokens",
                                      "bitflip:step=1,times=0",
                                      "kill:step=1,times=2"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(inject_parse(&in, bad[i], 4, 100, &err), ERR_USAGE);
        inject_free(&in);
    }
}

static void indices_are_seeded(void **state) {
    (void)state;
    Fault f = {.kind = FAULT_BITFLIP, .step = 4, .seed = 1}, g = f;
    g.seed = 2;
    uint64_t bits = UINT64_C(1) << 40;
    assert_true(inject_index(&f, bits) == inject_index(&f, bits) &&
                inject_index(&f, bits) != inject_index(&g, bits));
    assert_int_equal(inject_index(&f, 1), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_is_read),
        cmocka_unit_test(a_fault_happens_once),
        cmocka_unit_test(phases_have_faults),
        cmocka_unit_test(actions_have_faults),
        cmocka_unit_test(random_faults_come_from_the_seed),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(faults_have_places),
        cmocka_unit_test(memory_has_faults),
        cmocka_unit_test(indices_are_seeded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
