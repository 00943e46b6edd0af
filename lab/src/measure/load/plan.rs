//! The sequence of requests of one connection.

use std::time::Instant;

use nfs3_types::nfs3::stable_how;

use super::{Length, Load, Operation, Order, Stability};
use crate::measure::spread::XorShift;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// READ at a byte of a file of the connection.
    Read {
        file: usize,
        offset: u64,
    },
    /// WRITE at a byte of a file of the connection.
    Write {
        file: usize,
        offset: u64,
        stable: stable_how,
    },
    /// COMMIT of a whole file.
    Commit {
        file: usize,
    },
    /// A flush of all writes, which counts into the last write's latency.
    Flush,
    /// GETATTR of a file of the connection.
    Attributes {
        file: usize,
    },
    /// CREATE of a slot's file.
    Create {
        slot: usize,
    },
    Remove {
        slot: usize,
    },
}

/// A step in flight.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    pub step: Step,
    pub start: Instant,
}

/// What to do with a free slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Step(Step),
    /// Nothing until all requests in flight are answered.
    Wait,
    End,
}

pub struct Plan {
    load: Load,
    position: u64,
    position_max: Option<u64>,
    ended: bool,
    uncommitted_bytes: u64,
    commits_due: usize,
    unflushed_writes: u32,
    created: Vec<bool>,
    random: XorShift,
}

impl Plan {
    /// `connection` is the connection's number.
    pub fn new(load: &Load, length: Length, connection: u32) -> Plan {
        let steps_of_a_pass = u64::from(load.files) * (load.file_bytes / u64::from(load.request_bytes));
        let first = if load.shared { steps_of_a_pass * u64::from(connection) / u64::from(load.connections) } else { 0 };
        Plan {
            load: *load,
            position: first,
            position_max: (length == Length::OnePass).then_some(first + steps_of_a_pass),
            ended: false,
            uncommitted_bytes: 0,
            commits_due: 0,
            unflushed_writes: 0,
            created: vec![false; load.in_flight as usize],
            random: XorShift(XorShift::SEED ^ u64::from(connection + 1)),
        }
    }

    /// Starts nothing new; sequences that were begun are completed.
    pub fn stop(&mut self) {
        self.ended = true;
    }

    /// The next request of a free slot, with `in_flight` requests in flight.
    pub fn next(&mut self, slot: usize, in_flight: usize) -> Next {
        self.ended |= self.position_max.is_some_and(|most| self.position >= most);
        match self.load.operation {
            Operation::CreateRemove => self.create_remove(slot),
            Operation::ReadAndAttributes(_) if self.position % 2 == 1 && !self.ended => {
                self.position += 1;
                Next::Step(Step::Attributes { file: 0 })
            }
            Operation::Read(order) | Operation::ReadAndAttributes(order) => {
                self.transfer(|file, offset| Step::Read { file, offset }, Some(order))
            }
            Operation::Overwrite(order, stability) => self.write(Some(order), stability, in_flight),
            Operation::Extend(stability) => self.write(None, stability, in_flight),
        }
    }

    /// What must follow an answered step, in the same slot.
    pub fn after(&mut self, step: Step) -> Option<Step> {
        let Operation::Overwrite(_, Stability::Flushed { writes: writes @ 1.. }) = self.load.operation else {
            return None;
        };
        self.unflushed_writes += u32::from(matches!(step, Step::Write { .. }));
        if self.ended || self.unflushed_writes < writes {
            return None;
        }
        self.unflushed_writes = 0;
        Some(Step::Flush)
    }

    fn create_remove(&mut self, slot: usize) -> Next {
        if self.created[slot] {
            self.created[slot] = false;
            return Next::Step(Step::Remove { slot });
        }
        if self.ended {
            return Next::End;
        }
        self.position += 1;
        self.created[slot] = true;
        Next::Step(Step::Create { slot })
    }

    fn write(&mut self, order: Option<Order>, stability: Stability, in_flight: usize) -> Next {
        let stable = match stability {
            Stability::FileSync | Stability::Flushed { .. } => stable_how::FILE_SYNC,
            Stability::Unstable { commit_bytes } => {
                let due = self.uncommitted_bytes >= commit_bytes || self.ended && self.uncommitted_bytes > 0;
                if due {
                    (self.uncommitted_bytes, self.commits_due) = (0, self.load.files as usize);
                }
                if self.commits_due > 0 {
                    if in_flight > 0 {
                        return Next::Wait;
                    }
                    self.commits_due -= 1;
                    return Next::Step(Step::Commit { file: self.commits_due });
                }
                stable_how::UNSTABLE
            }
        };
        let next = self.transfer(|file, offset| Step::Write { file, offset, stable }, order);
        if stable == stable_how::UNSTABLE && next != Next::End {
            self.uncommitted_bytes += u64::from(self.load.request_bytes);
        }
        next
    }

