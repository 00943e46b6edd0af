//! What the kernel may look at or write to while an operation is under way, at addresses that don't change.

use std::os::fd::RawFd;

use io_uring::{opcode, squeue, types};
use libc::iovec;
use policy::unit::Stability;

use super::super::syscall;
use super::super::task::{Call, Task};
use super::regions::Regions;
use crate::{Errno, Op, Token};

pub(super) struct Slot {
    pub(super) task: Task,
    /// The header for vectored receives and sends.
    message: libc::msghdr,
    /// Is the kernel waiting for the socket to become ready, before the call is made again?
    pub(super) waiting: bool,
    under_way: bool,
    /// Does the kernel hand the call to a worker of its own, because it may block?
    with_worker: bool,
    /// Is a disk waited for?
    on_disk: bool,
}

/// Where a slot is; `user_data` of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotNo(pub(super) u32);

/// All slots. They are boxed, so that the table can grow under the kernel's eyes, and used again with their vectors.
#[derive(Default)]
pub(super) struct Slots {
    // The boxes are what keeps the addresses.
    #[expect(clippy::vec_box)]
    slots: Vec<Box<Slot>>,
    free: Vec<SlotNo>,
    with_workers: usize,
    on_disk: usize,
}

impl Slots {
    /// Takes a slot for an operation. Fails when it is known beforehand that the host has no way to do it.
    pub(super) fn begin(&mut self, token: Token, op: Op) -> Result<SlotNo, Errno> {
        let no = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Box::new(Slot {
                task: Task::idle(),
                message: syscall::message(&[]),
                waiting: false,
                under_way: false,
                with_worker: false,
                on_disk: false,
            }));
            SlotNo(self.slots.len() as u32 - 1)
        });
        let slot = self.get(no);
        slot.under_way = true;
        if let Err(errno) = slot.task.begin(token, op) {
            self.end(no);
            return Err(errno);
        }
        slot.with_worker = match slot.task.call {
            Call::Flush { .. } | Call::Empty { .. } => true,
            // The file system ends it in a worker, where it waits for the disk's flush.
            Call::Write { stability, .. } => stability == Stability::Stable,
            _ => false,
        };
        slot.on_disk =
            matches!(slot.task.call, Call::Read { .. } | Call::Write { .. } | Call::Flush { .. } | Call::Empty { .. });
        let (with_worker, on_disk) = (slot.with_worker, slot.on_disk);
        self.with_workers += usize::from(with_worker);
        self.on_disk += usize::from(on_disk);
        Ok(no)
    }

    pub(super) fn get(&mut self, no: SlotNo) -> &mut Slot {
        &mut self.slots[no.0 as usize]
    }

    pub(super) fn end(&mut self, no: SlotNo) {
        let slot = self.get(no);
        let with_worker = std::mem::take(&mut slot.with_worker);
        let on_disk = std::mem::take(&mut slot.on_disk);
        slot.task.trim();
        slot.waiting = false;
        slot.under_way = false;
        self.with_workers -= usize::from(with_worker);
        self.on_disk -= usize::from(on_disk);
        self.free.push(no);
    }

    /// How many operations are under way.
    pub(super) fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// How many of them the kernel hands to workers of its own.
    pub(super) fn with_workers(&self) -> usize {
        self.with_workers
    }

    /// How many of them transfer to or from a disk, or flush it.
    pub(super) fn on_disk(&self) -> usize {
        self.on_disk
    }

    pub(super) fn numbers(&self) -> Vec<SlotNo> {
        let slots = (0..).map(SlotNo).zip(&self.slots);
        let busy = slots.filter(|(_, slot)| slot.under_way);
        busy.map(|(no, _)| no).collect()
    }
}

