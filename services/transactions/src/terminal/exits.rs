//! Replies that wait until what they say is durable.
//!
//! Those of one group leave in one routine when it has ended, in place of a task for each that is dispatched by itself
//! (OLTP-3).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::BytesMut;
use kernel::Processor;
use kernel::connection::{Header, Release};
use kernel::processor::Timed;
use kernel::rendezvous::Group;
use kernel::trace::{Event, Whose};
use pgwire::messages::response::TransactionStatus;

use super::block::Block;
use super::cycle::Until;
use super::refusal::Refusal;
use super::replies::{Replies, Slot};
use super::reply::ready;
use crate::store::{Commit, StoreError};

/// What a client waits for, since when.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    timed: Timed,
    event: Event,
    whose: Whose,
    steps: u64,
    bytes: u64,
}

impl Asked {
    pub(super) fn begin(cpu: &Processor, event: Event, whose: Whose, steps: u64, bytes: u64) -> Asked {
        Asked { timed: cpu.begin_timed(event, whose), event, whose, steps, bytes }
    }

    pub(super) fn end(self, cpu: &Processor) {
        let Asked { timed, event, whose, steps, bytes } = self;
        cpu.end_request(timed, event, whose, steps, bytes);
    }
}

/// A reply that waits.
pub(super) struct Exit {
    pub out: Header,
    pub slot: Slot,
    pub replies: Rc<Replies>,
    pub release: Release,
    pub asked: Asked,
    pub until: Until,
    pub block: Rc<Block>,
    /// Blocks that had ended when this was executed.
    pub ended: u64,
    pub status: TransactionStatus,
}

impl Exit {
    /// What follows `position` in it is not durable. `has_written`: not all that it tells of has only read.
    fn refuse(&mut self, position: usize, error: &StoreError, has_written: bool) {
        let mut out = BytesMut::from(&self.out[..position]);
        // What comes after a Flush may have been committed already.
        let is_undecided = has_written || self.until == Until::Flush;
        let refusal = if is_undecided { Refusal::undecided(error) } else { Refusal::from(error) };
        refusal.write(&mut out);
        self.block.fail_since(self.ended);
        if self.until == Until::Sync {
            ready(&mut out, after_failure(self.status));
        }
        self.out = Header::from_slice(&out);
    }

    fn leave(self, cpu: &Processor) {
        self.asked.end(cpu);
        self.replies.fill(self.slot, self.out, self.release);
    }
}

fn after_failure(before: TransactionStatus) -> TransactionStatus {
    match before {
        TransactionStatus::Idle => TransactionStatus::Idle,
        TransactionStatus::Transaction | TransactionStatus::Error => TransactionStatus::Error,
    }
}

/// The replies of one processor that wait for groups.
#[derive(Default)]
pub(super) struct Exits(RefCell<Vec<Waiting>>);

struct Waiting {
    group: Arc<Group>,
    /// Each with the position from which on it needs the group.
    exits: Vec<(usize, Exit)>,
}

impl Exits {
    /// Sends a reply when all `commits` are durable, each before what follows its position. Takes them.
    pub(super) fn add(self: &Rc<Self>, cpu: &Processor, commits: &mut Vec<(usize, Commit)>, exit: Exit) {
        match only_group(commits).filter(|_| cpu.switches().immediate_dispatch) {
            Some(group) => self.join(cpu, group, commits.pop(), exit),
            None => {
                let (cpu, commits) = (cpu.clone(), std::mem::take(commits));
                cpu.clone().spawn(async move { after_each(&cpu, commits, exit).await });
            }
        }
    }

    fn join(self: &Rc<Self>, cpu: &Processor, group: Arc<Group>, commit: Option<(usize, Commit)>, exit: Exit) {
        let Some((position, commit)) = commit else { return };
        let mut all = self.0.borrow_mut();
        if let Some(waiting) = all.iter_mut().find(|waiting| Arc::ptr_eq(&waiting.group, &group)) {
            return waiting.exits.push((position, exit));
        }
        all.push(Waiting { group: Arc::clone(&group), exits: vec![(position, exit)] });
        drop(all);
        let (cpu, exits) = (cpu.clone(), Rc::clone(self));
        cpu.clone().spawn(async move {
            let ended = commit.durable(&cpu).await;
            // A group that has ended gets no members.
            for (position, mut exit) in exits.take(&group) {
                if let Err(error) = &ended {
                    exit.refuse(position, error, true);
                }
                exit.leave(&cpu);
            }
        });
    }

    fn take(&self, group: &Arc<Group>) -> Vec<(usize, Exit)> {
        let mut all = self.0.borrow_mut();
        let at = all.iter().position(|waiting| Arc::ptr_eq(&waiting.group, group));
        at.map_or_else(Vec::new, |at| all.swap_remove(at).exits)
    }
}

/// That of the only commit, if it wrote something.
fn only_group(commits: &[(usize, Commit)]) -> Option<Arc<Group>> {
    if let [(_, commit)] = commits { commit.group().cloned() } else { None }
}

async fn after_each(cpu: &Processor, commits: Vec<(usize, Commit)>, mut exit: Exit) {
    let has_written = commits.iter().any(|(_, commit)| commit.group().is_some());
    for (position, commit) in commits {
        if let Err(error) = commit.durable(cpu).await {
            exit.refuse(position, &error, has_written);
            break;
        }
    }
    exit.leave(cpu);
}
