//! What the kernel may read or write while an operation is in flight, at stable addresses.

use std::os::fd::RawFd;

use io_uring::{opcode, squeue, types};
use libc::iovec;
use policy::unit::{ByteOffset, Stability};

use super::super::perform;
use super::super::task::{Call, Task};
use super::regions::Regions;
use crate::{Errno, Op, Token};

pub(super) struct Slot {
    pub(super) task: Task,
    /// The header for vectored receives and sends.
    message: libc::msghdr,
    /// A poll for the socket is in flight, before the call is made again.
    pub(super) waiting: bool,
    /// It ends, whatever its result.
    pub(super) cancelled: bool,
    in_flight: bool,
    /// The kernel hands the call to a worker, because it may block.
    with_worker: bool,
    /// It waits for a disk.
    pub(super) on_disk: bool,
}

/// Index of a slot; `user_data` of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotNo(pub(super) u32);

/// All slots. Boxed, so that the table can grow while the kernel uses them, and reused with their vectors.
#[derive(Default)]
pub(super) struct Slots {
    // The boxes keep the addresses stable.
    #[expect(clippy::vec_box)]
    slots: Vec<Box<Slot>>,
    free: Vec<SlotNo>,
    with_workers: usize,
    on_disk: usize,
}

impl Slots {
    /// Takes a slot for an operation. Fails when the host is known not to support it.
    pub(super) fn begin(&mut self, token: Token, op: Op) -> Result<SlotNo, Errno> {
        let no = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Box::new(Slot {
                task: Task::idle(),
                message: perform::message(&[]),
                waiting: false,
                cancelled: false,
                in_flight: false,
                with_worker: false,
                on_disk: false,
            }));
            SlotNo(self.slots.len() as u32 - 1)
        });
        let slot = self.get(no);
        slot.in_flight = true;
        if let Err(errno) = slot.task.begin(token, op) {
            self.end(no);
            return Err(errno);
        }
        slot.with_worker = match slot.task.call {
            Call::Flush { .. } | Call::WriteBack { .. } | Call::Zero { .. } => true,
            // The file system completes it in a worker, where it waits for the disk's flush.
            Call::Write { stability, .. } => stability == Stability::Stable,
            _ => false,
        };
        slot.on_disk = matches!(
            slot.task.call,
            Call::Read { .. } | Call::Write { .. } | Call::Flush { .. } | Call::WriteBack { .. } | Call::Zero { .. }
        );
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
        slot.cancelled = false;
        slot.in_flight = false;
        self.with_workers -= usize::from(with_worker);
        self.on_disk -= usize::from(on_disk);
        self.free.push(no);
    }

    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Operations in flight that the kernel hands to its workers.
    pub(super) fn with_workers(&self) -> usize {
        self.with_workers
    }

    /// Operations in flight that transfer to or from a disk, or flush it.
    pub(super) fn on_disk(&self) -> usize {
        self.on_disk
    }

    /// Those that wait for a client of a listener, or for a mapping's faults.
    pub(super) fn polling(&self, descriptor: RawFd) -> Vec<SlotNo> {
        let slots = (0..).map(SlotNo).zip(&self.slots);
        let waits =
            |slot: &Slot| matches!(slot.task.call, Call::Accept { fd } | Call::Faults { fd } if fd == descriptor);
        slots.filter(|(_, slot)| slot.in_flight && waits(slot)).map(|(no, _)| no).collect()
    }

    pub(super) fn numbers(&self) -> Vec<SlotNo> {
        let slots = (0..).map(SlotNo).zip(&self.slots);
        let busy = slots.filter(|(_, slot)| slot.in_flight);
        busy.map(|(no, _)| no).collect()
    }
}

impl Slot {
    /// The submission queue entry of the task's current call; `None` when io_uring has no such operation.
    ///
    /// For accepts it only polls for a client. Rejected: the ring's own accept. On a Unix socket that is shut down it
    /// retries forever inside the kernel, and one that completes while the machine is dropped leaks a connection. Faults
    /// are polled for, too: a read that finds none ends, since the descriptor is in non-blocking mode.
    pub(super) fn entry(&mut self, regions: &Regions) -> Option<squeue::Entry> {
        let vectors = self.task.vectors();
        let fixed = || regions.slot(self.task.region, vectors);
        Some(match self.task.call {
            Call::Read { fd, at } => read(fd, at, vectors, fixed()),
            Call::Write { fd, at, stability } => write(fd, at, vectors, fixed(), perform::write_flags(stability)),
            Call::Flush { fd } => opcode::Fsync::new(types::Fd(fd)).flags(types::FsyncFlags::DATASYNC).build(),
            Call::WriteBack { fd } => {
                // A length of 0 means all behind the offset.
                opcode::SyncFileRange::new(types::Fd(fd), 0).flags(perform::WRITE_BACK).build()
            }
            Call::Zero { fd, at, len, how, .. } => {
                opcode::Fallocate::new(types::Fd(fd), len).offset(at.0).mode(how.mode()).build()
            }
            Call::Accept { fd } | Call::Faults { fd } => poll(fd, libc::POLLIN),
            Call::Receive { fd } => {
                self.message = perform::message(vectors);
                receive(fd, vectors, &mut self.message)
            }
            Call::Send { fd } => {
                self.message = perform::message(vectors);
                send(fd, vectors, &self.message)
            }
            Call::FindData { .. } | Call::Populate { .. } | Call::Tree => return None,
        })
    }
}

/// Completes once, when the descriptor is ready or has failed.
pub(super) fn poll(fd: RawFd, events: libc::c_short) -> squeue::Entry {
    opcode::PollAdd::new(types::Fd(fd), events as u32).build()
}

fn read(fd: RawFd, at: ByteOffset, vectors: &[iovec], fixed: Option<u16>) -> squeue::Entry {
    let (fd, at) = (types::Fd(fd), at.0);
    match (vectors, fixed) {
        ([v], Some(slot)) => opcode::ReadFixed::new(fd, v.iov_base.cast(), v.iov_len as u32, slot).offset(at).build(),
        ([v], None) => opcode::Read::new(fd, v.iov_base.cast(), v.iov_len as u32).offset(at).build(),
        (many, Some(slot)) => opcode::ReadvFixed::new(fd, many.as_ptr(), many.len() as u32, slot).offset(at).build(),
        (many, None) => opcode::Readv::new(fd, many.as_ptr(), many.len() as u32).offset(at).build(),
    }
}

fn write(fd: RawFd, at: ByteOffset, vectors: &[iovec], fixed: Option<u16>, flags: libc::c_int) -> squeue::Entry {
    let (fd, at) = (types::Fd(fd), at.0);
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
