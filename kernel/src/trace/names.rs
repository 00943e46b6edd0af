//! Names of exports and clients, which records refer to by number. They are written when a number is assigned and
//! looked up by the reader of the trace, never on the path of a request.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A head, then the text.
pub(super) const NAME_WORDS: usize = 16;

/// Bytes of a name retained; of a longer one, its beginning and its length.
const TEXT_BYTES: usize = (NAME_WORDS - 1) * 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// Numbered by [`ExportNo`](crate::export::ExportNo).
    Export,
    /// Numbered by [`JobId`](crate::request::JobId).
    Client,
}

/// A name as retained in the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    bytes: Vec<u8>,
    len: usize,
}

impl Name {
    pub fn is(&self, name: &str) -> bool {
        self.len == name.len() && name.as_bytes().starts_with(&self.bytes)
    }
}

/// For display: control characters, which could move a terminal's cursor, are replaced.
impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = String::from_utf8_lossy(&self.bytes).replace(char::is_control, "\u{fffd}");
        f.write_str(&text)?;
        if self.bytes.len() < self.len { f.write_str("...") } else { Ok(()) }
    }
}

/// Slots for names in the trace's memory, indexed by a number's lowest bits; the latest name replaces others.
#[derive(Clone, Copy)]
pub(super) struct NameSlots<'a>(pub(super) &'a [[AtomicU64; NAME_WORDS]]);

impl NameSlots<'_> {
    /// One writer at a time.
    pub(super) fn put(&self, number: u32, name: &str) {
        let Some(slot) = self.0.get(number as usize % self.0.len().max(1)) else { return };
        let [head, text @ ..] = slot;
        head.store(0, Ordering::Relaxed);
        // A reader that sees a word of this name also sees the head as 0.
        fence(Ordering::Release);
        let mut chunks = name.as_bytes().chunks(8);
        for word in text {
            let mut bytes = [0; 8];
            let chunk = chunks.next().unwrap_or_default();
            bytes[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        head.store(encode(number, name.len()), Ordering::Release);
    }

    pub(super) fn read(&self) -> BTreeMap<u32, Name> {
        self.0.iter().filter_map(read).collect()
    }
}

/// Never 0, which marks an empty slot.
fn encode(number: u32, len: usize) -> u64 {
    u64::from(number) << 32 | (len as u64 + 1).min(u64::from(u32::MAX))
}

fn read(slot: &[AtomicU64; NAME_WORDS]) -> Option<(u32, Name)> {
    let [head, text @ ..] = slot;
    let before = head.load(Ordering::Acquire);
    let mut bytes: Vec<u8> = text.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
    fence(Ordering::Acquire);
    if before == 0 || before != head.load(Ordering::Relaxed) {
        return None;
    }
    let len = (before as u32).checked_sub(1)? as usize;
    bytes.truncate(len.min(TEXT_BYTES));
    Some(((before >> 32) as u32, Name { bytes, len }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(count: usize) -> Vec<[AtomicU64; NAME_WORDS]> {
        (0..count).map(|_| Default::default()).collect()
    }

    #[test]
    fn names_come_back_by_their_numbers_and_long_ones_are_told_apart_by_their_lengths() {
        let memory = slots(4);
        let slots = NameSlots(&memory);
        let (long, longer) = ("l".repeat(4000), "l".repeat(4001));
        for (number, name) in [(1, ""), (2, "disk"), (3, long.as_str()), (u32::MAX - 3, "\u{e4}\u{1b}[2J")] {
            slots.put(number, name);
        }
        let names = slots.read();
        assert_eq!(names.len(), 4);
        assert!(names[&1].is("") && names[&2].is("disk") && !names[&2].is("disk2") && !names[&2].is("dis"));
        assert!(names[&3].is(&long) && !names[&3].is(&longer) && names[&3].to_string().ends_with("l..."));
        assert_eq!(names[&(u32::MAX - 3)].to_string(), "\u{e4}\u{fffd}[2J");
    }

    #[test]
    fn the_latest_of_those_that_share_a_place_has_it() {
        let memory = slots(2);
        let slots = NameSlots(&memory);
        slots.put(1, "a name that is long enough to leave something");
        slots.put(3, "b");
        assert_eq!(
            slots.read().into_iter().map(|(number, name)| (number, name.to_string())).collect::<Vec<_>>(),
            [(3, "b".to_owned())]
        );
        // No slots.
        NameSlots(&[]).put(1, "c");
    }
}
