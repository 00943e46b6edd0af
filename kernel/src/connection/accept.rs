//! Accepts clients of every protocol, gives each to the processor with the fewest, and lets them end in order.

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use machine::{Connection, Errno, Listener};
use policy::unit::ProcessorId;

use super::{Introduction, Service};
use crate::Processor;
use crate::job::{Client, Origin};
use crate::trace::Named;
use crate::wait::WaitList;

/// After the host could not accept (no descriptors, no memory), it is asked again so much later.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peer {
    /// To whom its work is charged.
    pub origin: Origin,
    /// Its address, where it has one.
    pub address: Option<SocketAddr>,
    /// The core of this host that sends, if it is of this host.
    pub core: Option<usize>,
}

/// A session, from the first byte until the connection is closed.
pub type Session = Pin<Box<dyn Future<Output = ()>>>;

/// What is spoken with clients.
pub trait Protocol: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    fn service(&self) -> &Service;

    /// Who has connected; `None`: it has gone. Whose a connection is decides what it may have, so nothing is guessed.
    fn peer(&self, connection: Connection) -> Option<Peer>;

    /// Serves a client on this processor, then closes the connection.
    fn serve(self: Arc<Self>, cpu: Processor, connection: Connection, peer: Peer) -> Session;

    /// A client could not be accepted.
    fn note_refusal(&self, error: Errno) {
        let _ = error;
    }
}

/// All clients of a server.
pub struct Acceptor {
    connections_max: u32,
    /// The core of each processor.
    cores: Box<[Option<usize>]>,
    connections: Mutex<Connections>,
    protocols: Mutex<Vec<Arc<dyn Protocol>>>,
    /// Listeners on which an accept is under way.
    accepting: AtomicU32,
    stopping: AtomicBool,
    overdue: AtomicBool,
    /// Woken when one of these changes.
    changed: WaitList,
}

struct Connections {
    processors: Box<[u32]>,
    clients: HashMap<Client, u32>,
}

impl Connections {
    fn sum(&self) -> u32 {
        self.processors.iter().sum()
    }
}

impl Acceptor {
    /// No clients yet, `connections_max` at most. `cores`: of each processor, where it has one.
    pub fn new(cores: Box<[Option<usize>]>, connections_max: u32) -> Arc<Acceptor> {
        let connections = Connections { processors: vec![0; cores.len()].into(), clients: HashMap::new() };
        Arc::new(Acceptor {
            connections_max,
            cores,
            connections: Mutex::new(connections),
            protocols: Mutex::default(),
            accepting: AtomicU32::new(0),
            stopping: AtomicBool::new(false),
            overdue: AtomicBool::new(false),
            changed: WaitList::default(),
        })
    }

    pub fn connections(&self) -> Vec<u32> {
        self.lock().processors.to_vec()
    }

    /// The core of each processor.
    pub fn cores(&self) -> &[Option<usize>] {
        &self.cores
    }

    /// Another protocol: it ends with the others.
    pub fn add(&self, protocol: &Arc<dyn Protocol>) {
        self.protocols().push(Arc::clone(protocol));
    }

    /// Accepts clients of `protocol` until the end. `listener` is stopped by whoever has it, after [`Acceptor::stop`].
    pub async fn accept(self: Arc<Self>, cpu: Processor, protocol: Arc<dyn Protocol>, listener: Listener) {
        self.accepting.fetch_add(1, Ordering::SeqCst);
        while !self.is_stopping() {
            match cpu.accept(listener).await {
                Ok(connection) => self.place(&cpu, &protocol, connection),
                Err(Errno(libc::ECONNABORTED)) => {}
                Err(_) if self.is_stopping() => break,
                Err(error) => {
                    protocol.note_refusal(error);
                    cpu.sleep(ACCEPT_RETRY).await;
                }
            }
        }
        self.accepting.fetch_sub(1, Ordering::SeqCst);
        self.changed.wake_all();
    }

