/* Two threads, one counter, no lock: a race that the thread sanitizer must report. If a build does not report
 * it, its silence about the other tests proves nothing. */
#include <pthread.h>
#include <stdio.h>

static int counter;

static void *count(void *argument) {
    for (int i = 0; i < 1000; i++) counter++;
    return argument;
}

int main(void) {
    pthread_t other;
    if (pthread_create(&other, NULL, count, NULL) != 0) return 1;
    count(NULL);
    pthread_join(other, NULL);
    printf("%d\n", counter);
    return 0;
}
