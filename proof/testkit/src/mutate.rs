//! Mutations of valid conversations, from a seed.

use crate::random::Random;

/// Boundary values of lengths and counts.
const NUMBERS: &[u32] = &[0, 1, 2, 3, 4, 7, 255, 256, 0xffff, 0x1_0000, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];

/// Most mutations of a conversation.
const CHANGES_MAX: u64 = 4;

/// Longest conversation. Bytes.
const LEN_MAX: usize = 1 << 20;

/// A mutated conversation, sometimes without a mutation.
pub fn conversation(random: &mut Random, messages: &[Vec<u8>]) -> Vec<u8> {
    let mut messages = messages.to_vec();
    for _ in 0..random.below(CHANGES_MAX + 1) {
        if messages.is_empty() {
            messages.push(Vec::new());
        }
        let (at, other) = (random.index(messages.len()), random.index(messages.len()));
        match random.below(12) {
            0 => drop(messages.remove(at)),
            1 => messages.swap(at, other),
            2 => messages.insert(at, messages[other].clone()),
            3 => {
                // Truncated within a message.
                let len = random.index(messages[at].len() + 1);
                messages[at].truncate(len);
                messages.truncate(at + 1);
            }
            4 => {
                let part = messages[other].clone();
                splice(random, &mut messages[at], &part);
            }
            _ => message(random, &mut messages[at]),
        }
    }
    let mut bytes = messages.concat();
    bytes.truncate(LEN_MAX);
    bytes
}

pub fn message(random: &mut Random, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return bytes.push(random.next() as u8);
    }
    let at = random.index(bytes.len());
    match random.below(6) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 | 3 if bytes.len() >= 4 => {
            // Most words of the protocols are aligned to four bytes.
            let at = if random.chance(800) { at & !3 } else { at }.min(bytes.len() - 4);
            let word = u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
            let new = match random.below(4) {
                0 => word.wrapping_add(1),
                1 => word.wrapping_sub(1),
                2 => word ^ 1 << random.below(32),
                _ => *random.pick(NUMBERS),
            };
            bytes[at..at + 4].copy_from_slice(&new.to_be_bytes());
        }
        4 => drop(bytes.drain(at..(at + 1 + random.index(8)).min(bytes.len()))),
        _ => {
            let new: Vec<u8> = (0..1 + random.below(8)).map(|_| random.next() as u8).collect();
            bytes.splice(at..at, new);
        }
    }
}

fn splice(random: &mut Random, into: &mut Vec<u8>, part: &[u8]) {
    let at = random.index(into.len() + 1);
    let from = random.index(part.len() + 1);
    let to = from + random.index(part.len() - from + 1);
    into.splice(at..at, part[from..to].iter().copied());
}
