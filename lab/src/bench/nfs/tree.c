/* Makes or removes a tree of small files on an NFS server by libnfs's asynchronous calls: as `tar x` and `rm -r` do with one
 * in flight, and package managers with several.
 *
 * tree PREFIX SUFFIX make|remove IN_FLIGHT FILES
 *
 * Ten files of 1 to 16 KiB a directory, below the directory of the URL "PREFIX/SUFFIX". A file is created, written and
 * closed, which libnfs does with a COMMIT as kernels do. Prints one line: files, seconds. */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
/* Needs struct timeval. */
#include <nfsc/libnfs.h>

enum { FILES_A_DIRECTORY = 10, BYTES_MAX = 16384 };

struct slot {
    struct nfsfh *file;
    int bytes;
};

static struct nfs_context *nfs;
static int files, directories, next, end, in_flight;
static int is_make;
static char data[BYTES_MAX];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void check(int result, const char *what) {
    if (result >= 0)
        return;
    fprintf(stderr, "%s: %s\n", what, nfs_get_error(nfs));
    exit(1);
}

static int random_number(void) {
    static unsigned state = 1;
    state = state * 1103515245 + 12345;
    return state >> 8;
}

static void (*start)(struct slot *slot, int number);

static void go_on(struct slot *slot) {
    if (next < end) {
        in_flight++;
        start(slot, next++);
    }
}

static void done(int result, struct nfs_context *of, void *reply, void *own) {
    (void)of, (void)reply;
    check(result, "a call failed");
    in_flight--;
    go_on(own);
}

static void written(int result, struct nfs_context *of, void *reply, void *own) {
    struct slot *slot = own;
    (void)of, (void)reply;
    check(result == slot->bytes ? 0 : -1, "write");
    check(nfs_close_async(nfs, slot->file, done, slot), "close");
}

static void created(int result, struct nfs_context *of, void *reply, void *own) {
    struct slot *slot = own;
    (void)of;
    check(result, "create");
    slot->file = reply;
    slot->bytes = 1024 + random_number() % (BYTES_MAX - 1024);
    check(nfs_pwrite_async(nfs, slot->file, 0, slot->bytes, data, written, slot), "write");
}

static void start_directory(struct slot *slot, int number) {
    char path[64];
    snprintf(path, sizeof path, "/tree-%d", number);
    check(is_make ? nfs_mkdir_async(nfs, path, done, slot) : nfs_rmdir_async(nfs, path, done, slot), path);
}

static void start_file(struct slot *slot, int number) {
    char path[64];
    snprintf(path, sizeof path, "/tree-%d/file-%d", number / FILES_A_DIRECTORY, number);
    check(is_make ? nfs_creat_async(nfs, path, 0644, created, slot) : nfs_unlink_async(nfs, path, done, slot), path);
}

static void all(void (*each)(struct slot *, int), int count, struct slot *slots, int slots_count) {
    start = each;
    next = 0;
    end = count;
    for (int slot = 0; slot < slots_count; slot++)
        go_on(&slots[slot]);
    while (in_flight) {
        struct pollfd polled = {nfs_get_fd(nfs), nfs_which_events(nfs), 0};
        poll(&polled, 1, 100);
        check(nfs_service(nfs, polled.revents), "the connection");
    }
}

int main(int count, char **arguments) {
    char url[4096];
    if (count != 6) {
        fprintf(stderr, "five arguments are needed\n");
        return 2;
    }
    is_make = !strcmp(arguments[3], "make");
    int slots_count = atoi(arguments[4]);
    files = atoi(arguments[5]);
    directories = (files + FILES_A_DIRECTORY - 1) / FILES_A_DIRECTORY;
    for (int at = 0; at < BYTES_MAX; at++)
        data[at] = random_number();
    nfs = nfs_init_context();
    snprintf(url, sizeof url, "%s/%s", arguments[1], arguments[2]);
    struct nfs_url *parsed = nfs_parse_url_dir(nfs, url);
    check(parsed ? 0 : -1, url);
    check(nfs_mount(nfs, parsed->server, parsed->path), "mount");
    struct slot *slots = calloc(slots_count, sizeof *slots);
    double before = now();
    if (is_make) {
        all(start_directory, directories, slots, slots_count);
        all(start_file, files, slots, slots_count);
    } else {
        all(start_file, files, slots, slots_count);
        all(start_directory, directories, slots, slots_count);
    }
    printf("%d %f\n", files, now() - before);
    return 0;
}
