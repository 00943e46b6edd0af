//! A guest that has the transaction to itself: what it asks for is performed in its call, or the call ends.

use std::sync::Arc;

use futures_util::FutureExt;
use kernel::Processor;
use thiserror::Error;

use super::guest::{Answer, Guest, Invocation, Request};
use super::requests::{Names, Requests, perform};
use crate::store::Transaction;

/// A guest that is executed at once.
#[derive(Default)]
pub(super) struct Direct {
    pub invocation: Invocation,
    /// What it works with. `None`: between two calls.
    pub with: Option<With>,
}

pub(super) struct With {
    pub cpu: Processor,
    pub names: Arc<Names>,
    pub requests: Requests,
    pub transaction: Transaction,
}

/// What a call asks for takes an operation of the disk.
#[derive(Debug, Error)]
#[error("it would wait")]
pub(super) struct Waits;

impl Guest for Direct {
    fn invocation(&self) -> &Invocation {
        &self.invocation
    }

    fn invocation_mut(&mut self) -> &mut Invocation {
        &mut self.invocation
    }
}

impl Direct {
    /// Performs what the program asks for, unless that takes an operation of the disk.
    pub(super) fn perform(&mut self, request: Request) -> wasmtime::Result<Answer> {
        let with = self.with.as_mut().unwrap_or_else(|| unreachable!("a guest asks for something within a call"));
        let With { cpu, names, requests, transaction } = with;
        match perform(cpu, names, requests, request, transaction).now_or_never() {
            Some(answer) => Ok(answer?),
            None => Err(Waits.into()),
        }
    }
}
