//! The machine of the paper: a workstation, its board, the network, disk and file server.

use std::time::Duration;

use crate::drive::Drive;
use crate::drive::flash::NVME_2026;
use crate::drive::mechanical::Mechanical;
use crate::model::memory_board;
use crate::model::token_ring::{self, Network, Switched, TokenRing};

use super::super::Run;

/// Durations are of one page or block, rates in bytes a second.
#[derive(Clone, Copy)]
pub(super) struct Machine {
    pub(super) board: memory_board::Config,
    ring: token_ring::Config,
    has_lines: bool,
    latency: Duration,
    pub(super) file_bytes: u64,
    pub(super) block_bytes: u64,
    pub(super) kernel_page: Duration,
    pub(super) kernel_call: Duration,
    pub(super) kernel_fault: Duration,
    /// To be woken by the board, where a process waits for one page after another.
    pub(super) kernel_wakeup: Duration,
    pub(super) copy_bytes_per_second: u64,
    pub(super) drive: Drive,
    pub(super) disk_access: Duration,
    pub(super) ethernet_bits_per_second: u64,
    pub(super) frame: Duration,
    pub(super) rpc: Duration,
    pub(super) ahead: u64,
    pub(super) think: Duration,
}

/// Converts `value` from units of `unit_ns` nanoseconds.
fn time(value: f64, unit_ns: f64) -> Duration {
    Duration::from_nanos((value * unit_ns) as u64)
}

impl Machine {
    pub(super) fn of(run: &Run<'_>) -> Self {
        let (ms, us) = (|name| time(run.get(name), 1e6), |name| time(run.get(name), 1e3));
        let page_bytes = run.get("board.page") as u64;
        let framing = (run.get("ring.rate") / 8.0 / run.get("ring.peak") - 1.0).max(0.0);
        let board = memory_board::Config {
            word: Duration::from_nanos((run.get("vme.word") * 1e3) as u64),
            commands: run.get("board.fifo") as u32,
            command_words: 2,
            response_words: 1,
            turnaround: us("board.turnaround"),
            message_bytes: run.get("board.message") as u64,
            page_bytes,
            overlaps: false,
        };
        let ring = token_ring::Config {
            bits_per_second: (run.get("ring.rate") * 1e6) as u64,
            stations: run.get("ring.stations") as u32,
            station: us("ring.station"),
            overhead_bytes: 0,
        };
        Machine {
            board,
            ring: token_ring::Config { overhead_bytes: (page_bytes as f64 * framing) as u64, ..ring },
            has_lines: run.get("network.lines") >= 0.5,
            latency: us("network.latency"),
            file_bytes: (run.get("file.size") as u64) << 10,
            block_bytes: (run.get("fs.block") as u64).max(page_bytes),
            kernel_page: ms("kernel.page"),
            kernel_call: ms("kernel.call"),
            kernel_fault: ms("kernel.fault"),
            kernel_wakeup: ms("kernel.wakeup"),
            copy_bytes_per_second: (run.get("cpu.copy") * 1e6) as u64,
            drive: drive(run),
            disk_access: ms("cpu.disk"),
            ethernet_bits_per_second: (run.get("ethernet.rate") * 1e6) as u64,
            frame: ms("cpu.frame"),
            rpc: ms("cpu.rpc"),
            ahead: run.get("nfs.ahead") as u64,
            think: ms("share.think"),
        }
    }

    pub(super) fn network(&self, nodes: usize, has_lines: bool) -> Box<dyn Network> {
        let ring = self.ring;
        if has_lines {
            Box::new(Switched::new(nodes, ring.bits_per_second, self.latency, ring.overhead_bytes))
        } else {
            Box::new(TokenRing::new(token_ring::Config { stations: nodes as u32, ..ring }))
        }
    }

    /// The network between the workstations of figure 3.
    pub(super) fn own_network(&self) -> Box<dyn Network> {
        self.network(self.ring.stations as usize, self.has_lines)
    }

    pub(super) fn copy(&self, bytes: u64) -> Duration {
        let ns = u128::from(bytes) * 1_000_000_000 / u128::from(self.copy_bytes_per_second.max(1));
        Duration::from_nanos(ns as u64)
    }

    /// The kernel's work to bring `bytes` to a process, without the device's.
    pub(super) fn kernel(&self, bytes: u64) -> Duration {
        self.kernel_page * bytes.div_ceil(self.board.page_bytes) as u32 + self.copy(bytes)
    }

    pub(super) fn blocks(&self) -> u64 {
        self.file_bytes.div_ceil(self.block_bytes)
    }
}

fn drive(run: &Run<'_>) -> Drive {
    if run.get("disk.nvme") >= 0.5 {
        return Drive::Flash(NVME_2026);
    }
    let sectors_per_track = run.get("disk.sectors") as u32;
    Drive::Mechanical(Mechanical { sectors_per_track, ..Mechanical::named("scsi-1990") }.formatted())
}
