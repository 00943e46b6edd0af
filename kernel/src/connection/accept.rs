//! Accepts clients of all protocols, assigns each to the processor with the fewest connections, and drains them.
//!
//! The connection of a client on this host is assigned to another core than the client's: two that alternate on one
//! core keep each other from the disk.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use machine::{Connection, Errno, Listener};
use parking_lot::Mutex;
use policy::unit::ProcessorId;

use super::serve::serve;
use super::{Introduction, Peer, Protocol, Sessions};
use crate::Processor;
use crate::job::Client;
use crate::trace::Named;
use crate::wait::WaitList;

/// Delay after an accept failed on the host (no descriptors, no memory).
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Clients that are told at the same time that there are too many; the connections of more are closed without a word.
const TURNED_AWAY_MAX: u32 = 64;

/// What such a client has to say, and the reply, take this long at most.
const TURN_AWAY_TIMEOUT: Duration = Duration::from_secs(1);

/// The host's knowledge of its sockets.
pub trait Sockets: Send + Sync + 'static {
    /// `None`: the client has disconnected. The peer determines permissions, so it is never guessed.
    fn peer(&self, connection: Connection) -> Option<Peer>;

    /// A client could not be accepted.
    fn note_refusal(&self, error: Errno);
}

/// The core of a processor now, where known.
type CoreOf = dyn Fn(ProcessorId) -> Option<usize> + Send + Sync;

/// All clients of a server.
pub struct Acceptor {
    connections_max: u32,
    core_of: Box<CoreOf>,
    sockets: Box<dyn Sockets>,
    connections: Mutex<Connections>,
    /// One of each protocol.
    sessions: Mutex<Vec<Arc<Sessions>>>,
    /// Listeners with an accept in flight.
    accepting: AtomicU32,
    turned_away: AtomicU32,
    stopping: AtomicBool,
    /// Woken when that is set.
    stopped: WaitList,
    aborting: AtomicBool,
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
    /// Of so many processors; `core_of`: the core of each now, where known.
    pub fn new(
        processors: usize,
        core_of: impl Fn(ProcessorId) -> Option<usize> + Send + Sync + 'static,
        connections_max: u32,
        sockets: impl Sockets,
    ) -> Arc<Acceptor> {
        let connections = Connections { processors: vec![0; processors].into(), clients: HashMap::new() };
        Arc::new(Acceptor {
            connections_max,
            core_of: Box::new(core_of),
            sockets: Box::new(sockets),
            connections: Mutex::new(connections),
            sessions: Mutex::default(),
            accepting: AtomicU32::new(0),
            turned_away: AtomicU32::new(0),
            stopping: AtomicBool::new(false),
            stopped: WaitList::default(),
            aborting: AtomicBool::new(false),
            changed: WaitList::default(),
        })
    }

    pub fn connections(&self) -> Vec<u32> {
        self.connections.lock().processors.to_vec()
    }