    /// Hands a new connection to a processor, unless there are too many.
    fn place(self: &Arc<Self>, cpu: &Processor, protocol: &Arc<dyn Protocol>, connection: Connection) {
        let Some(peer) = protocol.peer(connection) else { return cpu.close(connection) };
        let client = cpu.kernel().jobs().client_of(peer.origin);
        let Some(processor) = self.admit(cpu, &client, peer.core) else {
            cpu.shutdown(connection);
            return cpu.close(connection);
        };
        let (acceptor, protocol) = (Arc::clone(self), Arc::clone(protocol));
        cpu.spawn_on(processor, move |cpu| {
            let (here, kernel, name) = (cpu.clone(), cpu.kernel(), client.to_string());
            let shown = peer.address.map(|address| SocketAddr::new(address.ip().to_canonical(), address.port()));
            let shown = shown.map_or_else(|| name.clone(), |address| address.to_string());
            let introduction = Introduction { protocol: protocol.name(), client: shown, at: Instant::now() };
            kernel.connections().introduce(connection, introduction);
            let member = kernel.jobs().connect(client.clone());
            kernel.tracer().name(Named::Client, member.job().0, &name);
            cpu.spawn_for(member.job(), async move {
                protocol.serve(here, connection, peer).await;
                drop(member);
                acceptor.end(processor, &client);
            });
        });
    }

    /// Counts a connection of `client` and says where it belongs: where there are fewest, of several preferably where the
    /// core is not the client's.
    fn admit(&self, cpu: &Processor, client: &Client, core: Option<usize>) -> Option<ProcessorId> {
        let mut connections = self.lock();
        let (sum, own) = (connections.sum(), connections.clients.get(client).copied().unwrap_or(0));
        if self.is_stopping() || !may_connect(self.connections_max, sum, own) {
            drop(connections);
            cpu.kernel().connections().turn_away(cpu, sum);
            return None;
        }
        let shares_core = self.cores.iter().map(|own| own.is_some() && *own == core);
        let fewest = connections.processors.iter().zip(shares_core).zip(0_u16..).min().map_or(0, |(_, number)| number);
        connections.processors[usize::from(fewest)] += 1;
        *connections.clients.entry(client.clone()).or_default() += 1;
        Some(ProcessorId(fewest))
    }

    fn end(&self, processor: ProcessorId, client: &Client) {
        let mut connections = self.lock();
        connections.processors[usize::from(processor.0)] -= 1;
        if let Some(own) = connections.clients.get_mut(client) {
            *own -= 1;
            if *own == 0 {
                connections.clients.remove(client);
            }
        }
        drop(connections);
        self.changed.wake_all();
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn protocols(&self) -> MutexGuard<'_, Vec<Arc<dyn Protocol>>> {
        self.protocols.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before its listeners are stopped: no more clients, no more requests.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.protocols().iter().for_each(|protocol| protocol.service().stop());
    }

    /// After [`Acceptor::stop`]: waits until all clients are gone, for at most `bound`. Says whether they are.
    pub async fn drain(self: &Arc<Self>, cpu: &Processor, bound: Duration) -> bool {
        let (acceptor, here) = (Arc::clone(self), cpu.clone());
        cpu.spawn(async move {
            here.sleep(bound).await;
            acceptor.overdue.store(true, Ordering::SeqCst);
            acceptor.protocols().iter().for_each(|protocol| protocol.service().give_up());
            acceptor.changed.wake_all();
        });
        let ended = || self.is_empty() || self.overdue.load(Ordering::SeqCst);
        self.changed.until(|| ended().then_some(())).await;
        self.is_empty()
    }

    /// Is nobody connected, and nobody accepted?
    pub fn is_empty(&self) -> bool {
        self.lock().sum() + self.accepting.load(Ordering::SeqCst) == 0
    }
}

/// May a client that has `own` of `connected` connections have another? As many as it has already must stay free for
/// others: so one alone has at most half, and for one that has none there is a place while there is any.
fn may_connect(connections_max: u32, connected: u32, own: u32) -> bool {
    own < connections_max.saturating_sub(connected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_takes_half_and_leaves_a_place_to_everyone_who_has_none() {
        let fill = |connections_max, clients: u32| {
            let mut owns = vec![0; clients as usize];
            for client in 0..owns.len() {
                while may_connect(connections_max, owns.iter().sum(), owns[client]) {
                    owns[client] += 1;
                }
            }
            owns
        };
        assert_eq!(fill(2048, 1), [1024]);
        assert_eq!(fill(2048, 4), [1024, 512, 256, 128]);
        assert_eq!(fill(2048, 12)[9..], [2, 1, 1]);
        assert_eq!((fill(1, 1), fill(2, 2), fill(3, 2)), (vec![1], vec![1, 1], vec![2, 1]));
    }
}
