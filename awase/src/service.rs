//! The NBD service of a server: accepts clients, gives each to the processor with the fewest, and lets them end in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kernel::Processor;
use machine::linux::net::{self, ListeningSocket};
use machine::{Connection, Errno, Listener};
use policy::unit::ProcessorId;

use crate::config::Limits;
use crate::processors::Processors;

/// After the host could not accept (no descriptors, no memory), it is asked again so much later.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The service.
pub struct Service {
    nbd: Arc<nbd::Server>,
    connections_max: u32,
    /// Connections of each processor.
    connections: Box<[AtomicU32]>,
    /// The core of each processor.
    cores: Box<[usize]>,
    /// Sockets on which an accept is under way.
    accepting: AtomicU32,
}

impl Service {
    /// A service without exports and clients.
    pub fn new(processors: &Processors, limits: &Limits) -> Arc<Service> {
        let nbd = nbd::Server::new(nbd::Limits {
            requests_a_connection: limits.requests_a_connection as usize,
            bytes_a_connection: limits.bytes_a_connection,
            stall_timeout: limits.stall_timeout,
            ..nbd::Limits::default()
        });
        Arc::new(Service {
            nbd,
            connections_max: limits.connections,
            connections: processors.ids().map(|_| AtomicU32::new(0)).collect(),
            cores: processors.cores().into(),
            accepting: AtomicU32::new(0),
        })
    }

    /// Goes over to other exports; clients keep what they have.
    pub fn set_exports(&self, exports: Vec<Arc<nbd::Export>>) {
        self.nbd.set_exports(exports);
    }

    /// Accepts clients on `sockets` until they are stopped.
    pub fn accept(self: &Arc<Self>, processors: &Processors, sockets: &[ListeningSocket]) {
        let ids: Vec<ProcessorId> = processors.ids().collect();
        for (socket, id) in sockets.iter().zip(ids.into_iter().cycle()) {
            self.accepting.fetch_add(1, Ordering::SeqCst);
            let (service, listener) = (Arc::clone(self), socket.listener());
            drop(processors.start_task(id, move |cpu| async move { service.accept_on(&cpu, listener).await }));
        }
    }

    async fn accept_on(self: Arc<Self>, cpu: &Processor, listener: Listener) {
        while !self.is_stopping() {
            match cpu.accept(listener).await {
                Ok(connection) => self.place(cpu, connection),
                Err(Errno(libc::ECONNABORTED)) => {}
                Err(_) if self.is_stopping() => break,
                Err(error) => {
                    eprintln!("awase: a client could not be accepted: {error}");
                    cpu.sleep(ACCEPT_RETRY).await;
                }
            }
        }
        self.accepting.fetch_sub(1, Ordering::SeqCst);
        self.nbd.changed().wake_all();
    }

    /// Hands a new connection to the processor that has the fewest, of several preferably to one whose core is not the
    /// client's. Turns it away when there are too many.
    fn place(self: &Arc<Self>, cpu: &Processor, connection: Connection) {
        let counts = || self.connections.iter().map(|count| count.load(Ordering::SeqCst));
        let peer = net::peer_core(connection);
        let shares_core = self.cores.iter().map(|&core| peer == Some(core));
        let least = counts().zip(shares_core).zip(0u16..).min().map_or(0, |(_, number)| number);
        if counts().sum::<u32>() >= self.connections_max || self.is_stopping() {
            cpu.shutdown(connection);
            cpu.close(connection);
            return;
        }
        self.connections[usize::from(least)].fetch_add(1, Ordering::SeqCst);
        let service = Arc::clone(self);
        cpu.spawn_on(ProcessorId(least), move |cpu| {
            let here = cpu.clone();
            cpu.spawn(async move {
                nbd::serve(&here, connection, &service.nbd).await;
                service.connections[usize::from(least)].fetch_sub(1, Ordering::SeqCst);
                service.nbd.changed().wake_all();
            });
        });
    }

    fn is_stopping(&self) -> bool {
        self.nbd.is_stopping()
    }

    /// Told before its sockets are stopped: no more clients, no more requests.
    pub fn stop(&self) {
        self.nbd.stop();
    }

    /// After [`Service::stop`]: waits until all clients are gone, for at most `bound`. Says whether they are.
    pub async fn drain(self: &Arc<Self>, cpu: &Processor, bound: Duration) -> bool {
        let (service, here) = (Arc::clone(self), cpu.clone());
        cpu.spawn(async move {
            here.sleep(bound).await;
            service.nbd.give_up();
        });
        let ended = || self.is_empty() || self.nbd.is_overdue();
        self.nbd.changed().until(|| ended().then_some(())).await;
        self.is_empty()
    }

    fn is_empty(&self) -> bool {
        let clients: u32 = self.connections.iter().map(|count| count.load(Ordering::SeqCst)).sum();
        clients + self.accepting.load(Ordering::SeqCst) == 0
    }
}
