//! What the monitor does for a program: its imports in WebAssembly, and elsewhere tables in memory.

#[cfg(target_arch = "wasm32")]
use core::sync::atomic::{AtomicU32, Ordering};

/// A table's name, and the number by which the monitor knows it in this call.
pub struct Handle {
    name: &'static str,
    #[cfg(target_arch = "wasm32")]
    number: AtomicU32,
}

#[cfg(target_arch = "wasm32")]
const UNKNOWN: u32 = u32::MAX;

/// The monitor's limits.
const KEY_BYTES_MAX: usize = 512;
const ROW_BYTES_MAX: usize = 1024;
const TABLE_NAME_BYTES_MAX: usize = 64;

impl Handle {
    pub const fn new(name: &'static str) -> Self {
        assert!(
            is_table_name(name.as_bytes()),
            "the name of a table has 1 to 64 bytes, and is neither `awase` nor begins with `awase.`"
        );
        Handle {
            name,
            #[cfg(target_arch = "wasm32")]
            number: AtomicU32::new(UNKNOWN),
        }
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Asked for once.
    #[cfg(target_arch = "wasm32")]
    fn number(&self) -> u32 {
        match self.number.load(Ordering::Relaxed) {
            UNKNOWN => {
                let number = table(self.name);
                self.number.store(number, Ordering::Relaxed);
                number
            }
            number => number,
        }
    }
}

const fn is_table_name(name: &[u8]) -> bool {
    !matches!(name, [] | b"awase" | [b'a', b'w', b'a', b's', b'e', b'.', ..]) && name.len() <= TABLE_NAME_BYTES_MAX
}

#[cfg(target_arch = "wasm32")]
mod imports {
    #[link(wasm_import_module = "awase")]
    unsafe extern "C" {
        pub fn table(name: *const u8, bytes: usize) -> u32;
        pub fn get(table: u32, key: *const u8, bytes: usize, row: *mut u8, room: usize) -> isize;
        pub fn put(table: u32, key: *const u8, bytes: usize, row: *const u8, row_bytes: usize);
        pub fn delete(table: u32, key: *const u8, bytes: usize);
        pub fn next(
            table: u32,
            low: *const u8,
            low_bytes: usize,
            high: *const u8,
            high_bytes: usize,
            flags: u32,
            entry: *mut u8,
            room: usize,
        ) -> isize;
        pub fn argument(index: u32, at: *mut u8);
        pub safe fn is_null(index: u32) -> i32;
        pub fn reply(at: *const u8, bytes: usize);
        pub safe fn null();
        pub fn abort(at: *const u8, bytes: usize) -> !;
        pub fn panic(at: *const u8, bytes: usize) -> !;
    }
}

#[cfg(target_arch = "wasm32")]
mod wasm {
    use core::mem::MaybeUninit;
    use core::ops::Bound;

    use alloc::vec;
    use alloc::vec::Vec;

    use super::{Handle, KEY_BYTES_MAX, ROW_BYTES_MAX, imports};

    const LENGTH_BYTES: usize = 4;
    const ENTRY_BYTES_MAX: usize = LENGTH_BYTES + KEY_BYTES_MAX + ROW_BYTES_MAX;

    pub fn table(name: &str) -> u32 {
        // SAFETY: the bytes are the name's.
        unsafe { imports::table(name.as_ptr(), name.len()) }
    }

    pub fn get<T>(table: &Handle, key: &[u8], decode: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let mut room = MaybeUninit::<[u8; ROW_BYTES_MAX]>::uninit();
        let row = room.as_mut_ptr().cast::<u8>();
        // SAFETY: the monitor writes within the room.
        let length = unsafe { imports::get(table.number(), key.as_ptr(), key.len(), row, ROW_BYTES_MAX) };
        let length = usize::try_from(length).ok()?;
        // SAFETY: the monitor has written this much; no row is longer than the room.
        Some(decode(unsafe { core::slice::from_raw_parts(row, length.min(ROW_BYTES_MAX)) }))
    }

    pub fn put(table: &Handle, key: &[u8], row: &[u8]) {
        // SAFETY: the bytes are those of key and row.
        unsafe { imports::put(table.number(), key.as_ptr(), key.len(), row.as_ptr(), row.len()) }
    }

    pub fn delete(table: &Handle, key: &[u8]) {
        // SAFETY: the bytes are the key's.
        unsafe { imports::delete(table.number(), key.as_ptr(), key.len()) }
    }

