//! What a server prints when it is ready: what it serves, and how to connect.

use std::fmt::Write as _;

use machine::linux::net::Address;

use crate::config::{Config, show_bytes};
use crate::listeners::uri;
use crate::server::Server;

/// The text.
pub fn banner(config: &Config, server: &Server) -> String {
    let memory = match (config.settings.memory, config.switches.dynamic_cache) {
        (None, true) => "what nobody else needs".to_owned(),
        (None, false) => "a tenth".to_owned(),
        (Some(bytes), true) => format!("at most {}", show_bytes(bytes)),
        (Some(bytes), false) => show_bytes(bytes),
    };
    let mut text = format!("Awase {}: {}, memory: {memory}\n\n", env!("CARGO_PKG_VERSION"), server.description());
    for served in server.served() {
        let export = &served.export;
        let on_disk = export.path().is_some();
        let mode = match (served.volume.read_only(), on_disk, served.forced_unit_access) {
            (true, ..) => ", read-only",
            (false, true, true) => ", stable by forced unit access",
            (false, true, false) => ", stable by flush",
            (false, false, _) => "",
        };
        let size = show_bytes(served.volume.size());
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {:<16} {size:>9}  {}{mode}", export.name, export.medium());
    }
    let first = server.served().next().map_or("", |served| served.export.name.as_str());
    text.push_str("\nat\n");
    for address in server.addresses() {
        let _ = writeln!(text, "  {}", uri(address, first));
    }
    if let Some(address) = server.addresses().next() {
        text += &commands(address, first);
    }
    text
}

fn commands(address: &Address, name: &str) -> String {
    let uri = uri(address, name);
    let kernel_client = match address {
        Address::Tcp(address) => format!("{} {}", address.ip(), address.port()),
        Address::Unix(path) => format!("-unix '{}'", path.display()),
        Address::Unnamed => return String::new(),
    };
    format!(
        "\nTry\n  \
         nbdinfo '{uri}'\n  \
         nbdcopy --flush IMAGE '{uri}'\n  \
         qemu-img info '{uri}'\n  \
         fio --name=t --ioengine=nbd --uri='{uri}' --rw=randread --bs=4k --iodepth=32 --runtime=5 --time_based\n  \
         nbd-client {kernel_client} -N '{name}' /dev/nbd0\n\n\
         Ctrl-C finishes what is under way, writes everything to the disks and ends.\n"
    )
}
