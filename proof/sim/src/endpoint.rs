//! The ends of connections: state, receives and sends.
//!
//! Each end has an inbox: bytes that arrived, then bytes in flight. Both count against the buffer.

use std::collections::{BTreeMap, VecDeque};

use crate::config::NetworkConfig;
use crate::ids::HostId;
use crate::operation::OpRef;
use crate::random::Random;
use crate::transfer::{gather, scatter_into};
use machine::{Connection, Errno, Segment, total_len};

pub(crate) struct Network {
    pub(crate) config: NetworkConfig,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) listeners: Vec<Port>,
    /// Of hosts that are slow, in nanoseconds.
    pub(crate) delays: BTreeMap<HostId, u64>,
    pub(crate) random: Random,
}

/// One end of a connection. Its index is the number of the [`Connection`], never reused.
pub(crate) struct Endpoint {
    pub(crate) host: HostId,
    pub(crate) peer: usize,
    pub(crate) inbox: VecDeque<u8>,
    /// Bytes of the inbox that have arrived.
    pub(crate) arrived: usize,
    /// When the last byte in flight arrives, in nanoseconds.
    pub(crate) arrives_last: u64,
    /// The peer's end of stream has arrived.
    pub(crate) ended: bool,
    pub(crate) reset: bool,
    /// The peer vanished without a message: nothing in flight from it will arrive.
    pub(crate) cut: bool,
    /// It was shut down locally.
    pub(crate) shut: bool,
    pub(crate) closed: bool,
    pub(crate) receiving: VecDeque<OpRef>,
    pub(crate) sending: VecDeque<OpRef>,
    /// Operations that were not returned yet, and the index of the processor that started them.
    pub(crate) used: u32,
    pub(crate) user: usize,
}

pub(crate) struct Port {
    pub(crate) host: HostId,
    pub(crate) port: u16,
    pub(crate) open: bool,
    pub(crate) backlog: VecDeque<usize>,
    pub(crate) accepting: VecDeque<OpRef>,
}

impl Network {
    pub(crate) fn new(random: Random) -> Self {
        Network {
            config: NetworkConfig::default(),
            endpoints: Vec::new(),
            listeners: Vec::new(),
            delays: BTreeMap::new(),
            random,
        }
    }

    pub(crate) fn add_endpoint(&mut self, host: HostId, peer: usize) -> usize {
        self.endpoints.push(Endpoint {
            host,
            peer,
            inbox: VecDeque::new(),
            arrived: 0,
            arrives_last: 0,
            ended: false,
            reset: false,
            cut: false,
            shut: false,
            closed: false,
            receiving: VecDeque::new(),
            sending: VecDeque::new(),
            used: 0,
            user: 0,
        });
        self.endpoints.len() - 1
    }

    /// The end `connection`, if it is on `host`.
    ///
    /// # Panics
    /// When it is closed: on Linux the next connection or file has its number.
    pub(crate) fn find(&mut self, host: HostId, connection: Connection) -> Option<&mut Endpoint> {
        let end = self.endpoints.get_mut(connection.0 as usize).filter(|end| end.host == host)?;
        assert!(!end.closed, "{connection:?} is used after it was closed");
        Some(end)
    }

    /// `n`, or, in `permille` of a thousand cases, a random part of it.
    pub(crate) fn cut_short(&mut self, n: u64, permille: u32) -> u64 {
        if n > 1 && self.random.permille(permille) { self.random.between(1, n - 1) } else { n }
    }

    /// Receives at `index`; `None` when it has to wait.
    pub(crate) fn receive(&mut self, index: usize, into: &[Segment]) -> Option<Result<u64, Errno>> {
        let end = &self.endpoints[index];
        if end.arrived == 0 {
            return match end {
                Endpoint { reset: true, .. } => Some(Err(Errno::CONNECTION_RESET)),
                Endpoint { ended: true, .. } | Endpoint { shut: true, .. } => Some(Ok(0)),
                _ => None,
            };
        }
        let most = total_len(into).min(end.arrived as u64);
        let n = self.cut_short(most, self.config.short_receive_permille);
        let end = &mut self.endpoints[index];
        let (front, back) = end.inbox.as_slices();
        let copy = |passed: u64, bytes: &mut [u8]| {
            let passed = passed as usize;
            let from_front = front.get(passed..).unwrap_or_default();
            let (head, tail) = bytes.split_at_mut(from_front.len().min(bytes.len()));
            head.copy_from_slice(&from_front[..head.len()]);
            let start = (passed + head.len()).saturating_sub(front.len());
            tail.copy_from_slice(&back[start..start + tail.len()]);
        };
        // SAFETY: the starter of the receive keeps its memory valid and unshared until its completion is returned or
        // its machine is gone, and then it is not among the operations.
        unsafe { scatter_into(into, n, copy) };
        end.inbox.drain(..n as usize);
        end.arrived -= n as usize;
        Some(Ok(n))
    }

    /// Takes what fits of a send at `index`; `None` when it has to wait.
    pub(crate) fn send(&mut self, index: usize, from: &[Segment]) -> Option<Result<u64, Errno>> {
        let end = &self.endpoints[index];
        if end.reset {
            return Some(Err(Errno::CONNECTION_RESET));
        }
        if end.shut {
            return Some(Err(Errno(libc::EPIPE)));
        }
        let (peer, cut) = (end.peer, end.cut);
        if self.endpoints[peer].closed || cut {
            return Some(Ok(total_len(from)));
        }
        let room = (self.config.buffer_bytes as usize).saturating_sub(self.endpoints[peer].inbox.len());
        if room == 0 {
            return None;
        }
        let most = total_len(from).min(room as u64);
        let n = self.cut_short(most, self.config.short_send_permille);
        // SAFETY: as in `receive`, but others may read it.
        unsafe { gather(from, n, &mut self.endpoints[peer].inbox) };
        Some(Ok(n))
    }
}
