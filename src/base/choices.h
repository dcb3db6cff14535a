/* Defines the values of a choice once for C and for configurations, as a list of constants and their words:
 *
 *     #define ROPE_KINDS(X) X(ROPE_LLAMA3, "llama3") X(ROPE_LINEAR, "linear")
 *     typedef enum RopeKind { ROPE_KINDS(CHOICE_CONSTANT) } RopeKind;
 *     CHOICE_WORDS(ROPE_KINDS)                                       "llama3|linear", for a row of options
 *     static const char *const names[] = {ROPE_KINDS(CHOICE_NAME)};  names by constant */
#ifndef WEFT_BASE_CHOICES_H
#define WEFT_BASE_CHOICES_H

#define CHOICE_CONSTANT(constant, word) constant,
#define CHOICE_NAME(constant, word) [constant] = word,
#define CHOICE_WORD(constant, word) "|" word
#define CHOICE_WORDS(LIST) (&(LIST(CHOICE_WORD))[1])

#endif
