//! A call that is executed at once (OLTP-4): on the processor's own stack, without a stack to suspend it on and without
//! leaving it for what it asks. Most calls are short and find all rows in memory: for them that is all.
//!
//! A call that would have to wait for the disk, or takes longer than a slice, is given up, and executed anew where it can
//! be suspended. A program is a function of its arguments and of what it read, so nobody can tell.

use std::sync::Arc;

use kernel::Processor;
use kernel::trace::Event;
use wasmtime::{Store, Trap};

use super::ProgramError;
use super::callee::{Callee, Parameters, Returned, SLICE, called, reason};
use super::direct::{Direct, Waits};
use super::engine::Runtime;
use super::guest::{Guest, Invocation};
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
    let Ok(runtime) = Runtime::get() else { return Ok(None) };
    let (Some(_place), Some(savepoint)) = (runtime.places.try_take(), transaction.savepoint()) else {
        return Ok(None);
    };
    let own = transaction.take();
    let guest = Direct {
        invocation: Invocation::new(parameters.texts.clone(), parameters.nulls),
        cpu: cpu.clone(),
        names: Arc::clone(&callee.program.names),
        requests: Requests::default(),
        transaction: own,
    };
    let mut store = Store::new(&runtime.engine, guest);
    let began = cpu.begin(Event::ProgramCalled, cpu.job());
    let called = call(&mut store, callee, parameters);
    let Direct { invocation, transaction: own, requests, .. } = store.into_data();
    let is_given_up = called.as_ref().is_err_and(is_to_be_suspended);
    cpu.end(began, Event::ProgramCalled, cpu.job(), requests.count, if is_given_up { 2 } else { 1 });
    *transaction = own;
    match called {
        Ok(result) => {
            attempts.succeeded();
            Ok(Some(Returned::new(result, invocation, true)))
        }
        Err(_) if is_given_up => {
            attempts.given_up(comes_again);
            transaction.roll_back(savepoint);
            Ok(None)
        }
        Err(error) => Err(reason(&error)),
    }
}

fn call(
    store: &mut Store<Direct>,
    callee: &Callee<'_>,
    parameters: &Parameters,
) -> wasmtime::Result<Option<wasmtime::Val>> {
    store.limiter(|guest| guest.invocation_mut());
    store.set_fuel(SLICE)?;
    let instance = callee.program.at_once.instantiate(&mut *store)?;
    let function = called(store, callee, &instance)?;
    let mut results = callee.room();
    function.call(store, &parameters.values, &mut results)?;
    Ok(results.pop())
}

fn is_to_be_suspended(error: &wasmtime::Error) -> bool {
    error.is::<Waits>() || matches!(error.downcast_ref(), Some(Trap::OutOfFuel))
}
