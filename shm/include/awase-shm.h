/* Shared volumes of Awase, mapped into a program: memory that programs on several machines share, coherent.
 *
 * Link with -lawase_shm. What the memory promises, and what it cannot, is documented with the Rust library of the same
 * name; in short: what C11's atomics promise between threads holds between machines; a page that was lost, or whose home
 * does not answer, is SIGBUS; a child of fork does not have the mapping. All calls may be made from any thread. */

#ifndef AWASE_SHM_H
#define AWASE_SHM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct awase_shm awase_shm;

/* When the server has ended, accesses wait for its return; or, with this flag, end in SIGBUS. Never zeroes. */
#define AWASE_SHM_SIGBUS 1

/* Maps the shared volume of this name, of the server that listens at the Unix socket `socket` (NULL: what the environment
 * variable AWASE_SHM names, or "awase-data/shm"). NULL: it cannot be; then `error`, if not NULL, says why. */
awase_shm *awase_shm_open(const char *socket, const char *volume, int flags, char *error, size_t error_size);

/* The first byte, at the begin of a page, and the number of bytes. */
void *awase_shm_data(awase_shm *mapping);
size_t awase_shm_size(awase_shm *mapping);

/* Orders the accesses before it before those after it, for all who share the volume. */
void awase_shm_fence(awase_shm *mapping);

/* Makes durable what was written before. 0, or an error number: EPIPE if the server has ended. */
int awase_shm_flush(awase_shm *mapping);

/* How often the server has ended under this mapping; each time, what was not flushed may have been lost. */
uint64_t awase_shm_losses(awase_shm *mapping);

void awase_shm_close(awase_shm *mapping);

#ifdef __cplusplus
}
#endif

#endif
