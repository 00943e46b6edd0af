//! What a load does, and what came of it.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Where the next request of a connection goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Behind the last one; from the beginning again at the end of the file.
    Sequential,
    Random,
}

/// What a WRITE asks for (`stable_how`, RFC 1813, 3.3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// Data and attributes are durable before the reply.
    FileSync,
    /// Nothing is durable before a COMMIT, of which one follows after each so many bytes, when all those before it are
    /// answered, and one at the end.
    Unstable {
        /// Bytes between two COMMITs.
        commit_bytes: u64,
    },
}

/// What is asked of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// READ of bytes that the file has.
    Read(Order),
    /// WRITE of bytes that the file has already.
    Overwrite(Order, Stability),
    /// WRITE behind the end of the file, which was empty before.
    Extend(Stability),
    /// CREATE of a file that is not there, then REMOVE of it; each in flight has a name of its own.
    CreateRemove,
}

impl Operation {
    /// Does it use what the files hold?
    pub fn needs_content(self) -> bool {
        matches!(self, Operation::Read(_) | Operation::Overwrite(..))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// After a time.
    For(Duration),
    /// After each connection went through its files once, in order.
    OnePass,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// What is asked of the server.
    pub operation: Operation,
    /// Bytes of a READ or WRITE.
    pub request_bytes: u32,
    /// Bytes of a file.
    pub file_bytes: u64,
    /// Clients: connections, each with files of its own.
    pub connections: u32,
    /// Files of a connection; its requests go to one after another.
    pub files: u32,
    /// Requests in flight on each connection.
    pub in_flight: u32,
}

impl Load {
    /// One client with one file of 256 MiB.
    pub const fn new(operation: Operation, request_kib: u32, in_flight: u32) -> Load {
        Load { operation, request_bytes: request_kib << 10, file_bytes: 256 << 20, connections: 1, files: 1, in_flight }
    }
}

/// What came of a load.
pub struct Outcome {
    /// Requests that were answered; COMMITs are not counted.
    pub requests: u64,
    pub commits: u64,
    /// Bytes of READ or WRITE.
    pub bytes: u64,
    /// From the first request to the last reply.
    pub elapsed: Duration,
    /// How long a request took, COMMITs left out. Nanoseconds.
    pub latency_ns: Histogram<u64>,
}

impl Outcome {
    /// Requests a second.
    pub fn rate(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64()
    }

    /// Bytes a second.
    pub fn bytes_a_second(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64()
    }

    /// So many percent of the requests took at most this long. Microseconds.
    pub fn percentile_us(&self, percent: f64) -> f64 {
        self.latency_ns.value_at_percentile(percent) as f64 / 1e3
    }
}
