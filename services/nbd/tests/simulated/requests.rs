//! Many concurrent requests on one connection: every byte is what its own part of the disk must hold, whatever the
//! others do and however the network cuts it.

use crate::client::{Answer, ClientError};
use crate::scene::{Connected, Setup, serve};
use futures_util::future::join_all;
use kernel::device::{Delay, DeviceRef, RamDisk};
use nbd::proto::{NbdError, cmd, state};
use policy::unit::{BLOCK_BYTES, DiskNo};
use sim::NetworkConfig;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use testkit::random::Random;
use testkit::rounds::for_seeds;

const LANES: u64 = 16;
/// Bytes of each lane but the last one: neighbours share blocks.
const NARROW: u64 = 20_003;
/// Bytes of the last lane: its requests exceed what the server receives, or sends, at once.
const WIDE: u64 = 2_100_001;
const DISK_BYTES: u64 = (LANES - 1) * NARROW + WIDE;
const ROUNDS: u64 = 12;

/// A part of the disk and its content; one request in flight.
struct Lane {
    client: Rc<Connected>,
    structured: bool,
    part: Range<u64>,
    model: Vec<u8>,
    random: Random,
}

impl Lane {
    async fn run(mut self) {
        for _ in 0..ROUNDS {
            let (at, len) = self.draw_range();
            let fua = if self.random.chance(100) { cmd::FLAG_FUA } else { 0 };
            match self.random.below(14) {
                0..4 => self.write(at, len, fua).await,
                4..8 => self.read(at, len).await,
                8 => self.zero(at, len, fua).await,
                9 => self.trim(at, len, fua).await,
                10 => self.look_at_extents(at, len).await,
                11 => self.read_in_one_piece(at, len).await,
                12 => drop(self.ask(cmd::CACHE, 0, at, len).await.expect("cached")),
                _ => self.client.flush().await.expect("flushed"),
            }
        }
        let len = self.model.len();
        self.read(0, len).await;
    }

    /// A range within the part: often small, often whole blocks of the disk, sometimes empty.
    fn draw_range(&mut self) -> (usize, usize) {
        let all = self.model.len() as u64;
        let at = self.random.below(all);
        let most = all - at;
        let len = match self.random.below(8) {
            0 => most,
            1..3 => self.random.below(most.min(700) + 1),
            3 => 0,
            _ => self.random.below(most + 1),
        };
        let to_block = (self.part.start + at).next_multiple_of(BLOCK_BYTES) - self.part.start;
        if self.random.chance(400) && to_block + BLOCK_BYTES <= all {
            let blocks = (all - to_block) / BLOCK_BYTES;
            return (to_block as usize, (BLOCK_BYTES * (1 + self.random.below(blocks))) as usize);
        }
        (at as usize, len as usize)
    }

    async fn ask(&self, kind: u16, flags: u16, at: usize, len: usize) -> Result<Answer, ClientError> {
        self.client.request(kind, flags, self.part.start + at as u64, len as u32, &[]).await
    }

