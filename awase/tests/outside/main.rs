//! The server as its users have it, a process of its own, attacked from outside: killed under load, with disks that fail
//! or are full, with garbage instead of requests, with memory taken away, with everything changed under way. Ledgers hold
//! what was acknowledged against what is there.
//!
//! Each test goes on for `AWASE_OUTSIDE_SECONDS` (3 by default), from the seed `AWASE_OUTSIDE_SEED`, against the program
//! `AWASE_PROGRAM` (by default the one that was built with the tests).

mod change;
mod failing_disk;
mod full_disk;
mod hostile;
mod kill;
mod pressure;
