//! The registration of NFS with the host's rpcbind, withdrawn when dropped.

use std::net::SocketAddr;

use machine::linux::net::Address;
use nfs::rpcbind::Rpcbind;

use crate::tell::tell;

pub struct Registration {
    rpcbind: Rpcbind,
    listening: SocketAddr,
}

impl Registration {
    /// Registers the first TCP address. A failure is printed and no error: clients can name the port.
    pub fn make<'a>(mut addresses: impl Iterator<Item = &'a Address>) -> Option<Registration> {
        let listening = addresses.find_map(|address| match address {
            Address::Tcp(address) => Some(*address),
            Address::Unix(_) | Address::Unnamed => None,
        })?;
        let rpcbind = Rpcbind::default();
        match rpcbind.register(listening) {
            Ok(()) => Some(Registration { rpcbind, listening }),
            Err(error) => {
                tell(error);
                None
            }
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Err(error) = self.rpcbind.unregister(self.listening) {
            tell(error);
        }
    }
}
