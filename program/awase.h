/* Programs for Awase's transactions in C: what they import, and how they say what their functions take and return.
 *
 *     clang --target=wasm32 -Os -nostdlib -Wl,--no-entry -o counter.wasm counter.c
 *
 * A bigint is an int64_t, a double precision a double, a boolean an int32_t; a text or bytea is the uint32_t of its length,
 * fetched with awase_argument and returned, by a function of the type void, with awase_reply. Whatever is wrong with a
 * pointer or length ends the call. */
#ifndef AWASE_H
#define AWASE_H

#include <stdint.h>

#define AWASE_KEY_BYTES_MAX 512
#define AWASE_ROW_BYTES_MAX 1024

/* A function that clients call, with its description, as in:
 * AWASE_FUNCTION(count, "count(name text) returns bigint") int64_t count(uint32_t name_bytes) { ... }
 * The argument that may be NULL, or a function that may return NULL, has `null` after the type. It is declared nowhere else,
 * and with `(void)` if it takes nothing: the linker has another name for it (`overloadable`), so that one called `round` is
 * not taken for that of a library. */
#define AWASE_FUNCTION(name, description)                                                                              \
    __asm__(".section .custom_section.awase,\"\",@\n.ascii \"" description "\\n\"\n");                                 \
    __attribute__((overloadable, export_name("awase:" #name)))

/* Fills a new database: executed once, before the first call. */
#define AWASE_INIT __attribute__((export_name("awase:init")))

#define AWASE_IMPORT(name) __attribute__((import_module("awase"), import_name(name)))

/* The number of a table, for this call. */
AWASE_IMPORT("table") uint32_t awase_table(const char *name, uint32_t bytes);

/* Reads a row. Returns its length, of which at most `room` bytes are copied, or -1 if there is none. */
AWASE_IMPORT("get")
int32_t awase_get(uint32_t table, const void *key, uint32_t bytes, void *row, uint32_t room);

AWASE_IMPORT("put")
void awase_put(uint32_t table, const void *key, uint32_t bytes, const void *row, uint32_t row_bytes);

AWASE_IMPORT("delete") void awase_delete(uint32_t table, const void *key, uint32_t bytes);

enum {
    AWASE_LOW_EXCLUDED = 1,
    AWASE_HIGH_EXCLUDED = 2,
    AWASE_NO_LOW = 4,
    AWASE_NO_HIGH = 8,
    AWASE_BACKWARDS = 16,
};

/* The first row of a range, or the last: the length of the key (4 bytes, little-endian), the key, the row. Returns the
 * length of all three, of which at most `room` bytes are copied, or -1 if there is none. */
AWASE_IMPORT("next")
int32_t awase_next(uint32_t table, const void *low, uint32_t low_bytes, const void *high, uint32_t high_bytes,
                   uint32_t flags, void *entry, uint32_t room);

/* Copies a text or bytea, as long as the function was told. Arguments are counted from 0. */
AWASE_IMPORT("argument") void awase_argument(uint32_t index, void *at);

AWASE_IMPORT("is_null") int32_t awase_is_null(uint32_t index);

/* The text or bytea that the function returns. */
AWASE_IMPORT("reply") void awase_reply(const void *at, uint32_t bytes);

/* The function returns NULL, whatever else it returns. */
AWASE_IMPORT("null") void awase_null(void);

/* Ends the call with a message for the client; nothing is changed. */
AWASE_IMPORT("abort") _Noreturn void awase_abort(const char *message, uint32_t bytes);

#endif
