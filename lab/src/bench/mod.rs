//! `awase-lab bench`: Awase, nbdkit and qemu-nbd in one run, and each technique of Awase on and off; a load driver for
//! file servers, with NFS-Ganesha as a peer; mounts beside other clients; the speed of the lab and of recording events; every switch live;
//! checkpoints and starts of databases.

pub mod contender;
mod disks;
mod event;
mod figure;
mod fixture;
mod host;
mod lab;
mod live;
mod mount;
mod nfs;
mod plot;
pub mod programs;
mod repetitions;
mod report;
mod results;
mod sample;
mod slow_disk;
mod transactions;
mod usage;

use std::sync::Arc;

use anyhow::Result;
use clap::Subcommand;

use crate::measure::process::Interrupted;

/// What is measured.
#[derive(Debug, Subcommand)]
pub enum Bench {
    Disks(disks::Disks),
    Nfs(Box<nfs::Nfs>),
    Mount(mount::Mount),
    SlowDisk(slow_disk::SlowDiskCommand),
    Lab(self::lab::Lab),
    Event(event::Command),
    Live(live::Live),
    Usage(usage::Usage),
    Transactions(transactions::Transactions),
}

/// # Errors
/// When a program is missing, or a server or client fails.
pub fn run(bench: &Bench) -> Result<()> {
    let interrupted = Interrupted::default();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    match bench {
        Bench::Disks(command) => command.run(&interrupted),
        Bench::Nfs(command) => command.run(&interrupted),
        Bench::Mount(command) => command.run(&interrupted),
        Bench::SlowDisk(command) => command.run(&interrupted),
        Bench::Lab(command) => command.run(&interrupted),
        Bench::Event(command) => command.run(),
        Bench::Live(command) => command.run(&interrupted),
        Bench::Usage(command) => command.run(&interrupted),
        Bench::Transactions(command) => command.run(&interrupted),
    }
}