    async fn write(&mut self, at: usize, len: usize, fua: u16) {
        let seed = self.random.next();
        // Neighbouring bytes, blocks and rounds differ.
        let data: Vec<u8> =
            (0..len as u64).map(|at| ((at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
        let offset = self.part.start + at as u64;
        self.client.request(cmd::WRITE, fua, offset, len as u32, &data).await.expect("written");
        self.model[at..at + len].copy_from_slice(&data);
    }

    async fn read(&mut self, at: usize, len: usize) {
        let data = self.ask(cmd::READ, 0, at, len).await.expect("read").data;
        self.assert_is(at, &data, len);
    }

    fn assert_is(&self, at: usize, data: &[u8], len: usize) {
        assert_eq!(data.len(), len);
        if data == &self.model[at..at + len] {
            return;
        }
        let wrong = data.iter().zip(&self.model[at..]).position(|(found, expected)| found != expected);
        panic!("{at}+{len} in {:?} is not what it was, from byte {wrong:?} on", self.part);
    }

    async fn zero(&mut self, at: usize, len: usize, fua: u16) {
        let no_hole = if self.random.chance(500) { cmd::FLAG_NO_HOLE } else { 0 };
        let fast = if self.random.chance(300) { cmd::FLAG_FAST_ZERO } else { 0 };
        self.ask(cmd::WRITE_ZEROES, fua | no_hole | fast, at, len).await.expect("zeroed");
        self.model[at..at + len].fill(0);
    }

    /// Trimmed bytes are zero or what they were.
    async fn trim(&mut self, at: usize, len: usize, fua: u16) {
        self.ask(cmd::TRIM, fua, at, len).await.expect("trimmed");
        let data = self.ask(cmd::READ, 0, at, len).await.expect("read").data;
        let old = &mut self.model[at..at + len];
        assert!(
            data.iter().zip(old.iter()).all(|(found, old)| found == old || *found == 0),
            "trimmed to something else"
        );
        old.copy_from_slice(&data);
    }

    /// An extent reported as zero must be zero.
    async fn look_at_extents(&mut self, at: usize, len: usize) {
        let one = if self.random.chance(300) { cmd::FLAG_REQ_ONE } else { 0 };
        let answer = self.ask(cmd::BLOCK_STATUS, one, at, len).await;
        if !self.structured || len == 0 {
            assert_eq!(answer, Err(ClientError::Refused(NbdError::EINVAL)));
            return;
        }
        let extents = answer.expect("extents").extents;
        assert!(!extents.is_empty() && (one == 0 || extents.len() == 1), "{} extents", extents.len());
        let mut from = at;
        for (bytes, flags) in extents {
            let to = from + bytes as usize;
            assert!(bytes > 0 && to <= at + len, "an extent up to {to} of {at}+{len}");
            let zero = self.model[from..to].iter().all(|byte| *byte == 0);
            assert!(flags & state::ZERO == 0 || zero, "{from}..{to} in {:?} is said to be zero", self.part);
            from = to;
        }
    }

    async fn read_in_one_piece(&mut self, at: usize, len: usize) {
        match self.ask(cmd::READ, cmd::FLAG_DF, at, len).await {
            Ok(answer) => self.assert_is(at, &answer.data, len),
            Err(error) if self.structured => {
                assert_eq!(error, ClientError::Refused(NbdError::EOVERFLOW));
                assert!(len > 65_536, "{len} bytes must be possible in one piece");
            }
            Err(error) => assert_eq!(error, ClientError::Refused(NbdError::EINVAL)),
        }
    }
}

#[test]
fn sixteen_requests_at_once_keep_to_their_parts_of_the_disk() {
    for_seeds("sixteen_requests_at_once_keep_to_their_parts_of_the_disk", 20, |seed| {
        let mut random = Random(seed);
        let mut device: DeviceRef = Arc::new(RamDisk::new(DISK_BYTES, DiskNo(0)));
        if random.chance(500) {
            device = Arc::new(Delay::new(device, Duration::from_micros(1 + random.below(3000))));
        }
        let memory = if random.chance(500) { 4 << 20 } else { 16 << 20 };
        let network = NetworkConfig::drawn(seed);
        let setup = Setup { device, memory, network, ..Setup::new(seed, DISK_BYTES) };
        let structured = random.chance(500);
        serve(setup, async move |cpu, route| {
            let client = route.client(&cpu, "disk", structured).await;
            assert_eq!(client.size, DISK_BYTES);
            let lanes = (0..LANES).map(|no| {
                let end = if no == LANES - 1 { DISK_BYTES } else { (no + 1) * NARROW };
                let part = no * NARROW..end;
                let model = vec![0; (part.end - part.start) as usize];
                let random = Random(seed * LANES + no);
                Lane { client: Rc::clone(&client), structured, part, model, random }.run()
            });
            join_all(lanes).await;
        });
    });
}
