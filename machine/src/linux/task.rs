//! An operation in the host's terms: descriptors, vectors, and the meaning of a system call's result.
//!
//! Both engines share it, so that they cannot differ in what they retry, continue or translate.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use libc::iovec;

use super::file;
use super::net;
use super::tree;
use crate::tree::{Tree, TreeCall, TreeOp};
use crate::{Errno, FoundRuns, Op, RegionId, Segment, Token};
use policy::unit::{ByteOffset, ByteRange, Stability};
use std::os::fd::RawFd;

/// Maximum of bytes that one system call transfers (Linux: `MAX_RW_COUNT`).
const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;

/// How a range is zeroed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zeroing {
    Hole,
    /// A hole, or where holes are not supported, allocated zeroes.
    HoleOrZeroes,
    Zeroes,
}

impl Zeroing {
    pub(super) fn mode(self) -> libc::c_int {
        let how = match self {
            Zeroing::Hole | Zeroing::HoleOrZeroes => libc::FALLOC_FL_PUNCH_HOLE,
            Zeroing::Zeroes => libc::FALLOC_FL_ZERO_RANGE,
        };
        how | libc::FALLOC_FL_KEEP_SIZE
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Read {
        fd: RawFd,
        at: ByteOffset,
    },
    Write {
        fd: RawFd,
        at: ByteOffset,
        stability: Stability,
    },
    Flush {
        fd: RawFd,
    },
    WriteBack {
        fd: RawFd,
    },
    Zero {
        fd: RawFd,
        at: ByteOffset,
        len: u64,
        how: Zeroing,
        /// The host would write allocated zeroes itself, no faster than the caller can.
        zeroes_are_written: bool,
    },
    FindData {
        fd: RawFd,
        within: ByteRange,
        runs_max: usize,
    },
    Populate {
        base: usize,
        len: usize,
    },
    Accept {
        fd: RawFd,
    },
    Receive {
        fd: RawFd,
    },
    Send {
        fd: RawFd,
    },
    Faults {
        fd: RawFd,
    },
    Tree,
}

/// Calls that the host serializes anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lane {
    pub(super) tree: Tree,
    directory: u64,
}

/// What a call waits for if it blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Resource {
    Tree(Tree),
    Descriptor(RawFd),
    Memory,
}

/// What to do after a system call returned.
#[derive(Debug)]
pub(super) enum Step {
    Done(Result<u64, Errno>),
    /// Make the (possibly modified) call again.
    Retry,
    /// Make the call again when the descriptor is ready for these events (`POLLIN`, `POLLOUT`).
    Wait(RawFd, libc::c_short),
}

pub(super) struct Task {
    pub(super) token: Token,
    pub(super) call: Call,
    vectors: Vec<iovec>,
    /// Vectors before this one are already transferred.
    first: usize,
    /// Bytes that earlier calls of the same operation transferred.
    before: u64,
    /// The region of all vectors.
    pub(super) region: Option<RegionId>,
    tree_op: Option<Box<TreeOp>>,
    /// Of a [`Call::FindData`].
    runs: Option<FoundRuns>,
}

// SAFETY: the vectors are only addresses; the starter of an operation guarantees that the memory they point to is
// valid, and not accessed by others, until its completion is returned, whichever thread makes the call.
unsafe impl Send for Task {}

impl Task {
    pub(super) fn idle() -> Self {
        Task {
            token: Token(0),
            call: Call::Flush { fd: -1 },
            vectors: Vec::new(),
            first: 0,
            before: 0,
            region: None,
            tree_op: None,
            runs: None,
        }
    }

    pub(super) fn new(token: Token, op: Op) -> Result<Self, Errno> {
        let mut task = Task::idle();
        task.begin(token, op)?;
        Ok(task)
    }

