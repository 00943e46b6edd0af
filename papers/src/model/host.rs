//! A workstation on the network: its processor, the kernel's work for each datagram, and its Ethernet interface.
//!
//! The interface is the Am7990 (LANCE) of the Sony NEWS: frames lie in 16 KB of memory of its own, and the processor
//! copies each of them there and back (NetBSD, `sys/arch/newsmips/dev/if_le.c`: `sc_memsize = 0x4000`,
//! `lance_copytobuf_contig`). Two frames fit in the half for sending, so that one is copied while another is on the
//! wire. Received frames are taken one after another by an interrupt. They are never lost: the processor takes a third
//! of a frame's time on the wire, so eight buffers do not fill.

use std::rc::Rc;
use std::time::Duration;

use super::Virtual;
use super::ethernet::Ethernet;
use super::wait::{Held, Mailbox, Resource};

/// Costs on the processor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// One remote procedure call on one side: request and reply through RPC, XDR, UDP, file system entry, and the
    /// switch to the daemon that handles it.
    pub rpc: Duration,
    /// One frame sent or received: interrupt, driver, IP fragment.
    pub frame: Duration,
    /// Memory copied, bytes a second.
    pub copy_bytes_per_second: u64,
    /// Copied to or from the interface's memory, bytes a second.
    pub interface_bytes_per_second: u64,
    /// UDP checksum, bytes a second; `None` if it is off.
    pub checksum_bytes_per_second: Option<u64>,
    /// A disk access: start, interrupt, switch to the process that waited.
    pub disk_access: Duration,
}

impl Costs {
    pub fn copy(&self, bytes: u64) -> Duration {
        at_rate(bytes, self.copy_bytes_per_second)
    }

    fn frame(&self, bytes: u64) -> Duration {
        let summed = self.checksum_bytes_per_second.map_or(Duration::ZERO, |rate| at_rate(bytes, rate));
        self.frame + at_rate(bytes, self.interface_bytes_per_second) + summed
    }
}

fn at_rate(bytes: u64, per_second: u64) -> Duration {
    Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(per_second.max(1))) as u64)
}

/// Frames that the interface holds for sending.
const TRANSMIT_BUFFERS: u32 = 2;

/// A workstation. `M` is the content of its datagrams.
pub struct Host<M> {
    processors: Resource,
    costs: Costs,
    ethernet: Ethernet,
    queued: Mailbox<Frame<M>>,
    copied: Mailbox<(Frame<M>, Held)>,
    /// Frames that arrived and whose interrupt was not taken yet.
    received: Mailbox<Frame<M>>,
    inbox: Mailbox<M>,
}

struct Frame<M> {
    bytes: u64,
    /// Present on the last frame of a datagram.
    message: Option<M>,
}

impl<M: 'static> Host<M> {
    pub fn new(time: &Virtual, ethernet: &Ethernet, processors: u32, costs: Costs) -> Rc<Self> {
        Rc::new(Host {
            processors: Resource::new(time, processors),
            costs,
            ethernet: ethernet.clone(),
            queued: Mailbox::new(time),
            copied: Mailbox::new(time),
            received: Mailbox::new(time),
            inbox: Mailbox::new(time),
        })
    }

    /// Starts the driver and the interface, which sends everything to `peer`. Both hosts need that.
    pub fn connect(self: &Rc<Self>, time: &Virtual, peer: &Rc<Self>) {
        let (driver, buffers) = (Rc::clone(self), Resource::new(time, TRANSMIT_BUFFERS));
        time.spawn(async move {
            loop {
                let frame = driver.queued.receive().await;
                let buffer = buffers.acquire().await;
                driver.compute(driver.costs.frame(frame.bytes)).await;
                driver.copied.send((frame, buffer));
            }
        });
        let (interface, peer) = (Rc::clone(self), Rc::clone(peer));
        time.spawn(async move {
            loop {
                let (frame, buffer) = interface.copied.receive().await;
                interface.ethernet.transmit(frame.bytes).await;
                drop(buffer);
                peer.received.send(frame);
            }
        });
        let interrupt = Rc::clone(self);
        time.spawn(async move {
            loop {
                let frame = interrupt.received.receive().await;
                interrupt.compute(interrupt.costs.frame(frame.bytes)).await;
                if let Some(message) = frame.message {
                    interrupt.inbox.send(message);
                }
            }
        });
    }

    /// Queues a datagram of `payload_bytes`.
    pub fn send(&self, message: M, payload_bytes: u64) {
        let frames = self.ethernet.fragments(payload_bytes);
        let last = frames.len() - 1;
        let mut message = Some(message);
        for (index, bytes) in frames.into_iter().enumerate() {
            let message = if index == last { message.take() } else { None };
            self.queued.send(Frame { bytes, message });
        }
    }

    pub async fn receive(&self) -> M {
        self.inbox.receive().await
    }

    /// Uses a processor for that long.
    pub async fn compute(&self, time: Duration) {
        if !time.is_zero() {
            self.processors.serve(time).await;
        }
    }

    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Working time of all its processors so far.
    pub fn busy(&self) -> Duration {
        self.processors.busy()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Simulation;
    use super::super::ethernet::Config;
    use super::*;

    #[test]
    fn a_large_datagram_arrives_after_its_frames_were_copied_sent_and_copied_one_behind_another() {
        let run = Simulation::new(1);
        let ethernet = Ethernet::new(&run, Config { bits_per_second: 10_000_000, mtu_bytes: 1500 });
        let costs = Costs {
            rpc: Duration::ZERO,
            frame: Duration::from_micros(200),
            copy_bytes_per_second: 10_000_000,
            interface_bytes_per_second: 10_000_000,
            checksum_bytes_per_second: None,
            disk_access: Duration::ZERO,
        };
        let (sender, receiver) = (Host::new(&run, &ethernet, 1, costs), Host::new(&run, &ethernet, 1, costs));
        sender.connect(&run, &receiver);
        receiver.connect(&run, &sender);
        sender.send("whole", 8192);
        let inbox = Rc::clone(&receiver);
        let word: &str = run.complete(async move { inbox.receive().await }).expect("it arrived");
        let at = run.now();
        let wire = ethernet.busy();
        let first_and_last = costs.frame(1500) + costs.frame(8192 + 8 - 5 * 1480 + 20);
        assert_eq!(word, "whole");
        assert_eq!(
            at.ns(),
            (wire + first_and_last).as_nanos() as u64,
            "the rest was done while frames were on the wire"
        );
    }
}
