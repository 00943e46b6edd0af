//! An Ethernet: one shared medium, one frame after another (IEEE 802.3-1985).
//!
//! A frame costs its preamble (8 bytes), header (14), data (at least 46), check sequence (4) and the gap of 96 bit
//! times before the next. A UDP datagram larger than a frame travels as IP fragments (RFC 791). Stations that find the
//! medium busy queue. Collisions are left out: with two stations and large frames they cost little (Boggs, Mogul and
//! Kent, "Measured capacity of an Ethernet: myths and reality", SIGCOMM 1988).

use std::time::Duration;

use super::Virtual;
use super::wait::Resource;

/// Bytes of an IP header without options (RFC 791).
pub const IP_HEADER_BYTES: u64 = 20;
/// Bytes of a UDP header (RFC 768).
pub const UDP_HEADER_BYTES: u64 = 8;
const FRAMING_BYTES: u64 = 8 + 14 + 4;
const DATA_BYTES_MIN: u64 = 46;
const GAP_BITS: u64 = 96;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub bits_per_second: u64,
    /// Data of the largest frame, in bytes: 1,500.
    pub mtu_bytes: u64,
}

/// The medium and what it carried.
#[derive(Clone)]
pub struct Ethernet {
    config: Config,
    medium: Resource,
}

impl Ethernet {
    pub fn new(time: &Virtual, config: Config) -> Self {
        Ethernet { config, medium: Resource::new(time, 1) }
    }

    /// Waits for the medium and sends a frame with `data_bytes` of data.
    pub async fn transmit(&self, data_bytes: u64) {
        self.medium.serve(self.frame_time(data_bytes)).await;
    }

    /// How long a frame with `data_bytes` of data occupies the medium, the gap behind it included.
    pub fn frame_time(&self, data_bytes: u64) -> Duration {
        let bits = (data_bytes.max(DATA_BYTES_MIN) + FRAMING_BYTES) * 8 + GAP_BITS;
        let ns = u128::from(bits) * 1_000_000_000 / u128::from(self.config.bits_per_second.max(1));
        Duration::from_nanos(ns as u64)
    }

    /// The data bytes of the frames that carry a UDP datagram with `payload_bytes` of payload.
    pub fn fragments(&self, payload_bytes: u64) -> Vec<u64> {
        // All but the last carry a multiple of 8 bytes.
        let most = ((self.config.mtu_bytes.saturating_sub(IP_HEADER_BYTES)) / 8 * 8).max(8);
        let mut left = payload_bytes + UDP_HEADER_BYTES;
        let mut frames = Vec::new();
        while left > most {
            frames.push(most + IP_HEADER_BYTES);
            left -= most;
        }
        frames.push(left + IP_HEADER_BYTES);
        frames
    }

    pub fn busy(&self) -> Duration {
        self.medium.busy()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Simulation;
    use super::*;

    const TEN_MEGABIT: Config = Config { bits_per_second: 10_000_000, mtu_bytes: 1500 };

    #[test]
    fn eight_kilobytes_travel_in_six_frames_and_take_seven_milliseconds() {
        let run = Simulation::new(1);
        let ethernet = Ethernet::new(&run, TEN_MEGABIT);
        let frames = ethernet.fragments(8192 + 100);
        assert_eq!(frames.len(), 6);
        assert_eq!(frames.iter().sum::<u64>(), 8192 + 100 + 8 + 6 * 20);
        let time: Duration = frames.iter().map(|bytes| ethernet.frame_time(*bytes)).sum();
        assert!(time > Duration::from_micros(6800) && time < Duration::from_micros(7000), "{time:?}");
    }

    #[test]
    fn the_smallest_frame_takes_67_microseconds_with_its_gap_and_the_next_one_waits_for_it() {
        let run = Simulation::new(1);
        let ethernet = Ethernet::new(&run, TEN_MEGABIT);
        for _ in 0..2 {
            let sender = ethernet.clone();
            run.spawn(async move { sender.transmit(1).await });
        }
        run.run();
        assert_eq!(ethernet.busy(), Duration::from_nanos(2 * 67_200));
        assert_eq!(run.now().ns(), 2 * 67_200);
    }
}
