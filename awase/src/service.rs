//! The clients of a server: accepts them, gives each to the processor with the fewest, and lets them end in order.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kernel::Processor;
use kernel::connection::Introduction;
use kernel::job::{Client, Origin};
use kernel::trace::Named;
use kernel::wait::WaitList;
use machine::linux::net::{self, Address, ListeningSocket};
use machine::{Connection, Errno, Listener};
use nfs::ClientAddress;
use policy::unit::ProcessorId;

use crate::config::Limits;
use crate::processors::Processors;

/// After the host could not accept (no descriptors, no memory), it is asked again so much later.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What is spoken with clients.
#[derive(Clone)]
pub enum Protocol {
    /// Disks.
    Nbd(Arc<nbd::Server>),
    /// Directories.
    Nfs(Arc<nfs::Server>),
}

impl Protocol {
    /// The whole life of a connection.
    async fn serve(&self, cpu: &Processor, connection: Connection) {
        match self {
            Protocol::Nbd(server) => nbd::serve(cpu, connection, server).await,
            Protocol::Nfs(server) => match net::peer_address(connection) {
                Ok(Address::Tcp(address)) => {
                    nfs::serve(cpu.clone(), connection, ClientAddress::Ip(address), Arc::clone(server)).await;
                }
                Ok(Address::Unix(_) | Address::Unnamed) => {
                    nfs::serve(cpu.clone(), connection, ClientAddress::Unix, Arc::clone(server)).await;
                }
                // It has gone. Whose it was decides what it may have, so nothing is guessed.
                Err(_) => {
                    cpu.kernel().connections().forget(connection);
                    cpu.close(connection);
                }
            },
        }
    }

    fn stop(&self) {
        match self {
            Protocol::Nbd(server) => server.stop(),
            Protocol::Nfs(server) => server.service().stop(),
        }
    }

    fn give_up(&self) {
        match self {
            Protocol::Nbd(server) => server.give_up(),
            Protocol::Nfs(server) => server.service().give_up(),
        }
    }
}

/// What is shown of a connection.
fn introduction(protocol: &Protocol, connection: Connection, client: &Client) -> Introduction {
    let protocol = match protocol {
        Protocol::Nbd(_) => "nbd",
        Protocol::Nfs(_) => "nfs",
    };
    let client = match net::peer_address(connection) {
        Ok(Address::Tcp(address)) => SocketAddr::new(address.ip().to_canonical(), address.port()).to_string(),
        _ => client.to_string(),
    };
    Introduction { protocol, client, at: Instant::now() }
}

/// From where a connection comes, and as whom.
fn origin_of(connection: Connection) -> Origin {
    let address = match net::peer_address(connection) {
        Ok(Address::Tcp(address)) => Some(address.ip()),
        _ => None,
    };
    Origin { address, user: net::peer_user(connection) }
}

/// All clients.
pub struct Service {
    protocols: Mutex<Vec<Protocol>>,
    connections_max: u32,
    /// Connections of each processor.
    connections: Box<[AtomicU32]>,
    /// The core of each processor.
    cores: Box<[usize]>,
    /// Sockets on which an accept is under way.
    accepting: AtomicU32,
    stopping: AtomicBool,
    overdue: AtomicBool,
    /// Woken when one of these changes.
    changed: WaitList,
}

impl Service {
    /// Nobody yet.
    pub fn new(processors: &Processors, limits: &Limits) -> Arc<Service> {
        Arc::new(Service {
            protocols: Mutex::default(),
            connections_max: limits.connections,
            connections: processors.ids().map(|_| AtomicU32::new(0)).collect(),
            cores: processors.cores().into(),
            accepting: AtomicU32::new(0),
            stopping: AtomicBool::new(false),
            overdue: AtomicBool::new(false),
            changed: WaitList::default(),
        })
    }

