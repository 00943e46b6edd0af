//! Connecting to peers: to those with higher numbers than this node has, again whenever the connection ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kernel::Processor;
use kernel::connection::{Peer, Protocol, Session, Sessions};
use kernel::wait::WaitList;
use machine::{Connection, Errno};
use parking_lot::Mutex;
use policy::coherence::{Incarnation, NodeId};

use crate::Shared;
use crate::admission::{hello, is_member, refusal};
use crate::hello::First;
use crate::link::{Conversation, Dsm};

/// Between two attempts to connect.
const AGAIN: Duration = Duration::from_millis(250);

impl Dsm {
    /// Connects to the peers of a volume that have higher numbers than this node. To be called on the processor on which
    /// the connections are.
    pub fn serve(self: &Arc<Self>, cpu: &Processor, shared: &Arc<Shared>) {
        shared.is_served.store(true, Ordering::SeqCst);
        (0..shared.config.nodes.len() as u16).for_each(|node| self.meet(cpu, shared, NodeId(node)));
        let (own, here) = (Arc::clone(shared), cpu.clone());
        cpu.spawn(async move { own.reserve.fill(&here).await });
        cpu.spawn(crate::tick::run(cpu.clone(), Arc::downgrade(shared), Arc::clone(&self.sessions)));
    }

    /// Connects to a node that has become a member, if that is for this node to do. To be called on the processor on which
    /// the connections are. Those that are met before the volume is served it connects to then.
    pub fn meet(self: &Arc<Self>, cpu: &Processor, shared: &Arc<Shared>, node: NodeId) {
        let met = shared.met(node);
        let is_own = node > shared.me.node && (met.is_some() || !shared.is_managed());
        if is_own
            && shared.is_served.load(Ordering::SeqCst)
            && shared.links[usize::from(node.0)].claim(met.unwrap_or_default())
        {
            cpu.spawn(Arc::clone(self).keep_connected(cpu.clone(), Arc::clone(shared), (node, met)));
        }
    }

    async fn keep_connected(
        self: Arc<Self>,
        cpu: Processor,
        shared: Arc<Shared>,
        (node, met): (NodeId, Option<Incarnation>),
    ) {
        let dialled = Arc::new(Dialled { dsm: Arc::clone(&self), shared: Arc::clone(&shared), node });
        // Of members that come and go, as long as this one is one; of others for ever.
        let is_present = || !shared.has_ended() && (!shared.is_managed() || shared.met(node) == met);
        while !self.sessions.is_stopping() && is_present() {
            match self.connect(node).await {
                Ok(connection) => {
                    let peer = shared.name_of(node);
                    kernel::connection::converse(Arc::clone(&dialled), cpu.clone(), connection, peer).await;
                }
                Err(errno) => shared.report(Some(node), format!("cannot be reached: {errno}; it is tried again")),
            }
            cpu.sleep(AGAIN).await;
        }
    }

    async fn connect(&self, node: NodeId) -> Result<Connection, Errno> {
        let made = Arc::new((Mutex::new(None), WaitList::default()));
        let own = Arc::clone(&made);
        self.connector.connect(
            node,
            Box::new(move |result| {
                *own.0.lock() = Some(result);
                own.1.wake_all();
            }),
        );
        made.1.until(|| made.0.lock().take()).await
    }
}

/// The protocol on a connection that this node made.
struct Dialled {
    dsm: Arc<Dsm>,
    shared: Arc<Shared>,
    node: NodeId,
}

impl Protocol for Dialled {
    type Handler = Conversation;

    const NAME: &'static str = Dsm::NAME;

    fn sessions(&self) -> &Arc<Sessions> {
        &self.dsm.sessions
    }

    async fn open(self: &Arc<Self>, session: &Session, _peer: &Peer) -> Option<Conversation> {
        let (shared, node) = (&self.shared, self.node);
        if !hello(shared, node).send(session).await {
            return None;
        }
        match First::receive(session).await? {
            First::Refused(why) => {
                shared.report(Some(node), format!("refuses this node: {why}"));
                None
            }
            First::Hello(theirs) if theirs.from == node => match refusal(shared, &theirs) {
                Some(why) => {
                    shared.report(Some(node), format!("is refused: {why}"));
                    None
                }
                None if !is_member(shared, &theirs) => None,
                None => Some(Conversation::begin(session, Arc::clone(shared), &theirs)),
            },
            First::Hello(_) => {
                shared.report(Some(node), "another node answers at its address".into());
                None
            }
        }
    }
}
