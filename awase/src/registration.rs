//! That the host's rpcbind knows the port of NFS. Taken back when dropped.

use machine::linux::net::Address;
use nfs::rpcbind::{self, RPCBIND};

/// What rpcbind was told.
pub struct Registration(());

impl Registration {
    /// Tells rpcbind the first TCP port. That it cannot be told is no reason to end: clients can name the port.
    pub fn make<'a>(mut addresses: impl Iterator<Item = &'a Address>) -> Option<Registration> {
        let port = addresses.find_map(|address| match address {
            Address::Tcp(address) => Some(address.port()),
            Address::Unix(_) | Address::Unnamed => None,
        })?;
        match rpcbind::register(RPCBIND, port) {
            Ok(()) => Some(Registration(())),
            Err(error) => {
                eprintln!("awase: {error}");
                None
            }
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Err(error) = rpcbind::unregister(RPCBIND) {
            eprintln!("awase: {error}");
        }
    }
}