    pub fn next<T>(
        table: &Handle,
        low: Bound<&[u8]>,
        high: Bound<&[u8]>,
        backwards: bool,
        decode: impl FnOnce(&[u8], &[u8]) -> T,
    ) -> Option<T> {
        let bound = |bound: Bound<&[u8]>, excluded: u32, none: u32| match bound {
            Bound::Included(key) => (key.as_ptr(), key.len(), 0),
            Bound::Excluded(key) => (key.as_ptr(), key.len(), excluded),
            Bound::Unbounded => (core::ptr::null(), 0, none),
        };
        let (low, low_bytes, low_flags) = bound(low, 1, 4);
        let (high, high_bytes, high_flags) = bound(high, 2, 8);
        let flags = low_flags | high_flags | if backwards { 16 } else { 0 };
        let mut room = MaybeUninit::<[u8; ENTRY_BYTES_MAX]>::uninit();
        let entry = room.as_mut_ptr().cast::<u8>();
        let (number, room) = (table.number(), ENTRY_BYTES_MAX);
        // SAFETY: the bytes are those of the keys, and the monitor writes within the room.
        let length = unsafe { imports::next(number, low, low_bytes, high, high_bytes, flags, entry, room) };
        let length = usize::try_from(length).ok()?;
        // SAFETY: the monitor has written this much; no entry is longer than the room.
        let entry = unsafe { core::slice::from_raw_parts(entry, length.min(ENTRY_BYTES_MAX)) };
        let (key_bytes, entry) = entry.split_first_chunk()?;
        let (key, row) = entry.split_at_checked(u32::from_le_bytes(*key_bytes) as usize)?;
        Some(decode(key, row))
    }

    pub fn argument(index: u32, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        // SAFETY: the argument has this length, as the function was told.
        unsafe { imports::argument(index, bytes.as_mut_ptr()) };
        bytes
    }

    pub fn is_null(index: u32) -> bool {
        imports::is_null(index) != 0
    }

    pub fn reply(bytes: &[u8]) {
        // SAFETY: the bytes are those of the slice.
        unsafe { imports::reply(bytes.as_ptr(), bytes.len()) }
    }

    pub fn null() {
        imports::null();
    }

    pub fn abort(message: &str) -> ! {
        // SAFETY: the bytes are the message's.
        unsafe { imports::abort(message.as_ptr(), message.len()) }
    }

    pub fn panic(message: &str) -> ! {
        // SAFETY: the bytes are the message's.
        unsafe { imports::panic(message.as_ptr(), message.len()) }
    }
}

#[cfg(target_arch = "wasm32")]
pub use wasm::*;

#[cfg(not(target_arch = "wasm32"))]
mod memory {
    use core::cell::RefCell;
    use core::ops::Bound;
    use std::collections::BTreeMap;
    use std::thread_local;

    use alloc::string::{String, ToString};
    use alloc::vec::Vec;

    use super::{Handle, KEY_BYTES_MAX, ROW_BYTES_MAX};

    type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

    thread_local! {
        static TABLES: RefCell<BTreeMap<String, Rows>> = const { RefCell::new(BTreeMap::new()) };
    }

    fn with_rows<T>(table: &Handle, work: impl FnOnce(&mut Rows) -> T) -> T {
        TABLES.with_borrow_mut(|tables| work(tables.entry(table.name().to_string()).or_default()))
    }

    fn check_key(key: &[u8]) {
        let bytes = key.len();
        assert!(bytes <= KEY_BYTES_MAX, "a key has {bytes} bytes; at most {KEY_BYTES_MAX} are possible");
    }

    pub fn get<T>(table: &Handle, key: &[u8], decode: impl FnOnce(&[u8]) -> T) -> Option<T> {
        check_key(key);
        let row = with_rows(table, |rows| rows.get(key).cloned());
        row.map(|row| decode(&row))
    }

    pub fn put(table: &Handle, key: &[u8], row: &[u8]) {
        check_key(key);
        let bytes = row.len();
        assert!(bytes <= ROW_BYTES_MAX, "a row has {bytes} bytes; at most {ROW_BYTES_MAX} are possible");
        with_rows(table, |rows| rows.insert(key.to_vec(), row.to_vec()));
    }

    pub fn delete(table: &Handle, key: &[u8]) {
        check_key(key);
        with_rows(table, |rows| rows.remove(key));
    }

    pub fn next<T>(
        table: &Handle,
        low: Bound<&[u8]>,
        high: Bound<&[u8]>,
        backwards: bool,
        decode: impl FnOnce(&[u8], &[u8]) -> T,
    ) -> Option<T> {
        for bound in [low, high] {
            if let Bound::Included(key) | Bound::Excluded(key) = bound {
                check_key(key);
            }
        }
        if let (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) = (low, high)
        {
            let is_point = matches!((low, high), (Bound::Included(_), Bound::Included(_)));
            if from > to || from == to && !is_point {
                return None;
            }
        }
        let found = with_rows(table, |rows| {
            let mut range = rows.range::<[u8], _>((low, high));
            let found = if backwards { range.next_back() } else { range.next() };
            found.map(|(key, row)| (key.clone(), row.clone()))
        });
        found.map(|(key, row)| decode(&key, &row))
    }

    pub fn abort(message: &str) -> ! {
        panic!("{message}")
    }

    /// Only a function that is called from outside asks for these, and there is no outside.
    pub fn argument(_index: u32, _length: usize) -> Vec<u8> {
        unreachable!("there is no call from outside")
    }

    pub fn is_null(_index: u32) -> bool {
        unreachable!("there is no call from outside")
    }

    pub fn reply(_bytes: &[u8]) {
        unreachable!("there is no call from outside")
    }

    pub fn null() {
        unreachable!("there is no call from outside")
    }
}

#[cfg(not(target_arch = "wasm32"))]
pub use memory::*;