    /// A transfer in an order; without one, at increasing offsets that never wrap.
    fn transfer(&mut self, step: impl FnOnce(usize, u64) -> Step, order: Option<Order>) -> Next {
        if self.ended {
            return Next::End;
        }
        let (files, bytes) = (u64::from(self.load.files), u64::from(self.load.request_bytes));
        let blocks = self.load.file_bytes / bytes;
        let (file, block) = (self.position % files, self.position / files);
        self.position += 1;
        let (file, block) = match order {
            None => (file, block),
            Some(Order::Sequential) => (file, block % blocks),
            Some(Order::Random) => (file, self.random.number() % blocks),
        };
        Next::Step(step(file as usize, self.load.from + block * bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOREVER: Length = Length::UntilOver;

    fn steps(plan: &mut Plan, count: usize) -> Vec<Next> {
        (0..count).map(|_| plan.next(0, 0)).collect()
    }

    fn write(offset: u64) -> Next {
        Next::Step(Step::Write { file: 0, offset, stable: stable_how::UNSTABLE })
    }

    #[test]
    fn a_commit_waits_for_what_it_covers_and_one_comes_at_the_end() {
        let unstable = Stability::Unstable { commit_bytes: 8192 };
        let mut plan = Plan::new(&Load::new(Operation::Extend(unstable), 4, 4), FOREVER, 0);
        assert_eq!(steps(&mut plan, 2), [write(0), write(4096)]);
        assert_eq!(plan.next(0, 2), Next::Wait);
        let commit = Next::Step(Step::Commit { file: 0 });
        assert_eq!(steps(&mut plan, 2), [commit, write(8192)]);
        plan.stop();
        assert_eq!(plan.next(0, 1), Next::Wait);
        assert_eq!(steps(&mut plan, 2), [commit, Next::End]);
    }

    #[test]
    fn one_pass_reads_each_byte_of_each_file_once() {
        let load = Load { file_bytes: 12 << 10, files: 2, ..Load::new(Operation::Read(Order::Sequential), 4, 1) };
        let mut plan = Plan::new(&load, Length::OnePass, 0);
        let read = |file, offset| Next::Step(Step::Read { file, offset });
        let all = [read(0, 0), read(1, 0), read(0, 4096), read(1, 4096), read(0, 8192), read(1, 8192), Next::End];
        assert_eq!(steps(&mut plan, 7), all);
    }

    #[test]
    fn random_offsets_lie_in_the_file_and_on_blocks() {
        let load = Load { file_bytes: 64 << 10, ..Load::new(Operation::Read(Order::Random), 8, 1) };
        let mut plan = Plan::new(&load, FOREVER, 3);
        let mut seen = [false; 8];
        for next in steps(&mut plan, 1000) {
            let Next::Step(Step::Read { file: 0, offset }) = next else { panic!("{next:?}") };
            assert!(offset % 8192 == 0 && offset < 64 << 10, "{offset}");
            seen[offset as usize / 8192] = true;
        }
        assert_eq!(seen, [true; 8]);
    }

    #[test]
    fn what_was_created_is_removed_also_at_the_end() {
        let mut plan = Plan::new(&Load::new(Operation::CreateRemove, 4, 2), FOREVER, 0);
        assert_eq!(plan.next(1, 0), Next::Step(Step::Create { slot: 1 }));
        plan.stop();
        assert_eq!(plan.next(0, 1), Next::End);
        assert_eq!([plan.next(1, 0), plan.next(1, 0)], [Next::Step(Step::Remove { slot: 1 }), Next::End]);
    }

    #[test]
    fn a_flush_belongs_to_every_nth_write() {
        let flushed = |writes| Operation::Overwrite(Order::Sequential, Stability::Flushed { writes });
        let write = Step::Write { file: 0, offset: 0, stable: stable_how::FILE_SYNC };
        let mut plan = Plan::new(&Load::new(flushed(2), 4, 1), FOREVER, 0);
        assert_eq!([write, write, Step::Flush].map(|step| plan.after(step)), [None, Some(Step::Flush), None]);
        assert_eq!(Plan::new(&Load::new(flushed(0), 4, 1), FOREVER, 0).after(write), None);
    }

    #[test]
    fn connections_that_share_a_file_begin_in_parts_of_their_own() {
        let load = Load::new(Operation::Read(Order::Sequential), 4, 1);
        let load = Load { shared: true, connections: 2, from: 8192, file_bytes: 16384, ..load };
        let mut plan = Plan::new(&load, FOREVER, 1);
        let read = |offset| Next::Step(Step::Read { file: 0, offset });
        assert_eq!(steps(&mut plan, 4), [read(16384), read(20480), read(8192), read(12288)]);
    }
}