    /// Becomes another operation, reusing the memory of this one. Fails when the host is known not to support it.
    pub(super) fn begin(&mut self, token: Token, op: Op) -> Result<(), Errno> {
        self.token = token;
        self.first = 0;
        self.before = 0;
        self.region = None;
        self.vectors.clear();
        self.tree_op = None;
        self.runs = None;
        self.call = match op {
            Op::Read { file, at, into } => {
                self.gather(&into);
                Call::Read { fd: file::descriptor(file), at }
            }
            Op::Write { file, at, from, stability } => {
                self.gather(&from);
                Call::Write { fd: file::descriptor(file), at, stability }
            }
            Op::Flush { file } => Call::Flush { fd: file::descriptor(file) },
            Op::WriteBack { file } => Call::WriteBack { fd: file::descriptor(file) },
            Op::Zero { file, at, len, may_release } => {
                let how = if may_release { Zeroing::HoleOrZeroes } else { Zeroing::Zeroes };
                let zeroes_are_written = file::zeroes_are_written(file);
                if how == Zeroing::Zeroes && zeroes_are_written {
                    return Err(Errno::NOT_SUPPORTED);
                }
                Call::Zero { fd: file::descriptor(file), at, len, how, zeroes_are_written }
            }
            Op::Discard { file, at, len } => {
                Call::Zero { fd: file::descriptor(file), at, len, how: Zeroing::Hole, zeroes_are_written: false }
            }
            Op::FindData { file, within, runs_max, runs } => {
                self.runs = Some(runs);
                Call::FindData { fd: file::descriptor(file), within, runs_max }
            }
            Op::Populate { region } => Call::Populate { base: region.base.expose_provenance(), len: region.len },
            Op::Accept { listener } => Call::Accept { fd: listener.0 as RawFd },
            Op::Receive { connection, into } => {
                self.gather(&into);
                Call::Receive { fd: connection.0 as RawFd }
            }
            Op::Send { connection, from } => {
                self.gather(&from);
                Call::Send { fd: connection.0 as RawFd }
            }
            Op::Faults { of, into } => {
                self.gather(&into);
                Call::Faults { fd: of.0 as RawFd }
            }
            Op::Tree(op) => {
                self.tree_op = Some(op);
                Call::Tree
            }
        };
        Ok(())
    }

    /// What remains to be transferred.
    pub(super) fn vectors(&self) -> &[iovec] {
        &self.vectors[self.first..]
    }

    /// The tree operation, when the call is [`Call::Tree`].
    pub(super) fn tree_op(&self) -> Option<&TreeOp> {
        self.tree_op.as_deref()
    }

    /// Stores what a [`Call::FindData`] has found.
    pub(super) fn set_runs(&self, runs: Vec<ByteRange>) {
        if let Some(place) = &self.runs {
            *place.lock() = runs;
        }
    }

    /// A call that uses the core for a short time, whatever it waits for: nothing else gets much later if it is made there.
    pub(super) fn is_light(&self) -> bool {
        match self.call {
            Call::Flush { .. } | Call::WriteBack { .. } => true,
            Call::Tree => self.tree_op().is_some_and(|op| !tree::is_searched(op.tree)),
            _ => false,
        }
    }

    /// A call that the host answers from memory, mostly.
    pub(super) fn is_brief(&self) -> bool {
        self.tree_op().is_some_and(|op| !matches!(op.call, TreeCall::Sync { .. }))
    }

    /// The lane of a call that changes the names in one directory. Two directories may share one.
    pub(super) fn lane(&self) -> Option<Lane> {
        let op = self.tree_op()?;
        let dir = op.call.directory_changed()?;
        let directory = BuildHasherDefault::<DefaultHasher>::default().hash_one(dir);
        Some(Lane { tree: op.tree, directory })
    }

    pub(super) fn resource(&self) -> Resource {
        match self.call {
            Call::Read { fd, .. }
            | Call::Write { fd, .. }
            | Call::Flush { fd }
            | Call::WriteBack { fd }
            | Call::Zero { fd, .. }
            | Call::FindData { fd, .. }
            | Call::Accept { fd }
            | Call::Receive { fd }
            | Call::Send { fd }
            | Call::Faults { fd } => Resource::Descriptor(fd),
            Call::Populate { .. } => Resource::Memory,
            Call::Tree => self.tree_op().map_or(Resource::Memory, |op| Resource::Tree(op.tree)),
        }
    }

