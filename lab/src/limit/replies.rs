//! Where storage puts its replies: into the connections that they are for.

use std::io;

use super::arena::{Arena, Chunk};
use super::call::{Call, Files, Protocol};
use super::connection::Connection;
use super::outbound::Data;

/// Connections by their number. Numbers are not used again, so that what comes late for one that has ended finds none.
#[derive(Default)]
pub struct Connections {
    all: Vec<Option<Connection>>,
    /// Those that have something to send.
    due: Vec<usize>,
}

impl Connections {
    pub fn add(&mut self, connection: Connection) -> usize {
        self.all.push(Some(connection));
        self.all.len() - 1
    }

    pub fn get(&mut self, number: usize) -> Option<&mut Connection> {
        self.all.get_mut(number).and_then(Option::as_mut)
    }

    pub fn remove(&mut self, number: usize) {
        self.all[number] = None;
    }

    pub fn mark(&mut self, number: usize) {
        if let Some(connection) = self.all.get_mut(number).and_then(Option::as_mut)
            && !connection.is_due
        {
            connection.is_due = true;
            self.due.push(number);
        }
    }

    /// Moves the numbers of those that have something to send into `due`.
    pub fn take_due(&mut self, due: &mut Vec<usize>) {
        due.clear();
        std::mem::swap(due, &mut self.due);
    }
}

pub struct Replies<'a, P> {
    pub protocol: &'a P,
    pub connections: &'a mut Connections,
    pub arena: &'a mut Arena,
}

/// A chunk, and whether it is given back when it is sent.
pub type Content = (Chunk, bool);

impl<P: Protocol> Replies<'_, P> {
    /// Answers a call of a connection.
    pub fn answer(&mut self, to: usize, call: &Call, done: io::Result<u32>, file_bytes: u64, content: Option<Content>) {
        let Replies { protocol, connections, arena } = self;
        let Some(connection) = connections.get(to) else {
            if let Some((chunk, true)) = content {
                arena.give_back(chunk);
            }
            return;
        };
        let data = content.zip(done.as_ref().ok()).map(|((chunk, is_owned), &bytes)| {
            let padding = protocol.padding(bytes);
            Data { chunk, bytes: bytes as usize, padding, is_owned }
        });
        connection.out.push(data, |out| protocol.reply(out, call, done, file_bytes));
        connections.mark(to);
    }
}

/// What carries out calls.
pub trait Storage: Files {
    /// Does it look at what is written?
    const TAKES_DATA: bool;

    /// Takes a call; it may be answered at once or later.
    fn take(&mut self, from: usize, call: Call, chunk: Option<Chunk>, replies: &mut Replies<'_, impl Protocol>);

    /// Hands over what was taken, and answers what is done. True if something was.
    ///
    /// # Errors
    /// When nothing can be done any more.
    fn advance(&mut self, replies: &mut Replies<'_, impl Protocol>) -> io::Result<bool>;

    /// What becomes readable when something is done.
    fn descriptor(&self) -> Option<std::os::fd::RawFd>;

    /// Are calls held back until more come?
    fn is_waiting(&self) -> bool;

    /// No more will come: they are carried out.
    fn release(&mut self);
}
