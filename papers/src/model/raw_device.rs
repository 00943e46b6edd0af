//! Reads of a raw device, and the devices of TOP-1: a processor's work for them, and that of the disk subsystem.
//!
//! As the paper describes them (Kawachiya, Shiratori, Yamasaki: "Comparison of device access methods in MP UNIX"):
//! `scsihd` is a SCSI disk behind a processor of its own, which executes commands of the other nine; `testdev` is on
//! the same processor, which waits for about 17 ms; `ramdisk` is a part of the shared memory. With a funnel, the thread
//! is bound to `unix_master` while it is in the driver (OSF/1, as [`policy::access`]).

use std::time::Duration;

use policy::access::Access;
use policy::unit::{ByteRange, Class, ProcessorId};

use super::Virtual;
use super::bus::Bus;
use super::completion::{Completions, Handled};
use super::disk::Disk;
use super::lock::{SpinLock, Tries};
use super::processors::Thread;
use super::wait::Resource;

/// A processor's work for a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// System call and return, before and after the driver.
    pub call: Duration,
    /// The driver's upper half and what is around it: wiring the buffer, starting the device.
    pub start: Duration,
    /// The part of it with the driver's lock held.
    pub locked: Duration,
}

#[derive(Clone)]
pub enum Backing {
    Memory {
        bus: Bus,
        /// Bus time of a read.
        transfer: Duration,
        bursts: u32,
        /// Processor time of the concurrent copy.
        copy: Duration,
    },
    /// `testdev`: answers after a fixed time, a limited number of requests at a time.
    Fixed { servers: Resource, time: Duration },
    /// `scsihd`: a disk behind a processor that handles one command at a time.
    Disk {
        controller: Resource,
        /// Its work on a command, half before the disk and half after it.
        command: Duration,
        /// An array, of which each has every block in turn.
        disks: Vec<Disk>,
    },
}

/// A raw device. Clones are the same device.
#[derive(Clone)]
pub struct RawDevice {
    time: Virtual,
    access: Access,
    costs: Costs,
    lock: SpinLock,
    completions: Completions,
    backing: Backing,
}

impl RawDevice {
    /// `access` starts the device; `completions` delivers.
    pub fn new(time: &Virtual, access: Access, costs: Costs, completions: Completions, backing: Backing) -> Self {
        RawDevice { time: time.clone(), access, costs, lock: SpinLock::new(time), completions, backing }
    }

    pub async fn read(&self, thread: &Thread, range: ByteRange) {
        let Costs { call, start, locked } = self.costs;
        if let Some(master) = self.access.only() {
            thread.run_in_kernel(call).await;
            thread.bind(master).await;
            thread.run_in_kernel(start.saturating_sub(locked)).await;
        } else {
            thread.run_in_kernel(call + start.saturating_sub(locked)).await;
        }
        match &self.backing {
            Backing::Memory { bus, transfer, bursts, copy } => bus.copy(thread, *copy, *transfer, *bursts).await,
            Backing::Fixed { .. } | Backing::Disk { .. } => {
                self.lock.hold(thread, locked).await;
                self.submit(thread, range);
                thread.sleep().await;
            }
        }
        if self.access.only().is_some() {
            thread.unbind();
        }
    }

    /// How long the device, or the bus of a memory, has been busy so far.
    pub fn busy(&self) -> Duration {
        match &self.backing {
            Backing::Memory { bus, .. } => bus.busy(),
            Backing::Fixed { servers, .. } => servers.busy(),
            // In the mean, if they are several.
            Backing::Disk { disks, .. } => {
                disks.iter().map(|disk| disk.counters().busy).sum::<Duration>() / disks.len().max(1) as u32
            }
        }
    }

    /// How long processors have spun for the driver's lock so far.
    pub fn spun(&self) -> Duration {
        self.lock.spun()
    }

    /// Of the driver's lock.
    pub fn tries(&self) -> Tries {
        self.lock.tries()
    }

    pub fn handled(&self) -> Handled {
        self.completions.handled()
    }

    fn submit(&self, thread: &Thread, range: ByteRange) {
        let (device, id) = (self.clone(), thread.id());
        let initiator = thread.processor().unwrap_or(ProcessorId(0));
        self.time.spawn(async move {
            device.serve(range).await;
            device.completions.deliver(id, initiator);
        });
    }

    async fn serve(&self, range: ByteRange) {
        match &self.backing {
            Backing::Memory { .. } => (),
            Backing::Fixed { servers, time } => servers.serve(*time).await,
            Backing::Disk { controller, command, disks } => {
                controller.serve(*command / 2).await;
                let (number, count) = (range.at.0 / range.len.max(1), disks.len().max(1) as u64);
                let there = ByteRange::new(number / count * range.len, range.len);
                disks[(number % count) as usize].read(there, Class::Synchronous).await;
                controller.serve(*command / 2).await;
            }
        }
    }
}
