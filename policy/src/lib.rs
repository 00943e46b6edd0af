//! The decisions of Awase: facts and time in, actions out.
//!
//! No I/O, no clock, no thread, no lock, no randomness. One decision, one file.

pub mod access;
pub mod awake;
pub mod cache;
pub mod checkpoint;
pub mod coherence;
pub mod color;
pub mod delivery;
pub mod dispatch;
pub mod early;
pub mod gather;
pub mod idle;
pub mod membership;
pub mod pace;
pub mod pages;
pub mod quantum;
pub mod queue;
pub mod readahead;
pub mod sizing;
pub mod trial;
pub mod unflushed;
pub mod unit;
pub mod usage;
pub mod writeback;