    /// Releases memory that only unusually long operations need.
    pub(super) fn trim(&mut self) {
        const VECTORS_RETAINED: usize = 64;
        self.vectors.clear();
        self.first = 0;
        self.tree_op = None;
        self.runs = None;
        self.vectors.shrink_to(VECTORS_RETAINED);
    }

    /// Takes over the segments; those adjacent in memory become one vector.
    fn gather(&mut self, segments: &[Segment]) {
        self.region = segments.first().and_then(|segment| segment.region);
        let mut last_region = None;
        for segment in segments {
            if segment.region != self.region {
                self.region = None;
            }
            let len = segment.len as usize;
            match self.vectors.last_mut() {
                Some(last)
                    if last.iov_base.addr() + last.iov_len == segment.ptr.addr()
                        && last_region == Some(segment.region)
                        && last.iov_len + len <= TRANSFER_BYTES_MAX =>
                {
                    last.iov_len += len;
                }
                _ => self.vectors.push(iovec { iov_base: segment.ptr.cast(), iov_len: len }),
            }
            last_region = Some(segment.region);
        }
    }

    pub(super) fn on_result(&mut self, result: Result<u64, Errno>) -> Step {
        match result {
            // Complete, whatever the result.
            result if matches!(self.call, Call::Tree) => Step::Done(result),
            Ok(count) => self.on_success(count),
            Err(Errno(libc::EINTR)) => Step::Retry,
            Err(Errno(libc::EAGAIN)) => self.on_not_ready(),
            Err(errno) => self.on_error(errno),
        }
    }

    fn on_success(&mut self, count: u64) -> Step {
        match &mut self.call {
            Call::Read { at, .. } => {
                *at = *at + count;
                self.before += count;
                self.advance(count);
                // The host may stop short anywhere; only a read of nothing is the end of the file.
                if count == 0 || self.vectors().is_empty() { Step::Done(Ok(self.before)) } else { Step::Retry }
            }
            Call::Accept { .. } => {
                net::set_options(count as RawFd);
                Step::Done(Ok(count))
            }
            _ => Step::Done(Ok(count)),
        }
    }

    fn on_not_ready(&self) -> Step {
        match (self.call, self.socket()) {
            // A Unix socket that was shut down stays readable without a client. TCP reports an error by itself.
            (Call::Accept { fd }, _) if net::is_shut_down(fd) => Step::Done(Err(Errno::INVALID)),
            (_, Some((fd, events))) => Step::Wait(fd, events),
            (_, None) => Step::Retry,
        }
    }

    /// The socket, or other descriptor that is ready at times, of the call, if any, and the event (`POLLIN`, `POLLOUT`)
    /// after which it can continue.
    pub(super) fn socket(&self) -> Option<(RawFd, libc::c_short)> {
        match self.call {
            Call::Accept { fd } | Call::Receive { fd } | Call::Faults { fd } => Some((fd, libc::POLLIN)),
            Call::Send { fd } => Some((fd, libc::POLLOUT)),
            _ => None,
        }
    }

    fn on_error(&mut self, errno: Errno) -> Step {
        match (&mut self.call, errno.0) {
            // After a short direct read the next offset is not aligned: there the file ends.
            (Call::Read { .. }, libc::EINVAL) if self.before > 0 => Step::Done(Ok(self.before)),
            // That client has left already: accept the next one.
            (Call::Accept { .. }, libc::ECONNABORTED | libc::EPROTO) => Step::Retry,
            (Call::Zero { how, zeroes_are_written, .. }, libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV) => {
                if *how == Zeroing::HoleOrZeroes && !*zeroes_are_written {
                    *how = Zeroing::Zeroes;
                    Step::Retry
                } else {
                    Step::Done(Err(Errno::NOT_SUPPORTED))
                }
            }
            _ => Step::Done(Err(errno)),
        }
    }

