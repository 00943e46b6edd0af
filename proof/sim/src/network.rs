//! The simulated network: connections with bounded buffers that preserve order, delay arrivals and shorten transfers.

use std::collections::VecDeque;
use std::time::Duration;

use crate::config::NetworkConfig;
use crate::endpoint::{Endpoint, Port};
use crate::ids::HostId;
use crate::operation::{OpRef, Operation};
use crate::world::{EventKind, Inner, World};
use machine::{Connection, Errno, Listener, Op};

const BAD_FILE: Errno = Errno(libc::EBADF);
const REFUSED: Errno = Errno(libc::ECONNREFUSED);

impl World {
    pub fn set_network(&self, config: NetworkConfig) {
        assert!(config.buffer_bytes > 0, "a network without buffers");
        self.0.borrow_mut().network.config = config;
    }

    /// From now on whatever `host` sends or receives arrives later by this.
    pub fn slow_down(&self, host: HostId, by: Duration) {
        self.0.borrow_mut().network.delays.insert(host, by.as_nanos() as u64);
    }

    /// Opens a port of `host` for connections. It closes when the host dies.
    ///
    /// # Panics
    /// When the port is open already.
    pub fn listen(&self, host: HostId, port: u16) -> Listener {
        let listeners = &mut self.0.borrow_mut().network.listeners;
        let taken = listeners.iter().any(|other| other.open && (other.host, other.port) == (host, port));
        assert!(!taken, "port {port} of {host:?} is open already");
        listeners.push(Port { host, port, open: true, backlog: VecDeque::new(), accepting: VecDeque::new() });
        Listener((listeners.len() - 1) as u32)
    }

    /// Closes a port. Accepts in flight fail with `ECANCELED`, connections not yet accepted are reset.
    pub fn stop_listening(&self, listener: Listener) {
        self.0.borrow_mut().close_port(listener.0 as usize);
    }

    /// Connects `from` to a port of `to`, at once. The remote end has to be accepted.
    ///
    /// # Errors
    /// `ECONNREFUSED` when the port is closed or too many connections wait to be accepted.
    pub fn connect(&self, from: HostId, to: HostId, port: u16) -> Result<Connection, Errno> {
        let mut inner = self.0.borrow_mut();
        let network = &mut inner.network;
        let wanted = |other: &Port| other.open && (other.host, other.port) == (to, port);
        let index = network.listeners.iter().position(wanted).ok_or(REFUSED)?;
        if network.listeners[index].backlog.len() >= network.config.backlog_max {
            return Err(REFUSED);
        }
        let local = network.endpoints.len();
        network.add_endpoint(from, local + 1);
        let remote = network.add_endpoint(to, local);
        network.listeners[index].backlog.push_back(remote);
        inner.pump_accept(index);
        Ok(Connection(local as u32))
    }

    /// Resets a connection from outside, as a broken router would: both ends see it after the network's latency.
    pub fn reset_connection(&self, connection: Connection) {
        let mut inner = self.0.borrow_mut();
        let peer = inner.network.endpoints[connection.0 as usize].peer;
        inner.cut_off(connection.0 as usize);
        inner.cut_off(peer);
    }
}

/// The connection of an operation.
fn connection_of(op: &Op) -> Option<Connection> {
    match *op {
        Op::Receive { connection, .. } | Op::Send { connection, .. } => Some(connection),
        _ => None,
    }
}

impl Inner {
    /// Records that `processor` starts `op`.
    pub(crate) fn begin_use(&mut self, processor: usize, op: &Op) {
        let host = self.processors[processor].host;
        let Some(connection) = connection_of(op) else {
            return;
        };
        let Some(end) = self.network.find(host, connection) else {
            return;
        };
        assert!(end.used == 0 || end.user == processor, "{connection:?} is used by two processors at once");
        end.user = processor;
        end.used += 1;
    }

    /// Records that `operation` was returned or never will be.
    pub(crate) fn end_use(&mut self, operation: &Operation) {
        let host = self.processors[operation.processor].host;
        let Some(connection) = connection_of(&operation.op) else {
            return;
        };
        if let Some(end) = self.network.find(host, connection) {
            end.used = end.used.saturating_sub(1);
        }
    }

