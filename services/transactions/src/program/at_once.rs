//! A call that is executed at once (OLTP-4): on the processor's own stack, without a stack to suspend it on and without
//! leaving it for what it asks. Most calls are short and find all rows in memory: for them that is all.
//!
//! A call that would have to wait for the disk, or takes longer than a slice, is given up, and executed anew where it can
//! be suspended. A program is a function of its arguments and of what it read, so nobody can tell.

use std::sync::Arc;

use kernel::Processor;
use kernel::trace::Event;
use wasmtime::Trap;

use super::ProgramError;
use super::callee::{Callee, Parameters, Returned, reason};
use super::direct::{Direct, Waits, With};
use super::guest::Invocation;
use super::instance::CallInstance;
use super::requests::Requests;
use crate::store::Transaction;

/// Executes a call at once. `None`: it must be executed where it can be suspended; nothing has happened. `comes_again`: then
/// this is asked once more before that.
///
/// # Errors
/// If the program aborts or misbehaves, or the database fails.
pub(super) fn execute(
    cpu: &Processor,
    callee: &Callee<'_>,
    parameters: &Parameters,
    transaction: &mut Transaction,
    comes_again: bool,
) -> Result<Option<Returned>, ProgramError> {
    let Some(attempts) = callee.attempts.filter(|attempts| attempts.is_worth(comes_again)) else { return Ok(None) };
    let Some(attempt) = transaction.attempt() else { return Ok(None) };
    let Some(mut instance) = CallInstance::take(cpu, callee.program) else { return Ok(None) };
    let (names, own) = (Arc::clone(&callee.program.names), transaction.take());
    let requests = Requests::new(callee.read_only);
    *instance.store.data_mut() = Direct {
        invocation: Invocation::new(parameters.texts.clone(), parameters.nulls),
        with: Some(With { cpu: cpu.clone(), names, requests, transaction: own }),
    };
    let began = cpu.begin(Event::ProgramCalled, cpu.job());
    let called = instance.call(callee, parameters);
    let Direct { invocation, with } = std::mem::take(instance.store.data_mut());
    let With { requests, transaction: own, .. } = with.unwrap_or_else(|| unreachable!("the call has put it there"));
    let is_given_up = called.as_ref().is_err_and(is_to_be_suspended);
    cpu.end(began, Event::ProgramCalled, cpu.job(), requests.count, if is_given_up { 2 } else { 1 });
    *transaction = own;
    match called {
        Ok(result) => {
            instance.give_back(cpu);
            attempts.succeeded();
            Ok(Some(Returned::new(result, invocation, true)))
        }
        Err(_) if is_given_up => {
            attempts.given_up(comes_again);
            transaction.give_up(attempt);
            Ok(None)
        }
        Err(error) => Err(reason(&error)),
    }
}

fn is_to_be_suspended(error: &wasmtime::Error) -> bool {
    error.is::<Waits>() || matches!(error.downcast_ref(), Some(Trap::OutOfFuel))
}
