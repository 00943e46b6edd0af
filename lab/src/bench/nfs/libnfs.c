/* A load on an NFS server by libnfs's asynchronous calls: so many requests in flight on each connection, one thread.
 *
 * libnfs PREFIX SUFFIX OPERATION IN_FLIGHT CONNECTIONS REQUEST_BYTES FILE_BYTES COMMIT_BYTES SECONDS
 *
 * The file of connection N is load-N-0 in the directory of the URL "PREFIX/SUFFIX". OPERATION: read or read_random;
 * write_sync (random) or extend_sync (behind the end of a file that is empty at first), both FILE_SYNC; write_unstable (in
 * order, with a COMMIT after every COMMIT_BYTES and at the end). Prints one line:
 * requests, commits, seconds, median and 99th percentile of the latency in microseconds. */
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
/* Needs struct timeval. */
#include <nfsc/libnfs.h>

struct lane;

struct slot {
    struct lane *lane;
    double start;
};

struct lane {
    struct nfs_context *nfs;
    struct nfsfh *file;
    struct slot *slots;
    int in_flight;
    uint64_t position;     /* in blocks */
    uint64_t uncommitted;  /* in bytes */
    int is_committing;
};

enum operation { READ, READ_RANDOM, WRITE_SYNC, EXTEND_SYNC, WRITE_UNSTABLE };

static const char *const names[] = {"read", "read_random", "write_sync", "extend_sync", "write_unstable"};
static enum operation operation;
static uint64_t request_bytes, blocks, commit_bytes;
static int slots_count, is_over;
static uint64_t requests, commits;
static float *latencies;
static size_t latencies_room;
static char *data;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void fail(struct lane *lane, const char *what) {
    fprintf(stderr, "%s: %s\n", what, nfs_get_error(lane->nfs));
    exit(1);
}

