/* The counter of ../counter.rs, in C:
 *
 *     cc -Ishm/include shm/examples/c/counter.c -Ltarget/release -lawase_shm -o counter
 *     LD_LIBRARY_PATH=target/release ./counter awase-data/shm s 100000 */

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "awase-shm.h"

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: counter SOCKET VOLUME TIMES\n");
        return 2;
    }
    char error[256];
    awase_shm *memory = awase_shm_open(argv[1], argv[2], 0, error, sizeof error);
    if (!memory) {
        fprintf(stderr, "counter: %s\n", error);
        return 1;
    }
    _Atomic uint64_t *counter = awase_shm_data(memory);
    uint64_t last = atomic_load(counter);
    for (long left = atol(argv[3]); left > 0; left--)
        last = atomic_fetch_add(counter, 1) + 1;
    int failed = awase_shm_flush(memory);
    printf("counter: %llu of %zu bytes, the server ended %llu times, flush: %d\n", (unsigned long long)last,
           awase_shm_size(memory), (unsigned long long)awase_shm_losses(memory), failed);
    awase_shm_close(memory);
    return failed != 0;
}
