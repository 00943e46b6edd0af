//! A terminal: it thinks, executes a transaction, and thinks again.

use std::collections::VecDeque;
use std::time::Instant;

use super::wire::{Refusal, Wire};

/// SQLSTATE of a transaction that conflicted with another: it can be tried again.
const CONFLICT: &str = "40001";

/// A transaction under way.
pub struct Call {
    pub transaction: usize,
    pub arguments: Vec<String>,
    /// From here its latency counts: when it was due, though it may have been sent later.
    pub due: Instant,
    pub retries: u32,
}

pub struct Terminal {
    pub wire: Wire,
    /// In the order of their replies.
    pub calls: VecDeque<Call>,
    /// The poller watches for room to send.
    pub is_blocked: bool,
}

/// How a call ended.
pub enum Ended {
    Done,
    Failed(Refusal),
    /// It conflicted and is to be sent again.
    Again,
}

impl Terminal {
    /// Has a call sent next.
    ///
    /// # Errors
    /// If it cannot be said in the protocol.
    pub fn begin(&mut self, call: Call) -> anyhow::Result<()> {
        self.wire.execute(call.transaction, &call.arguments)?;
        self.calls.push_back(call);
        Ok(())
    }

    /// Looks for the reply. `None`: it is not there yet.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn receive(&mut self, retries_max: u32) -> anyhow::Result<Option<(Call, Ended)>> {
        let Some(reply) = self.wire.receive()? else { return Ok(None) };
        let Some(mut call) = self.calls.pop_front() else { return Ok(None) };
        match reply.refusal {
            None => Ok(Some((call, Ended::Done))),
            Some(refusal) if refusal.code == CONFLICT && call.retries < retries_max => {
                call.retries += 1;
                let again = Call { arguments: call.arguments.clone(), ..call };
                self.begin(again)?;
                let Call { transaction, due, retries, .. } = call;
                Ok(Some((Call { transaction, arguments: Vec::new(), due, retries }, Ended::Again)))
            }
            Some(refusal) => Ok(Some((call, Ended::Failed(refusal)))),
        }
    }
}