static uint64_t random_number(void) {
    static uint64_t state = 0x9e3779b97f4a7c15;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void next(struct slot *slot);

static void record(struct slot *slot) {
    if (requests == latencies_room) {
        latencies_room = latencies_room ? 2 * latencies_room : 1 << 16;
        latencies = realloc(latencies, latencies_room * sizeof *latencies);
        if (!latencies)
            exit(1);
    }
    latencies[requests++] = (now() - slot->start) * 1e6;
}

static void answered(int result, struct nfs_context *nfs, void *reply, void *of) {
    struct slot *slot = of;
    (void)reply, (void)nfs;
    if (result != (int)request_bytes)
        fail(slot->lane, result < 0 ? "a request failed" : "a short transfer");
    slot->lane->in_flight--;
    record(slot);
    next(slot);
}

static void committed(int result, struct nfs_context *nfs, void *reply, void *of) {
    struct lane *lane = of;
    (void)reply, (void)nfs;
    if (result < 0)
        fail(lane, "a COMMIT failed");
    commits++;
    lane->uncommitted = 0;
    lane->is_committing = 0;
    for (int slot = 0; slot < slots_count && !is_over; slot++)
        next(&lane->slots[slot]);
}

/* Issues the next request in a slot; while a COMMIT is due, none, and the COMMIT when nothing is in flight. */
static void next(struct slot *slot) {
    struct lane *lane = slot->lane;
    int result;
    if (operation == WRITE_UNSTABLE && (lane->uncommitted >= commit_bytes || (is_over && lane->uncommitted))) {
        if (!lane->in_flight && !lane->is_committing) {
            lane->is_committing = 1;
            if (nfs_fsync_async(lane->nfs, lane->file, committed, lane))
                fail(lane, "COMMIT");
        }
        return;
    }
    if (is_over)
        return;
    uint64_t block = lane->position++;
    if (operation == READ_RANDOM || operation == WRITE_SYNC)
        block = random_number() % blocks;
    else if (operation != EXTEND_SYNC)
        block %= blocks;
    slot->start = now();
    lane->in_flight++;
    if (operation == READ || operation == READ_RANDOM) {
        result = nfs_pread_async(lane->nfs, lane->file, block * request_bytes, request_bytes, answered, slot);
    } else {
        lane->uncommitted += request_bytes;
        result = nfs_pwrite_async(lane->nfs, lane->file, block * request_bytes, request_bytes, data, answered, slot);
    }
    if (result)
        fail(lane, "a request");
}

static void open_lane(struct lane *lane, const char *prefix, const char *suffix, int number) {
    char url[4096], name[64];
    struct nfs_url *parsed;
    lane->nfs = nfs_init_context();
    snprintf(url, sizeof url, "%s/%s", prefix, suffix);
    parsed = nfs_parse_url_dir(lane->nfs, url);
    if (!parsed)
        fail(lane, url);
    if (nfs_mount(lane->nfs, parsed->server, parsed->path))
        fail(lane, "mount");
    nfs_destroy_url(parsed);
    snprintf(name, sizeof name, "/load-%d-0", number);
    if (operation == EXTEND_SYNC) {
        if (nfs_creat(lane->nfs, name, 0644, &lane->file))
            fail(lane, "create");
        nfs_close(lane->nfs, lane->file);
    }
    int is_read = operation == READ || operation == READ_RANDOM;
    int flags = is_read ? O_RDONLY : operation == WRITE_UNSTABLE ? O_WRONLY : O_WRONLY | O_SYNC;
    if (nfs_open(lane->nfs, name, flags, &lane->file))
        fail(lane, "open");
    lane->slots = calloc(slots_count, sizeof *lane->slots);
    for (int slot = 0; slot < slots_count; slot++)
        lane->slots[slot].lane = lane;
}

static int smaller_first(const void *a, const void *b) {
    float one = *(const float *)a, other = *(const float *)b;
    return (one > other) - (one < other);
}

int main(int count, char **arguments) {
    if (count != 10) {
        fprintf(stderr, "nine arguments are needed\n");
        return 2;
    }
    for (operation = READ; strcmp(names[operation], arguments[3]); operation++)
        if (operation == WRITE_UNSTABLE)
            return 2;
    slots_count = atoi(arguments[4]);
    int lanes_count = atoi(arguments[5]);
    request_bytes = strtoull(arguments[6], NULL, 10);
    blocks = strtoull(arguments[7], NULL, 10) / request_bytes;
    commit_bytes = strtoull(arguments[8], NULL, 10);
    double seconds = atof(arguments[9]);
    data = malloc(request_bytes);
    for (uint64_t at = 0; at < request_bytes; at++)
        data[at] = random_number();
    struct lane *lanes = calloc(lanes_count, sizeof *lanes);
    struct pollfd *polled = calloc(lanes_count, sizeof *polled);
    for (int lane = 0; lane < lanes_count; lane++)
        open_lane(&lanes[lane], arguments[1], arguments[2], lane);
    double start = now();
    for (int lane = 0; lane < lanes_count; lane++)
        for (int slot = 0; slot < slots_count; slot++)
            next(&lanes[lane].slots[slot]);
    for (;;) {
        int left = 0;
        for (int lane = 0; lane < lanes_count; lane++) {
            left += lanes[lane].in_flight + lanes[lane].is_committing;
            polled[lane].fd = nfs_get_fd(lanes[lane].nfs);
            polled[lane].events = nfs_which_events(lanes[lane].nfs);
        }
        if (is_over && !left)
            break;
        poll(polled, lanes_count, 100);
        is_over = now() - start >= seconds;
        for (int lane = 0; lane < lanes_count; lane++)
            if (polled[lane].revents && nfs_service(lanes[lane].nfs, polled[lane].revents) < 0)
                fail(&lanes[lane], "the connection");
    }
    double took = now() - start;
    qsort(latencies, requests, sizeof *latencies, smaller_first);
    printf("%llu %llu %f %f %f\n", (unsigned long long)requests, (unsigned long long)commits, took,
           requests ? latencies[requests / 2] : 0, requests ? latencies[requests * 99 / 100] : 0);
    return 0;
}
