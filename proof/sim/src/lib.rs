//! The simulated machine: virtual time, one seed, one thread.
//!
//! A [`World`] holds hosts, their disks and the network between them. [`World::machine`] gives the seam's view of it
//! for one processor of one host; code above the seam runs on it unchanged. Time passes only in [`World::step`], which
//! returns a processor that has something to do: the driver (a test or the lab) then runs that processor.
//!
//! The same seed and the same calls give the same order of events: no hash map is iterated, no decision depends on an
//! address, and no clock is read. [`World::fingerprint`] serves to check it.
//!
//! # Assumptions about media, and how a simulated disk breaks them
//!
//! | | assumption | broken by |
//! |---|---|---|
//! | M1 | a sector is written completely or not at all | [`DiskFaults::sector_tear_permille`] |
//! | M2 | what was complete when a successful flush started survives a power cut | [`DiskFaults::flush_lie_permille`] |
//! | M3 | a completed stable write (forced unit access) survives a power cut; for files see T4 | [`DiskFaults::stable_lie_permille`] |
//! | M4 | a read that succeeds returns what was written last | [`DiskFaults::read_flip_permille`] |
//! | M5 | reads, writes and flushes succeed | `*_error_permille`, [`World::fail_next`], [`World::fail_range`] |
//! | M6 | a write that succeeds is written in full | [`DiskFaults::short_write_permille`] |
//! | M7 | a failed flush (or stable write) leaves what was written before in the cache | [`DiskFaults::failed_flush_drops`] |
//! | M8 | a failed write leaves the old content | [`DiskFaults::failed_write_tears`] |
//!
//! No assumption, since no disk guarantees it, and always simulated: writes between two flushes reach the medium in any
//! order or not at all; a write of several sectors may be torn between sectors; of several writes to one sector since
//! it was last durable, any may survive; a write in flight may or may not have landed; completions are seen in another
//! order than that of the effects ([`DiskConfig::late_permille`]).
//!
//! # Assumptions about file systems
//!
//! | | assumption |
//! |---|---|
//! | T1 | Entries of a directory that were changed when a successful sync of it started survive a power cut. |
//! | T2 | So do attributes of a node, and for a regular file content and size, when the sync was of the node. |
//! | T3 | Content and size of a file survive from before the start of a successful flush (`fdatasync`); its times, mode and owner need not. |
//! | T4 | A completed stable write survives as far as it lies within all sizes that a power cut may leave; if nothing has made the file longer since a flush or truncation, all of it, with the size that it needs and the changes of the size before it. |
//! | T5 | Of the unsynced changes of one directory a prefix survives; different directories are independent except for T6 to T8. |
//! | T6 | A rename between two directories survives in both or in none; a sync of either, or of a directory that moved, makes it durable with everything before it in both. |
//! | T7 | No removal of a name survives without the earlier links to its node or, for a directory, without the removals that emptied it. |
//! | T8 | No rename to another directory and no link survives without the names of that directory and its parents. |
//! | T9 | A node is restored with its attributes of some time since the durable ones; if they were never synced perhaps with those of its creation (kind, mode, owner; a regular file empty). |
//! | T10 | A file is restored with one of its sizes since the durable one. Content that did not reach the medium reads as older content or as zeroes, never as what was cut off before. |
//! | T11 | After a failed flush, sync or stable write, each write to the files that it covered that was complete by then may be lost, even if later ones succeed ([`DiskFaults::failed_flush_drops`]); names and attributes stay unsynced. With one journal, a failed sync may also lose such writes to any other file, which is told as in T14. |
//! | T12 | A node that lost its last name is gone (`ESTALE`), after a power cut also one that never had a durable name. A removed file that is open is read and written until it is closed. |
//! | T13 | With one journal ([`TreeConfig::journal`]): what of a file was on the disk, written directly or written back, both when a successful sync began and when a successful flush of any other file did, survives after both have ended. |
//! | T14 | What was written through the host's page cache may be lost when the host writes it back. That is told once through each open file, by its next flush, stable write or write-back, and, of those opened later, through the first; a sync is one of these. |
//!
//! A sync of a new file or directory does not make its name durable: that takes a sync of its parent. For reads, writes
//! and flushes of files M1 to M8 hold as on disks. Reads do not change times (`noatime`), and a removed node's number
//! is reused with another generation.

mod bytes;
mod change;
mod config;
mod content;
mod disk;
mod endpoint;
mod faults;
mod file;
mod ids;
mod lifecycle;
mod network;
mod operation;
mod processor;
mod random;
mod seam;
mod storage;
mod transfer;
mod tree;
mod world;

pub use config::{DiskConfig, Latency, NetworkConfig};
pub use disk::DiskCounters;
pub use faults::{DiskFaults, OpClass};
pub use ids::{DiskId, HostId, TreeId};
pub use random::Random;
pub use tree::{TreeConfig, TreeCounters};
pub use world::{Step, World};