    pub(crate) fn submit_accept(&mut self, of: OpRef, listener: Listener) {
        let Some(operation) = self.operations.get_mut(of) else {
            return;
        };
        let host = self.processors[operation.processor].host;
        let index = listener.0 as usize;
        match self.network.listeners.get_mut(index).filter(|port| port.open && port.host == host) {
            Some(port) => {
                port.accepting.push_back(of);
                self.pump_accept(index);
            }
            None => self.complete(of, Err(BAD_FILE)),
        }
    }

    /// Matches waiting connections of a port with waiting accepts.
    fn pump_accept(&mut self, index: usize) {
        loop {
            let port = &mut self.network.listeners[index];
            let Some(&end) = port.backlog.front() else {
                return;
            };
            let Some(of) = port.accepting.pop_front() else {
                return;
            };
            // An accept whose machine died consumes no connection.
            if self.operations.get_mut(of).is_some() {
                port.backlog.pop_front();
                self.complete(of, Ok(end as u64));
            }
        }
    }

    fn close_port(&mut self, index: usize) {
        let port = &mut self.network.listeners[index];
        port.open = false;
        let (accepting, backlog) = (std::mem::take(&mut port.accepting), std::mem::take(&mut port.backlog));
        for of in accepting {
            self.complete(of, Err(Errno::CANCELLED));
        }
        for end in backlog {
            self.network.endpoints[end].closed = true;
            self.cut_off(self.network.endpoints[end].peer);
        }
    }

    pub(crate) fn submit_receive(&mut self, of: OpRef, connection: Connection) {
        match self.end_for(of, connection) {
            Ok(end) => {
                end.receiving.push_back(of);
                self.pump_receive(connection.0 as usize);
            }
            Err(errno) => self.complete(of, Err(errno)),
        }
    }

    pub(crate) fn submit_send(&mut self, of: OpRef, connection: Connection) {
        match self.end_for(of, connection) {
            Ok(end) => {
                end.sending.push_back(of);
                self.pump_send(connection.0 as usize);
            }
            Err(errno) => self.complete(of, Err(errno)),
        }
    }

    fn end_for(&mut self, of: OpRef, connection: Connection) -> Result<&mut Endpoint, Errno> {
        let operation = self.operations.get_mut(of).ok_or(BAD_FILE)?;
        if super::processor::segments_of(&operation.op).is_empty() {
            return Err(Errno::INVALID);
        }
        let host = self.processors[operation.processor].host;
        self.network.find(host, connection).ok_or(BAD_FILE)
    }

    /// Completes receives that wait at `index`, as far as possible.
    fn pump_receive(&mut self, index: usize) {
        while let Some(&of) = self.network.endpoints[index].receiving.front() {
            let result = match self.operations.get_mut(of) {
                None => None,
                Some(Operation { op: Op::Receive { into, .. }, .. }) => match self.network.receive(index, into) {
                    Some(result) => Some(result),
                    None => return,
                },
                Some(_) => None,
            };
            self.network.endpoints[index].receiving.pop_front();
            if let Some(result) = result {
                self.complete(of, result);
                self.pump_send(self.network.endpoints[index].peer);
            }
        }
    }

    /// Completes sends that wait at `index`, as far as possible.
    fn pump_send(&mut self, index: usize) {
        while let Some(&of) = self.network.endpoints[index].sending.front() {
            let result = match self.operations.get_mut(of) {
                Some(Operation { op: Op::Send { from, .. }, .. }) => match self.network.send(index, from) {
                    Some(result) => Some(result),
                    None => return,
                },
                _ => None,
            };
            self.network.endpoints[index].sending.pop_front();
            if let Some(result) = result {
                if let Ok(bytes) = result {
                    self.dispatch(index, bytes);
                }
                self.complete(of, result);
            }
        }
    }

    /// Puts `bytes` that were just sent from `index` in flight.
    fn dispatch(&mut self, index: usize, bytes: u64) {
        let peer = self.network.endpoints[index].peer;
        if self.network.endpoints[peer].closed {
            // A closed peer answers data with a reset.
            return self.send_end(index, true);
        }
        let at = self.arrival_at(peer, bytes);
        self.schedule(at, EventKind::Arrive { endpoint: peer as u32, bytes: bytes as u32 });
    }

