/* Counters with names. */
#include "../awase.h"

static const char TABLE[] = "counters";
static const char TOO_LONG[] = "the name is too long";

/* Adds to a counter. Returns what it is then. */
AWASE_FUNCTION(count, "count(name text, amount bigint) returns bigint")
int64_t count(uint32_t name_bytes, int64_t amount) {
    char name[64];
    int64_t value = 0;
    if (name_bytes > sizeof name)
        awase_abort(TOO_LONG, sizeof TOO_LONG - 1);
    awase_argument(0, name);
    uint32_t table = awase_table(TABLE, sizeof TABLE - 1);
    awase_get(table, name, name_bytes, &value, sizeof value);
    value += amount;
    awase_put(table, name, name_bytes, &value, sizeof value);
    return value;
}

/* The name of the first counter; NULL if there is none. */
AWASE_FUNCTION(first_counter, "first_counter() returns text null")
void first_counter(void) {
    struct {
        uint32_t key_bytes;
        char bytes[AWASE_KEY_BYTES_MAX + AWASE_ROW_BYTES_MAX];
    } entry;
    uint32_t table = awase_table(TABLE, sizeof TABLE - 1);
    if (awase_next(table, 0, 0, 0, 0, AWASE_NO_LOW | AWASE_NO_HIGH, &entry, sizeof entry) < 0)
        awase_null();
    else
        awase_reply(entry.bytes, entry.key_bytes);
}
