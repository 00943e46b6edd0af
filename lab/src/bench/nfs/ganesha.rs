//! NFS-Ganesha with its file system abstraction for local directories (VFS), as it is installed.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nfs3_types::portmap;

use super::server::{START_PATIENCE, await_answer, free_ports};
use crate::bench::process::{Interrupted, Process};
use crate::load::Endpoint;

/// Printed when a program is missing.
const PACKAGES: &str = "NFS-Ganesha needs: sudo apt-get install nfs-ganesha nfs-ganesha-vfs rpcbind";

/// Ganesha, serving a directory, and the port mapper without which it does not start.
pub struct Ganesha {
    pub process: Process,
    pub endpoint: Endpoint,
    port_mapper: Option<Process>,
}

impl Ganesha {
    /// Starts Ganesha for a directory and waits until NFS and MOUNT answer. Its configuration and log go to `place`, a
    /// directory of its own.
    pub fn start(directory: &Path, place: &Path, interrupted: &Interrupted) -> Result<Ganesha> {
        let port_mapper = start_port_mapper(place, interrupted).context(PACKAGES)?;
        let [nfs, mount] = free_ports()?;
        let configuration = place.join("ganesha.conf");
        fs::write(&configuration, configure(directory, nfs.port(), mount.port())?)
            .with_context(|| configuration.display().to_string())?;
        let mut command = Command::new("ganesha.nfsd");
        // In the foreground; only errors are logged, so that logging does not disturb the measurement.
        command.arg("-F").arg("-f").arg(&configuration).arg("-L").arg(place.join("ganesha.messages"));
        command.arg("-p").arg(place.join("ganesha.pid")).args(["-N", "NIV_CRIT"]);
        let process = Process::start(command, &place.join("ganesha.log"), interrupted).context(PACKAGES)?;
        let endpoint = Endpoint { nfs, mount, export: directory.display().to_string(), uid: 0, gid: 0 };
        let mut ganesha = Ganesha { process, endpoint, port_mapper };
        let answer = await_answer(&mut ganesha.process, &ganesha.endpoint);
        answer.with_context(|| {
            let messages = fs::read_to_string(place.join("ganesha.messages")).unwrap_or_default();
            format!("NFS-Ganesha did not start; it says: {:?}", messages.trim())
        })?;
        Ok(ganesha)
    }

    pub fn stop(self) -> Result<()> {
        self.process.stop()?;
        self.port_mapper.map_or(Ok(()), Process::stop)
    }
}

/// NFSv3 over TCP alone; everything else is Ganesha's default.
fn configure(directory: &Path, nfs_port: u16, mount_port: u16) -> Result<String> {
    let path = directory.to_str().filter(|path| !path.contains(['"', '\\', '\n']));
    let path = path.with_context(|| format!("{} cannot be said in Ganesha's configuration", directory.display()))?;
    Ok(format!(
        "NFS_CORE_PARAM {{
    NFS_Port = {nfs_port};
    MNT_Port = {mount_port};
    Bind_addr = 127.0.0.1;
    Protocols = 3;
    Enable_NLM = false;
    Enable_RQUOTA = false;
    Enable_UDP = false;
}}
EXPORT {{
    Export_Id = 1;
    Path = \"{path}\";
    Pseudo = \"/bench\";
    Protocols = 3;
    Transports = TCP;
    Access_Type = RW;
    Squash = No_Root_Squash;
    SecType = sys;
    FSAL {{ Name = VFS; }}
}}
"
    ))
}

/// Starts rpcbind if none answers.
fn start_port_mapper(place: &Path, interrupted: &Interrupted) -> Result<Option<Process>> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, portmap::PMAP_PORT));
    if TcpStream::connect(address).is_ok() {
        return Ok(None);
    }
    let mut command = Command::new("rpcbind");
    command.arg("-f");
    let mut process = Process::start(command, &place.join("rpcbind.log"), interrupted)?;
    let deadline = Instant::now() + START_PATIENCE;
    while TcpStream::connect(address).is_err() {
        if let Some(status) = process.ended()? {
            bail!("rpcbind ended ({status}): {}", process.messages());
        }
        if Instant::now() > deadline {
            bail!("rpcbind does not answer");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(Some(process))
}