    /// The cores, where known, by number of the processor, without end.
    pub fn cores(&self) -> impl Iterator<Item = Option<usize>> + '_ {
        (0..).map(|number| (self.core_of)(ProcessorId(number)))
    }

    /// Adds a protocol, whose sessions end with the others. Does nothing for one that was added before.
    pub fn add(&self, protocol: &impl Protocol) {
        let mut all = self.sessions.lock();
        if !all.iter().any(|added| Arc::ptr_eq(added, protocol.sessions())) {
            all.push(Arc::clone(protocol.sessions()));
        }
    }

    /// Accepts clients of `protocol` until stopped. The owner of `listener` stops it, after [`Acceptor::stop`].
    pub async fn accept<P: Protocol>(self: Arc<Self>, cpu: Processor, protocol: Arc<P>, listener: Listener) {
        self.accepting.fetch_add(1, Ordering::SeqCst);
        while !self.is_stopping() {
            match self.next(&cpu, listener).await {
                Ok(connection) => self.place(&cpu, &protocol, connection),
                Err(Errno(libc::ECONNABORTED)) => {}
                Err(_) if self.is_stopping() => break,
                Err(error) => {
                    self.sockets.note_refusal(error);
                    cpu.sleep(ACCEPT_RETRY).await;
                }
            }
        }
        self.accepting.fetch_sub(1, Ordering::SeqCst);
        self.changed.wake_all();
    }

    /// The next client; an error once no more are accepted. A listener that others have, too, goes on without an accept.
    async fn next(&self, cpu: &Processor, listener: Listener) -> Result<Connection, Errno> {
        let stopped = self.stopped.until(|| self.is_stopping().then_some(()));
        match select(pin!(cpu.accept(listener)), pin!(stopped)).await {
            Either::Left((client, _)) => client,
            Either::Right(((), client)) => {
                cpu.cancel_accepts(listener);
                client.await
            }
        }
    }

    /// Hands a new connection to a processor, unless there are too many.
    fn place<P: Protocol>(self: &Arc<Self>, cpu: &Processor, protocol: &Arc<P>, connection: Connection) {
        let Some(peer) = self.sockets.peer(connection) else { return cpu.close(connection) };
        let client = cpu.kernel().jobs().client_of(peer.origin());
        let Some(processor) = self.admit(cpu, &client, peer.core) else {
            return self.turn_away(cpu, protocol, connection);
        };
        let (acceptor, protocol) = (Arc::clone(self), Arc::clone(protocol));
        cpu.spawn_on(processor, move |cpu| {
            let (here, kernel, name) = (cpu.clone(), cpu.kernel(), client.to_string());
            let shown = peer.address.map(|address| SocketAddr::new(address.ip().to_canonical(), address.port()));
            let shown = shown.map_or_else(|| name.clone(), |address| address.to_string());
            let introduction = Introduction { protocol: P::NAME, client: shown, at: Instant::now() };
            kernel.connections().introduce(connection, introduction);
            let member = kernel.jobs().connect(client.clone());
            kernel.tracer().name(Named::Client, member.job().0, &name);
            cpu.spawn_for(member.job(), async move {
                serve(protocol, here, connection, peer).await;
                drop(member);
                acceptor.end(processor, &client);
            });
        });
    }

    /// Closes a connection, after a word on why if not too many are told at the moment.
    fn turn_away<P: Protocol>(self: &Arc<Self>, cpu: &Processor, protocol: &Arc<P>, connection: Connection) {
        let one_more = |told: u32| (told < TURNED_AWAY_MAX).then_some(told + 1);
        let may_tell = || self.turned_away.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_ok();
        if self.is_stopping() || !may_tell() {
            cpu.shutdown(connection);
            return cpu.close(connection);
        }
        let (acceptor, protocol, here) = (Arc::clone(self), Arc::clone(protocol), cpu.clone());
        cpu.spawn(async move {
            let (told, late) = (protocol.turn_away(here.clone(), connection), here.sleep(TURN_AWAY_TIMEOUT));
            if let Either::Right(((), told)) = select(pin!(told), pin!(late)).await {
                here.shutdown(connection);
                told.await;
            }
            here.shutdown(connection);
            here.close(connection);
            acceptor.turned_away.fetch_sub(1, Ordering::SeqCst);
            acceptor.changed.wake_all();
        });
    }

    /// Counts a connection of `client` and chooses its processor: one with the fewest, preferably not on the client's
    /// core.
    fn admit(&self, cpu: &Processor, client: &Client, core: Option<usize>) -> Option<ProcessorId> {
        let mut connections = self.connections.lock();
        let (sum, own) = (connections.sum(), connections.clients.get(client).copied().unwrap_or(0));
        if self.is_stopping() || !may_connect(self.connections_max, sum, own) {
            drop(connections);
            cpu.kernel().connections().turn_away(cpu, sum);
            return None;
        }
        let shares_core = self.cores().map(|own| own.is_some() && own == core);
        let fewest = connections.processors.iter().zip(shares_core).zip(0_u16..).min().map_or(0, |(_, number)| number);
        connections.processors[usize::from(fewest)] += 1;
        *connections.clients.entry(client.clone()).or_default() += 1;
        Some(ProcessorId(fewest))
    }

    fn end(&self, processor: ProcessorId, client: &Client) {
        let mut connections = self.connections.lock();
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

    /// No more clients, no more requests. To be called before the listeners are stopped.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.stopped.wake_all();
        self.sessions.lock().iter().for_each(|sessions| sessions.stop());
    }

    /// After [`Acceptor::stop`]: waits until all clients have disconnected, for at most `bound`. Returns whether they
    /// have.
    pub async fn drain(self: &Arc<Self>, cpu: &Processor, bound: Duration) -> bool {
        let (acceptor, here) = (Arc::clone(self), cpu.clone());
        cpu.spawn(async move {
            here.sleep(bound).await;
            acceptor.aborting.store(true, Ordering::SeqCst);
            acceptor.sessions.lock().iter().for_each(|sessions| sessions.abort());
            acceptor.changed.wake_all();
        });
        let ended = || self.is_empty() || self.aborting.load(Ordering::SeqCst);
        self.changed.until(|| ended().then_some(())).await;
        self.is_empty()
    }

    /// Is there no connection and no accept in flight?
    pub fn is_empty(&self) -> bool {
        let under_way = self.accepting.load(Ordering::SeqCst) + self.turned_away.load(Ordering::SeqCst);
        self.connections.lock().sum() + under_way == 0
    }
}

/// May a client that has `own` of `connected` connections have another? As many as it has must stay free for others:
/// one client alone gets at most half, and a new client is admitted while any are free.
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
