//! What is done with a mounted directory, and the targets of Awase (`workloads.toml`).

use std::time::Duration;

use serde::Deserialize;

use crate::bench::results;
use crate::bench::slow_disk::Disk;

/// Delay of the slow link, each way.
pub const LINK_DELAY: Duration = Duration::from_millis(1);

/// Of the slow link. Bytes a second: 1 Gbit/s.
pub const LINK_RATE: u64 = 125_000_000;

/// Requests of the programs that read and write in order, as of cat and cp. Bytes.
pub const TRANSFER_BYTES: usize = 128 << 10;

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// A file that the server has cached and the client has not, in order.
    Read,
    /// The same for a time, 8 KiB at a time.
    ReadSmall,
    /// A new file, in order, and fsync. It ends when the served directory has all of it.
    Write,
    /// 4 KiB at random of a file that was read before.
    ReadCached,
    /// A repository is cloned and built.
    Tree,
}

impl Work {
    pub fn writes(self) -> bool {
        matches!(self, Work::Write | Work::Tree)
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    pub work: Work,
    /// On which it lies that is written.
    #[serde(default)]
    pub disk: Disk,
    /// Over a link with [`LINK_DELAY`] and [`LINK_RATE`].
    #[serde(default)]
    pub is_slow: bool,
}

pub type Workload = results::Workload<Setup>;

pub fn workloads() -> Vec<Workload> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        workload: Vec<Workload>,
    }
    let file: Result<File, _> = toml::from_str(include_str!("workloads.toml"));
    file.unwrap_or_else(|error| panic!("workloads.toml: {error}")).workload
}
