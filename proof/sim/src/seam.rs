//! The seam for a simulated processor.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use policy::sizing::MemoryFacts;
use policy::unit::{Instant, ProcessorId};

use crate::ids::HostId;
use crate::operation::{OpRef, OpState};
use crate::processor::{Bell, Proc, segments_of};
use crate::tree::time_of_day;
use crate::world::{Inner, World};
use machine::tree::Time;
use machine::{Completion, Connection, Doorbell, Errno, Machine, Op, Park, Region, RegionId, Segment, Token};

impl World {
    /// The seam for processor `id` of `host`. It is due at once.
    ///
    /// # Panics
    /// When that processor has a machine that was neither dropped nor died with its host.
    pub fn machine(&self, host: HostId, id: ProcessorId) -> Box<dyn Machine> {
        let mut inner = self.0.borrow_mut();
        assert!(inner.find(host, id).is_none(), "{}: processor {id:?} of {host:?} has a machine", inner.describe());
        let index = inner.processors.len();
        let processor = Proc::new(host, id);
        let bell = processor.bell();
        inner.processors.push(processor);
        inner.alive.push(index);
        Box::new(SimMachine::new(self.clone(), index, id, bell))
    }
}

/// The seam for one simulated processor.
pub(crate) struct SimMachine {
    world: World,
    index: usize,
    id: ProcessorId,
    bell: Arc<Bell>,
}

impl SimMachine {
    pub(crate) fn new(world: World, index: usize, id: ProcessorId, bell: Arc<Bell>) -> Self {
        SimMachine { world, index, id, bell }
    }

    /// Runs `act` unless the processor died with its host.
    fn if_alive(&self, act: impl FnOnce(&mut Inner)) {
        let mut inner = self.world.0.borrow_mut();
        if inner.processors[self.index].alive {
            act(&mut inner);
        }
    }
}

impl Machine for SimMachine {
    fn processor(&self) -> ProcessorId {
        self.id
    }

    fn now(&self) -> Instant {
        self.world.now()
    }

    unsafe fn start(&mut self, token: Token, op: Op) {
        self.if_alive(|inner| inner.start(self.index, token, op));
    }

    fn enter(&mut self, park: Park, done: &mut Vec<Completion>) {
        self.if_alive(|inner| inner.enter(self.index, park, done));
    }

    fn pause(&mut self, _time: Duration) {}

    fn shutdown(&mut self, connection: Connection) {
        self.if_alive(|inner| {
            // Operations started before must not be overtaken.
            inner.submit_started(self.index);
            inner.shutdown(self.index, connection);
        });
    }

    fn close(&mut self, connection: Connection) {
        self.if_alive(|inner| inner.close_by(self.index, connection));
    }

    fn offer_region(&mut self, region: Region) -> Result<(), Errno> {
        self.if_alive(|inner| {
            let regions = &mut inner.processors[self.index].regions;
            assert!(regions.iter().all(|other| other.id != region.id), "{:?} is offered already", region.id);
            regions.push(region);
        });
        Ok(())
    }

    fn withdraw_region(&mut self, id: RegionId) {
        self.if_alive(|inner| {
            let mut used = inner.operations.iter().filter(|operation| operation.processor == self.index);
            let in_region = |segment: &Segment| segment.region == Some(id);
            let user = used.find(|operation| segments_of(&operation.op).iter().any(in_region));
            assert!(user.is_none(), "{id:?} is withdrawn while used by {user:?}");
            inner.processors[self.index].regions.retain(|region| region.id != id);
        });
    }

    fn doorbell(&self) -> Arc<dyn Doorbell> {
        Arc::clone(&self.bell) as Arc<dyn Doorbell>
    }

    fn time_of_day(&self) -> Time {
        let inner = self.world.0.borrow();
        time_of_day(inner.now, inner.clock_steps)
    }

    fn memory(&self) -> MemoryFacts {
        let inner = self.world.0.borrow();
        let host = inner.processors[self.index].host;
        inner.hosts[usize::from(host.0)].memory
    }

    fn describe(&self) -> String {
        let inner = self.world.0.borrow();
        let host = inner.processors[self.index].host;
        let name = &inner.hosts[usize::from(host.0)].name;
        format!("simulated machine: processor {} of host `{name}`, seed {}", self.id.0, inner.seed)
    }
}

impl Drop for SimMachine {
    fn drop(&mut self) {
        self.if_alive(|inner| inner.drop_processor(self.index));
    }
}

impl Inner {
    fn start(&mut self, processor: usize, token: Token, op: Op) {
        self.processors[processor].check_segments(segments_of(&op));
        self.begin_use(processor, &op);
        let of = self.operations.insert(processor, token, op);
        self.processors[processor].started.push(of);
    }

    fn submit_started(&mut self, processor: usize) {
        let mut started = std::mem::take(&mut self.processors[processor].started);
        for of in started.drain(..) {
            self.submit(of);
        }
        self.processors[processor].started = started;
    }

    fn submit(&mut self, of: OpRef) {
        let Some(operation) = self.operations.get_mut(of) else {
            return;
        };
        operation.state = OpState::InFlight;
        match operation.op {
            Op::Populate { .. } => self.complete(of, Ok(0)),
            // No program of a simulated host maps anything.
            Op::Faults { .. } => self.complete(of, Err(Errno::NOT_SUPPORTED)),
            Op::Tree(_) => self.submit_tree_call(of),
            Op::Accept { listener } => self.submit_accept(of, listener),
            Op::Receive { connection, .. } => self.submit_receive(of, connection),
            Op::Send { connection, .. } => self.submit_send(of, connection),
            _ => self.submit_file_op(of),
        }
    }

    fn enter(&mut self, index: usize, park: Park, done: &mut Vec<Completion>) {
        self.submit_started(index);
        let mut returns_at_once = park == Park::No;
        while let Some(of) = self.processors[index].done.pop_front() {
            let Some(operation) = self.operations.remove(of) else {
                continue;
            };
            self.end_use(&operation);
            if let OpState::Done(result) = operation.state {
                done.push(Completion { token: operation.token, result });
                returns_at_once = true;
            }
        }
        let now = self.now + self.slice_ns;
        let processor = &mut self.processors[index];
        returns_at_once |= processor.bell.0.swap(false, Ordering::AcqRel);
        processor.wake_at = match park {
            _ if returns_at_once => Some(now),
            Park::Until { deadline, .. } => deadline.map(|deadline| deadline.ns()),
            Park::No => None,
        };
    }
}