    /// When something sent now arrives at `index`: never before what was sent earlier.
    fn arrival_at(&mut self, index: usize, bytes: u64) -> u64 {
        let network = &mut self.network;
        let ends = [index, network.endpoints[index].peer].map(|end| network.endpoints[end].host);
        let delay: u64 = ends.iter().filter_map(|host| network.delays.get(host)).sum();
        let ns = network.config.latency.draw(&mut network.random) + bytes * network.config.ns_per_kib / 1024 + delay;
        let end = &mut network.endpoints[index];
        end.arrives_last = end.arrives_last.max(self.now + ns);
        end.arrives_last
    }

    /// Sends the end of the stream, or a reset, to the end at `index`.
    fn send_end(&mut self, index: usize, reset: bool) {
        let at = self.arrival_at(index, 0);
        self.schedule(at, EventKind::End { endpoint: index as u32, reset });
    }

    pub(crate) fn arrive(&mut self, endpoint: u32, bytes: u32) {
        let end = &mut self.network.endpoints[endpoint as usize];
        if !end.closed && !end.cut {
            end.arrived = (end.arrived + bytes as usize).min(end.inbox.len());
            self.pump_receive(endpoint as usize);
        }
    }

    /// The end of the stream, or a reset, arrives.
    pub(crate) fn end(&mut self, endpoint: u32, reset: bool) {
        let end = &mut self.network.endpoints[endpoint as usize];
        if end.closed || (end.cut && !reset) {
            return;
        }
        end.ended = true;
        end.reset |= reset;
        self.pump_receive(endpoint as usize);
        self.pump_send(endpoint as usize);
    }

    pub(crate) fn shutdown(&mut self, processor: usize, connection: Connection) {
        let host = self.processors[processor].host;
        let Some(end) = self.network.find(host, connection) else {
            return;
        };
        if std::mem::replace(&mut end.shut, true) {
            return;
        }
        let peer = end.peer;
        self.pump_receive(connection.0 as usize);
        self.pump_send(connection.0 as usize);
        self.send_end(peer, false);
    }

    pub(crate) fn close_by(&mut self, processor: usize, connection: Connection) {
        let host = self.processors[processor].host;
        let Some(end) = self.network.find(host, connection) else {
            return;
        };
        assert!(end.used == 0, "{connection:?} is closed with {} operations in flight", end.used);
        self.close(connection.0 as usize);
    }

    fn close(&mut self, index: usize) {
        let end = &mut self.network.endpoints[index];
        end.closed = true;
        // Data that were sent and never received are answered with a reset.
        let unread = !end.inbox.is_empty();
        end.inbox = VecDeque::new();
        let (peer, shut) = (end.peer, end.shut);
        if unread || !shut {
            self.send_end(peer, unread);
        }
        self.pump_send(peer);
    }

    /// The end at `index` receives nothing that is in flight, and is reset.
    fn cut_off(&mut self, index: usize) {
        let end = &mut self.network.endpoints[index];
        end.inbox.truncate(end.arrived);
        end.cut = true;
        self.send_end(index, true);
    }

    /// Closes all that a process on `host` held.
    pub(crate) fn close_all(&mut self, host: HostId) {
        self.close_ports(host);
        for index in 0..self.network.endpoints.len() {
            if self.network.endpoints[index].host == host && !self.network.endpoints[index].closed {
                self.close(index);
            }
        }
    }

    /// Cuts all connections of `host` without a message.
    pub(crate) fn cut_all(&mut self, host: HostId) {
        self.close_ports(host);
        for index in 0..self.network.endpoints.len() {
            let end = &mut self.network.endpoints[index];
            if end.host == host && !std::mem::replace(&mut end.closed, true) {
                end.inbox = VecDeque::new();
                let peer = end.peer;
                self.cut_off(peer);
            }
        }
    }

    fn close_ports(&mut self, host: HostId) {
        for index in 0..self.network.listeners.len() {
            if self.network.listeners[index].host == host && self.network.listeners[index].open {
                self.close_port(index);
            }
        }
    }
}
