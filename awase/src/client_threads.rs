//! Clients that a thread each serves, outside the path: of the control socket, and programs that begin to map a disk.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::{self, Builder};
use std::time::Duration;

/// Delay before the next attempt after the host could not accept a client.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

pub struct ClientThreads {
    /// The name of the thread that accepts.
    pub accepting: &'static str,
    /// The name of each client's thread.
    pub serving: &'static str,
    /// Clients at a time; further ones are refused.
    pub clients_max: u32,
}

impl ClientThreads {
    /// Accepts clients from a thread of its own until the socket is shut down, or the host accepts none and `is_over`.
    ///
    /// # Errors
    /// When the host has no thread left.
    pub fn accept(
        self,
        listener: UnixListener,
        is_over: impl Fn() -> bool + Send + 'static,
        refuse: impl Fn(&UnixStream) + Send + 'static,
        serve: impl Fn(UnixStream) + Send + Sync + 'static,
    ) -> io::Result<()> {
        // Shared by the clients' threads: so many there are.
        let serve = Arc::new(serve);
        let accept = move || {
            loop {
                match listener.accept() {
                    Ok((stream, _)) if Arc::strong_count(&serve) > self.clients_max as usize => refuse(&stream),
                    Ok((stream, _)) => {
                        let serve = Arc::clone(&serve);
                        // Without a thread the client is disconnected.
                        let _ = Builder::new().name(self.serving.into()).spawn(move || serve(stream));
                    }
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
                    Err(_) if is_over() => return,
                    Err(_) => thread::sleep(ACCEPT_RETRY),
                }
            }
        };
        Builder::new().name(self.accepting.into()).spawn(accept).map(drop)
    }
}