    /// Clients that each processor has.
    pub fn connections(&self) -> Vec<u32> {
        self.connections.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// Accepts clients of `protocol` on `sockets` until they are stopped.
    pub fn accept(self: &Arc<Self>, processors: &Processors, protocol: &Protocol, sockets: &[ListeningSocket]) {
        self.protocols().push(protocol.clone());
        let ids: Vec<ProcessorId> = processors.ids().collect();
        for (socket, id) in sockets.iter().zip(ids.into_iter().cycle()) {
            self.accepting.fetch_add(1, Ordering::SeqCst);
            let (service, protocol, listener) = (Arc::clone(self), protocol.clone(), socket.listener());
            let accept = move |cpu| async move { service.accept_on(&cpu, &protocol, listener).await };
            drop(processors.start_task(id, accept));
        }
    }

    async fn accept_on(self: Arc<Self>, cpu: &Processor, protocol: &Protocol, listener: Listener) {
        while !self.is_stopping() {
            match cpu.accept(listener).await {
                Ok(connection) => self.place(cpu, protocol, connection),
                Err(Errno(libc::ECONNABORTED)) => {}
                Err(_) if self.is_stopping() => break,
                Err(error) => {
                    eprintln!("awase: a client could not be accepted: {error}");
                    cpu.sleep(ACCEPT_RETRY).await;
                }
            }
        }
        self.accepting.fetch_sub(1, Ordering::SeqCst);
        self.changed.wake_all();
    }

    /// Hands a new connection to the processor that has the fewest, of several preferably to one whose core is not the
    /// client's. Turns it away when there are too many.
    fn place(self: &Arc<Self>, cpu: &Processor, protocol: &Protocol, connection: Connection) {
        let counts = || self.connections.iter().map(|count| count.load(Ordering::SeqCst));
        let peer = net::peer_core(connection);
        let shares_core = self.cores.iter().map(|&core| peer == Some(core));
        let least = counts().zip(shares_core).zip(0u16..).min().map_or(0, |(_, number)| number);
        let connected = counts().sum::<u32>();
        if connected >= self.connections_max || self.is_stopping() {
            cpu.kernel().connections().turn_away(cpu, connected);
            cpu.shutdown(connection);
            cpu.close(connection);
            return;
        }
        self.connections[usize::from(least)].fetch_add(1, Ordering::SeqCst);
        let (service, protocol) = (Arc::clone(self), protocol.clone());
        cpu.spawn_on(ProcessorId(least), move |cpu| {
            let here = cpu.clone();
            let kernel = cpu.kernel();
            let client = kernel.jobs().client_of(origin_of(connection));
            kernel.connections().introduce(connection, introduction(&protocol, connection, &client));
            let name = client.to_string();
            let member = kernel.jobs().connect(client);
            kernel.tracer().name(Named::Client, member.job().0, &name);
            cpu.spawn_for(member.job(), async move {
                protocol.serve(&here, connection).await;
                drop(member);
                service.connections[usize::from(least)].fetch_sub(1, Ordering::SeqCst);
                service.changed.wake_all();
            });
        });
    }

    /// The core of each processor.
    pub fn cores(&self) -> &[usize] {
        &self.cores
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    fn protocols(&self) -> MutexGuard<'_, Vec<Protocol>> {
        self.protocols.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Told before its sockets are stopped: no more clients, no more requests.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.protocols().iter().for_each(Protocol::stop);
    }

    /// After [`Service::stop`]: waits until all clients are gone, for at most `bound`. Says whether they are.
    pub async fn drain(self: &Arc<Self>, cpu: &Processor, bound: Duration) -> bool {
        let (service, here) = (Arc::clone(self), cpu.clone());
        cpu.spawn(async move {
            here.sleep(bound).await;
            service.overdue.store(true, Ordering::SeqCst);
            service.protocols().iter().for_each(Protocol::give_up);
            service.changed.wake_all();
        });
        let ended = || self.is_empty() || self.overdue.load(Ordering::SeqCst);
        self.changed.until(|| ended().then_some(())).await;
        self.is_empty()
    }

    fn is_empty(&self) -> bool {
        let clients: u32 = self.connections.iter().map(|count| count.load(Ordering::SeqCst)).sum();
        clients + self.accepting.load(Ordering::SeqCst) == 0
    }
}
