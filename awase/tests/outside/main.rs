//! The server as a process, attacked from outside: killed under load, with disks that fail or are full, with garbage instead
//! of requests, with memory taken away, reconfigured under load. Ledgers compare what was acknowledged with what is read.
//!
//! Each test runs for `AWASE_OUTSIDE_SECONDS` (3 by default), from the seed `AWASE_OUTSIDE_SEED`, against the program
//! `AWASE_PROGRAM` (by default the one built with the tests).

mod change;
mod database;
mod failing_disk;
mod file_size;
mod full_disk;
mod hostile;
mod kill;
mod live_session;
mod media;
mod pressure;
mod terminal;
