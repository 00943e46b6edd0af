//! Awase, serving a directory.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::server::{await_answer, free_ports};
use crate::bench::process::{Interrupted, Process};
use crate::load::Endpoint;

pub struct Awase {
    pub process: Process,
    pub endpoint: Endpoint,
}

impl Awase {
    /// Starts a program with flags for a directory and waits until NFS and MOUNT answer. Its output goes to `place`, a
    /// directory of its own.
    pub fn start(
        program: &Path,
        flags: &[&str],
        directory: &Path,
        place: &Path,
        interrupted: &Interrupted,
    ) -> Result<Awase> {
        let [address] = free_ports()?;
        let mut command = Command::new(program);
        command.arg("serve").arg("--data").arg(place).args(["--nbd", "none", "--nbd-unix", "none"]);
        command.arg("--nfs").arg(address.to_string());
        command.arg("--export");
        command
            .arg(format!("name=files,kind=directory,secure=false,squash=no_root_squash,path={}", directory.display()));
        command.args(flags);
        let process = Process::start(command, &place.join("awase.log"), interrupted)?;
        let endpoint = Endpoint { nfs: address, mount: address, export: "/files".into(), uid: 0, gid: 0 };
        let mut awase = Awase { process, endpoint };
        let answer = await_answer(&mut awase.process, &awase.endpoint);
        answer.context("Awase did not start")?;
        Ok(awase)
    }
}
