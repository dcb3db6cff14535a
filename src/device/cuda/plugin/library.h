/* Functions of a library that is opened at run time, by their names. */
#ifndef WEFT_DEVICE_CUDA_PLUGIN_LIBRARY_H
#define WEFT_DEVICE_CUDA_PLUGIN_LIBRARY_H

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

typedef struct LibraryFunction {
    const char *name;
    size_t at; /* offset in the struct of functions */
} LibraryFunction;

/* Fills the struct `to`. Returns the name of the first function that is missing, or NULL. */
static inline const char *library_find(void *library, const LibraryFunction *functions, size_t count,
                                       void *to) {
    for (size_t i = 0; i < count; i++) {
        void *function = dlsym(library, functions[i].name);
        if (!function) return functions[i].name;
        memcpy((char *)to + functions[i].at, &function, sizeof function);
    }
    return NULL;
}

#endif