impl Slot {
    /// The submission queue entry of the call that the task is at; none when io_uring has no such operation.
    ///
    /// For accepts it only waits for a client. The ring's own accept was tried and rejected: on a Unix socket that is
    /// shut down it tries again for ever inside the kernel, and one that completes while the machine is dropped leaves
    /// a connection that nobody knows of.
    pub(super) fn entry(&mut self, regions: &Regions, vectored_fixed: bool) -> Option<squeue::Entry> {
        let vectors = self.task.vectors();
        let fixed = || {
            let slot = regions.slot(self.task.region, vectors);
            slot.filter(|_| vectors.len() == 1 || vectored_fixed)
        };
        Some(match self.task.call {
            Call::Read { fd, at } => read(fd, at, vectors, fixed()),
            Call::Write { fd, at, stability } => write(fd, at, vectors, fixed(), syscall::write_flags(stability)),
            Call::Flush { fd } => opcode::Fsync::new(types::Fd(fd)).flags(types::FsyncFlags::DATASYNC).build(),
            Call::Empty { fd, at, len, how, .. } => {
                opcode::Fallocate::new(types::Fd(fd), len).offset(at).mode(how.mode()).build()
            }
            Call::Accept { fd } => poll(fd, libc::POLLIN),
            Call::Receive { fd } => {
                self.message = syscall::message(vectors);
                receive(fd, vectors, &mut self.message)
            }
            Call::Send { fd } => {
                self.message = syscall::message(vectors);
                send(fd, vectors, &self.message)
            }
            Call::Seek { .. } | Call::Populate { .. } | Call::Tree => return None,
        })
    }
}

/// Completes once, when the descriptor is ready or has failed.
pub(super) fn poll(fd: RawFd, events: libc::c_short) -> squeue::Entry {
    opcode::PollAdd::new(types::Fd(fd), events as u32).build()
}

fn read(fd: RawFd, at: u64, vectors: &[iovec], fixed: Option<u16>) -> squeue::Entry {
    let fd = types::Fd(fd);
    match (vectors, fixed) {
        ([v], Some(slot)) => opcode::ReadFixed::new(fd, v.iov_base.cast(), v.iov_len as u32, slot).offset(at).build(),
        ([v], None) => opcode::Read::new(fd, v.iov_base.cast(), v.iov_len as u32).offset(at).build(),
        (many, Some(slot)) => opcode::ReadvFixed::new(fd, many.as_ptr(), many.len() as u32, slot).offset(at).build(),
        (many, None) => opcode::Readv::new(fd, many.as_ptr(), many.len() as u32).offset(at).build(),
    }
}

fn write(fd: RawFd, at: u64, vectors: &[iovec], fixed: Option<u16>, flags: libc::c_int) -> squeue::Entry {
    let fd = types::Fd(fd);
    match (vectors, fixed) {
        ([v], Some(slot)) => {
            opcode::WriteFixed::new(fd, v.iov_base.cast(), v.iov_len as u32, slot).offset(at).rw_flags(flags).build()
        }
        ([v], None) => opcode::Write::new(fd, v.iov_base.cast(), v.iov_len as u32).offset(at).rw_flags(flags).build(),
        (many, Some(slot)) => {
            opcode::WritevFixed::new(fd, many.as_ptr(), many.len() as u32, slot).offset(at).rw_flags(flags).build()
        }
        (many, None) => opcode::Writev::new(fd, many.as_ptr(), many.len() as u32).offset(at).rw_flags(flags).build(),
    }
}

fn receive(fd: RawFd, vectors: &[iovec], message: &mut libc::msghdr) -> squeue::Entry {
    let fd = types::Fd(fd);
    match vectors {
        [v] => opcode::Recv::new(fd, v.iov_base.cast(), v.iov_len as u32).build(),
        _ => opcode::RecvMsg::new(fd, message).build(),
    }
}

fn send(fd: RawFd, vectors: &[iovec], message: &libc::msghdr) -> squeue::Entry {
    let fd = types::Fd(fd);
    match vectors {
        [v] => opcode::Send::new(fd, v.iov_base.cast(), v.iov_len as u32).flags(libc::MSG_NOSIGNAL).build(),
        _ => opcode::SendMsg::new(fd, message).flags(libc::MSG_NOSIGNAL as u32).build(),
    }
}