    fn advance(&mut self, count: u64) {
        let mut left = count as usize;
        while left > 0 {
            let Some(vector) = self.vectors.get_mut(self.first) else {
                return;
            };
            if left < vector.iov_len {
                vector.iov_base = vector.iov_base.wrapping_byte_add(left);
                vector.iov_len -= left;
                return;
            }
            left -= vector.iov_len;
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Connection, File, Segments};

    fn segment(addr: usize, len: u32, region: Option<u16>) -> Segment {
        Segment { ptr: std::ptr::without_provenance_mut(addr), len, region: region.map(RegionId) }
    }

    fn read(segments: &[Segment]) -> Task {
        let op = Op::Read { file: File(9), at: ByteOffset(4096), into: Segments::from_slice(segments) };
        Task::new(Token(1), op).expect("reads are always possible")
    }

    fn shape(task: &Task) -> Vec<(usize, usize)> {
        let vectors = task.vectors().iter();
        vectors.map(|v| (v.iov_base.addr(), v.iov_len)).collect()
    }

    #[test]
    fn neighbours_in_memory_become_one_vector() {
        let task = read(&[
            segment(0x1000, 0x1000, Some(3)),
            segment(0x2000, 0x1000, Some(3)),
            segment(0x5000, 0x1000, Some(3)),
        ]);
        assert_eq!(shape(&task), [(0x1000, 0x2000), (0x5000, 0x1000)]);
        assert_eq!(task.region, Some(RegionId(3)));
    }

    #[test]
    fn neighbours_of_different_regions_stay_separate_and_have_no_common_region() {
        let task = read(&[segment(0x1000, 0x1000, Some(3)), segment(0x2000, 0x1000, None)]);
        assert_eq!(shape(&task), [(0x1000, 0x1000), (0x2000, 0x1000)]);
        assert_eq!(task.region, None);
    }

    #[test]
    fn a_short_read_continues_until_the_file_ends() {
        let mut task = read(&[segment(0x1000, 10, None), segment(0x9000, 10, None)]);
        assert!(matches!(task.on_result(Ok(13)), Step::Retry));
        assert_eq!(shape(&task), [(0x9003, 7)]);
        assert!(matches!(task.call, Call::Read { fd: 9, at: ByteOffset(4109), .. }));
        assert!(matches!(task.on_result(Ok(0)), Step::Done(Ok(13))));
    }

    #[test]
    fn an_error_in_the_middle_of_a_read_is_not_taken_for_the_end_of_the_file() {
        let mut task = read(&[segment(0x1000, 8192, None)]);
        assert!(matches!(task.on_result(Ok(4096)), Step::Retry));
        assert!(matches!(task.on_result(Err(Errno::IO)), Step::Done(Err(Errno::IO))));
    }

    #[test]
    fn interruptions_and_sockets_that_are_not_ready_are_not_reported() {
        let op = Op::Send { connection: Connection(7), from: Segments::from_slice(&[segment(0x1000, 10, None)]) };
        let mut task = Task::new(Token(1), op).expect("sends are always possible");
        assert!(matches!(task.on_result(Err(Errno(libc::EINTR))), Step::Retry));
        assert!(matches!(task.on_result(Err(Errno(libc::EAGAIN))), Step::Wait(7, libc::POLLOUT)));
    }

    #[test]
    fn zeroing_falls_back_from_a_hole_to_zeroes_once() {
        let op = Op::Zero { file: File(9), at: ByteOffset(0), len: 4096, may_release: true };
        let mut task = Task::new(Token(1), op).expect("possible");
        let refused = Err(Errno::NOT_SUPPORTED);
        assert!(matches!(task.on_result(refused), Step::Retry));
        assert!(matches!(task.on_result(refused), Step::Done(Err(Errno::NOT_SUPPORTED))));
    }
}
