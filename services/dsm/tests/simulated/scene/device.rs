//! A device that all nodes reach, worse than one has to be: what a node has written becomes durable only when that node
//! flushes, or any other once it is dead; after a flush that has failed it never does. That is said once. A flush covers what was
//! written before it began.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use kernel::Processor;
use kernel::device::{Device, DeviceFacts, DeviceRef, Work};
use kernel::request::{Action, Context, JobId, Outcome, Request};
use machine::Errno;
use policy::unit::BlockNo;
use testkit::scene::disk::block;

type Contents = BTreeMap<BlockNo, Content>;

#[derive(Clone, PartialEq, Eq)]
struct Content {
    /// Of two, the later write counts.
    number: u64,
    bytes: Box<[u8]>,
}

#[derive(Default)]
struct State {
    writes: u64,
    /// By the node that wrote it; `None`: it is dead.
    unflushed: BTreeMap<Option<usize>, Contents>,
    durable: Contents,
    written: BTreeSet<BlockNo>,
    /// Nodes whose next flush fails.
    failing: BTreeSet<usize>,
    failures: u64,
    /// Of each node.
    flushes: BTreeMap<usize, u64>,
    /// What those have dropped.
    dropped: BTreeSet<BlockNo>,
    /// Nodes whose flushes do not end.
    hanging: BTreeSet<usize>,
}

pub struct Medium {
    below: DeviceRef,
    state: Mutex<State>,
}

impl Medium {
    pub fn new(below: DeviceRef) -> Arc<Medium> {
        Arc::new(Medium { below, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("one thread")
    }

    /// The next flush of a node fails.
    pub fn fail_flush(&self, node: usize) {
        self.state().failing.insert(node);
    }

    pub fn is_failing(&self, node: usize) -> bool {
        self.state().failing.contains(&node)
    }

    /// Flushes that have failed.
    pub fn failures(&self) -> u64 {
        self.state().failures
    }

    /// How often a node has asked it to flush.
    pub fn flushes(&self, node: usize) -> u64 {
        self.state().flushes.get(&node).copied().unwrap_or(0)
    }

    /// Has a flush failed that was to make a block durable?
    pub fn has_dropped(&self, number: u64) -> bool {
        self.state().dropped.contains(&BlockNo(number))
    }

    /// A flush of a node fails, which it will not hear of.
    pub fn drop_unflushed(&self, node: usize) {
        let mut state = self.state();
        state.failures += 1;
        let dropped = state.unflushed.remove(&Some(node)).unwrap_or_default();
        state.dropped.extend(dropped.into_keys());
    }

    /// Flushes of a node do not end from now on.
    pub fn hang(&self, node: usize) {
        self.state().hanging.insert(node);
    }

    /// What a node has written survives it.
    pub fn on_dead(&self, node: usize) {
        let mut state = self.state();
        state.failing.remove(&node);
        let written = state.unflushed.remove(&Some(node)).unwrap_or_default();
        add(state.unflushed.entry(None).or_default(), written);
    }

    /// Its power has failed: what it has now is what was durable. No node may use it meanwhile.
    pub async fn lose_unflushed(&self, cpu: &Processor) {
        let written = std::mem::take(&mut self.state().written);
        for number in written {
            let durable = self.state().durable.get(&number).cloned();
            let mut frames = cpu.kernel().allocate(cpu, 1).await;
            let bytes = frames[0].bytes_mut().expect("unshared");
            match durable {
                Some(content) => bytes.copy_from_slice(&content.bytes),
                None => bytes.fill(0),
            }
            let request = Request {
                action: Action::Write(block(number.0), frames),
                context: Context::synchronous(JobId::default()),
            };
            let stored = self.below.perform(cpu, request).await.and_then(Outcome::required);
            assert_eq!(stored, Ok(()));
        }
        self.state().unflushed.clear();
    }
}

fn add(to: &mut Contents, written: Contents) {
    for (number, content) in written {
        if to.get(&number).is_none_or(|known| known.number < content.number) {
            to.insert(number, content);
        }
    }
}

/// The device as one node has it.
pub struct Handle {
    pub node: usize,
    pub medium: Arc<Medium>,
}

impl Device for Handle {
    fn facts(&self) -> DeviceFacts {
        self.medium.below.facts()
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        Box::pin(async move {
            let Handle { node, medium } = self;
            let (is_flush, mut written) = (matches!(request.action, Action::Flush), Vec::new());
            if let Action::Write(range, frames) = &request.action {
                let contents = frames.iter().map(|frame| Box::from(frame.bytes()));
                written = range.blocks().iter().zip(contents).collect();
            }
            if is_flush {
                *medium.state().flushes.entry(*node).or_default() += 1;
            }
            if is_flush && medium.state().hanging.contains(node) {
                std::future::pending::<()>().await;
            }
            if is_flush && medium.state().failing.remove(node) {
                medium.drop_unflushed(*node);
                return Err(Errno::IO);
            }
            let of = [Some(*node), None];
            let covered: Vec<Contents> = if is_flush {
                of.iter().filter_map(|of| medium.state().unflushed.get(of).cloned()).collect()
            } else {
                Vec::new()
            };
            let outcome = medium.below.perform(cpu, request).await?;
            let mut state = medium.state();
            let state = &mut *state;
            for (number, bytes) in written {
                state.writes += 1;
                let content = Content { number: state.writes, bytes };
                state.written.insert(number);
                state.unflushed.entry(Some(*node)).or_default().insert(number, content);
            }
            for contents in covered {
                for unflushed in state.unflushed.values_mut() {
                    unflushed.retain(|number, content| contents.get(number) != Some(content));
                }
                add(&mut state.durable, contents);
            }
            Ok(outcome)
        })
    }
}
