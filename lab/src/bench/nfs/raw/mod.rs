//! What the machine itself can do: the work of a load in a few lines of code, without a protocol or a server. It bounds
//! what a server can reach: close to it there is little to gain.

mod disk;
mod link;
mod names;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::measure::load::{Load, Operation, Stability};

#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub requests: u64,
    pub elapsed: Duration,
}

impl Done {
    pub fn rate(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64()
    }
}

/// Does the work of a load for a while, with files in a directory.
pub fn drive(load: &Load, directory: &Path, duration: Duration) -> Result<Done> {
    match load.operation {
        Operation::Read(_) | Operation::ReadAndAttributes(_) => link::send(load, duration),
        Operation::Overwrite(_, Stability::Unstable { commit_bytes }) => {
            link::receive(load, commit_bytes, &directory.join("raw"), duration)
        }
        Operation::Overwrite(_, Stability::FileSync | Stability::Flushed { .. }) => {
            disk::overwrite(load, &directory.join("raw"), duration)
        }
        Operation::Extend(_) => disk::extend(load, &directory.join("raw"), duration),
        Operation::CreateRemove => names::create_remove(load, directory, duration),
    }
}
