//! Channels and their devices: disks, the front-end processor's two lines, a tape.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use crate::model::{Handler, Signals, Virtual, WaiterId};
use policy::unit::Instant;

/// The channels' completions for the processor.
pub struct Channels {
    time: Virtual,
    /// Devices whose I/O has ended and was not taken yet.
    ended: RefCell<VecDeque<usize>>,
    /// The processor, while it takes interrupts.
    enabled: Cell<Option<WaiterId>>,
    /// Ends of I/O.
    pub signals: Signals,
}

impl Channels {
    pub fn new(time: &Virtual) -> Rc<Self> {
        time.handled(|signals| Channels {
            time: time.clone(),
            ended: RefCell::default(),
            enabled: Cell::new(None),
            signals,
        })
    }

    pub fn take(&self) -> Option<usize> {
        self.ended.borrow_mut().pop_front()
    }

    /// Waits until `end` with interrupts enabled. Was it interrupted?
    pub async fn interrupted_before(&self, end: Instant) -> bool {
        self.enabled.set(Some(self.time.current()));
        let mut sleep = pin!(self.time.sleep_until(end));
        let interrupted = poll_fn(|context| {
            if self.ended.borrow().is_empty() {
                sleep.as_mut().poll(context).map(|()| false)
            } else {
                Poll::Ready(true)
            }
        })
        .await;
        self.enabled.set(None);
        interrupted
    }
}

impl Handler for Channels {
    fn on_signal(&self, device: u64) {
        self.ended.borrow_mut().push_back(device as usize);
        if let Some(processor) = self.enabled.get() {
            self.time.wake(processor);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A disk of the data base.
    Disk,
    /// Messages from or to the front-end processor.
    FrontEnd,
    Tape,
}

#[derive(Clone, Copy, Debug)]
pub struct DeviceTimes {
    pub seek_ns: u64,
    pub rotation_ns: u64,
    pub transfer_ns: u64,
    /// A message from or to the front-end processor.
    pub front_end_ns: u64,
    pub tape_ns: u64,
}

pub const MESSAGES: usize = 0;
pub const ANSWERS: usize = 1;
pub const JOURNAL: usize = 2;
/// The first disk: modules of the system lie there.
pub const SYSTEM: usize = DISKS;
pub const DISKS: usize = 3;

/// The devices of the I/O supervisor: an I/O is for a region, and a device does one at a time.
pub struct Devices {
    time: Virtual,
    ends: Signals,
    times: DeviceTimes,
    all: Vec<Device>,
}

#[derive(Clone, Default)]
struct Device {
    active: Option<usize>,
    waiting: VecDeque<usize>,
    used: Used,
}

/// The counter of a device (the paper's 1.2 (1)), and how long it was busy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    pub ios: u64,
    pub busy_ns: u64,
}

impl Devices {
    pub fn new(disks: usize, times: DeviceTimes, time: &Virtual, ends: Signals) -> Self {
        let all = vec![Device::default(); DISKS + disks];
        Devices { time: time.clone(), ends, times, all }
    }

    /// Any disk, with equal probability.
    pub fn any_disk(&self) -> usize {
        DISKS + self.time.below((self.all.len() - DISKS) as u64) as usize
    }

    pub fn kind(&self, device: usize) -> Kind {
        match device {
            MESSAGES | ANSWERS => Kind::FrontEnd,
            JOURNAL => Kind::Tape,
            _ => Kind::Disk,
        }
    }

    /// An I/O for a region, started at `at` or when those before it have been taken.
    pub fn issue(&mut self, device: usize, region: usize, at: Instant) {
        self.all[device].waiting.push_back(region);
        if self.all[device].active.is_none() {
            self.start(device, at);
        }
    }

    /// Takes the end of a device's I/O; returns its region. The next one starts at `at`.
    pub fn end(&mut self, device: usize, at: Instant) -> Option<usize> {
        let ended = self.all[device].active.take();
        self.start(device, at);
        ended
    }

    /// By device.
    pub fn used(&self) -> Vec<Used> {
        self.all.iter().map(|device| device.used).collect()
    }

    fn start(&mut self, device: usize, at: Instant) {
        self.all[device].active = self.all[device].waiting.pop_front();
        if self.all[device].active.is_some() {
            let service = self.service(self.kind(device));
            let used = &mut self.all[device].used;
            (used.ios, used.busy_ns) = (used.ios + 1, used.busy_ns + service.as_nanos() as u64);
            self.ends.at(at + service, device as u64);
        }
    }

    fn service(&self, kind: Kind) -> Duration {
        let DeviceTimes { seek_ns, rotation_ns, transfer_ns, front_end_ns, tape_ns } = self.times;
        let uniform = |mean_ns: u64| self.time.below(2 * mean_ns + 1);
        Duration::from_nanos(match kind {
            Kind::Disk => uniform(seek_ns) + uniform(rotation_ns / 2) + transfer_ns,
            Kind::FrontEnd => front_end_ns,
            Kind::Tape => tape_ns,
        })
    }
}
