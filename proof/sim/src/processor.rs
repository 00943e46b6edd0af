//! A simulated processor: the seam's view of the world.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use policy::unit::ProcessorId;

use crate::ids::HostId;
use crate::operation::OpRef;
use machine::{Doorbell, Op, Region, SEGMENTS_MAX, Segment};

pub(crate) struct Proc {
    pub(crate) host: HostId,
    pub(crate) id: ProcessorId,
    pub(crate) alive: bool,
    pub(crate) is_paused: bool,
    pub(crate) started: Vec<OpRef>,
    pub(crate) done: VecDeque<OpRef>,
    pub(crate) kicked: bool,
    /// When it is due without other events, in nanoseconds.
    pub(crate) wake_at: Option<u64>,
    pub(crate) regions: Vec<Region>,
    pub(crate) bell: Arc<Bell>,
}

impl Proc {
    pub(crate) fn new(host: HostId, id: ProcessorId) -> Self {
        Proc {
            host,
            id,
            alive: true,
            is_paused: false,
            started: Vec::new(),
            done: VecDeque::new(),
            kicked: true,
            wake_at: None,
            regions: Vec::new(),
            bell: Arc::default(),
        }
    }

    pub(crate) fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.kicked
            || !self.started.is_empty()
            || !self.done.is_empty()
            || self.wake_at.is_some_and(|at| at <= now)
            || self.bell.0.load(Ordering::Acquire)
    }

    /// It never runs again. The caller handles its operations.
    pub(crate) fn die(&mut self) {
        self.alive = false;
        self.started.clear();
        self.done.clear();
        self.regions.clear();
    }

    pub(crate) fn check_segments(&self, segments: &[Segment]) {
        assert!(segments.len() <= SEGMENTS_MAX, "{} segments in one operation", segments.len());
        for segment in segments {
            assert!(segment.len > 0, "an empty segment");
            let Some(id) = segment.region else { continue };
            // A region that was not offered is no error: the offer may still be pending.
            let Some(region) = self.regions.iter().find(|region| region.id == id) else {
                continue;
            };
            let (start, base) = (segment.ptr as usize, region.base as usize);
            let inside = start >= base && start + segment.len as usize <= base + region.len;
            assert!(inside, "a segment lies outside its region {id:?}");
        }
    }
}

/// A doorbell: latched until the next [`Machine::enter`], so a ring before parking is not lost.
#[derive(Debug, Default)]
pub(crate) struct Bell(pub(crate) AtomicBool);

impl Doorbell for Bell {
    fn ring(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The memory of an operation.
pub(crate) fn segments_of(op: &Op) -> &[Segment] {
    match op {
        Op::Read { into, .. } | Op::Receive { into, .. } => into,
        Op::Write { from, .. } | Op::Send { from, .. } => from,
        _ => &[],
    }
}
