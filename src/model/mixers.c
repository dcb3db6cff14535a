/* Mixers of blocks: their names, and the pattern of kinds that repeats over the blocks. */
#include <string.h>

#include "base/text.h"
#include "model/config.h"

static const char *const names[MIXERS] = {[MIXER_ATTENTION] = "attention",
                                          [MIXER_MIN_GRU] = "min_gru",
                                          [MIXER_MIN_LSTM] = "min_lstm",
                                          [MIXER_HAWK] = "hawk",
                                          [MIXER_MAMBA2] = "mamba2"};

const char *mixer_name(Mixer mixer) { return names[mixer]; }

bool mixer_find(const char *name, Mixer *out) {
    for (int i = 0; i < MIXERS; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (Mixer)i;
            return true;
        }
    return false;
}

Mixer mixer_of(const MixerPattern *p, int64_t layer) {
    return p->period > 0 ? (Mixer)p->kind[layer % p->period] : MIXER_ATTENTION;
}

bool mixers_equal(const MixerPattern *a, const MixerPattern *b, int64_t layers) {
    for (int64_t i = 0; i < layers; i++)
        if (mixer_of(a, i) != mixer_of(b, i)) return false;
    return true;
}

static bool repeats(const uint8_t *kinds, int64_t layers, int64_t period) {
    for (int64_t i = period; i < layers; i++)
        if (kinds[i] != kinds[i - period]) return false;
    return true;
}

bool mixers_find(MixerPattern *p, const uint8_t *kinds, int64_t layers) {
    for (int64_t period = 1; period <= MIXER_PERIOD && period <= layers; period++) {
        if (!repeats(kinds, layers, period)) continue;
        *p = (MixerPattern){.period = period};
        memcpy(p->kind, kinds, (size_t)period);
        return true;
    }
    return false;
}

/* Only of existing blocks: a pattern may be longer than the model. */
bool model_has_mixer(const ModelConfig *c, Mixer mixer) {
    for (int64_t i = 0; i < c->num_hidden_layers && i < MIXER_PERIOD; i++)
        if (mixer_of(&c->mixers, i) == mixer) return true;
    return false;
}

bool model_is_recurrent(const ModelConfig *c) {
    for (int mixer = MIXER_ATTENTION + 1; mixer < MIXERS; mixer++)
        if (model_has_mixer(c, (Mixer)mixer)) return true;
    return false;
}

void model_mixers_text(const ModelConfig *c, Text *out) {
    int64_t period = c->mixers.period > 0 ? c->mixers.period : 1;
    for (int64_t i = 0; i < period; i++)
        text_printf(out, "%s%s", i == 0 ? "" : ", ", mixer_name(mixer_of(&c->mixers, i)));
}
