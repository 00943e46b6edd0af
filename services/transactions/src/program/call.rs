//! One call of a function: a new instance, executed until it returns, and what it asks for meanwhile.
//!
//! A program that cannot be executed at once (`at_once.rs`) executes on a stack of its own (a fiber). What it asks of the store may wait for the disk, and only this
//! task has the transaction: so the program is suspended, its request performed here, and the program resumed with the
//! answer. It is suspended, too, after each [`SLICE`] of fuel, so that other tasks of the processor go on.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use kernel::Processor;
use kernel::trace::Event;
use parking_lot::Mutex;
use wasmtime::{Store, Val};

use super::ProgramError;
use super::at_once;
use super::callee::{Callee, Parameters, Returned, called, reason};
use super::engine::Runtime;
use super::guest::{Exchange, Guest, Invocation, SLICE, Suspendable};
use super::requests::{Requests, perform};
use crate::store::Transaction;

/// Fuel of a call. Measured with a release build (100 million, scaled): 20 ms for an empty loop, 30 ms for one that computes
/// addresses and reads there; loads that all miss the processor's caches, each the address of the next, take 40 ns a unit:
/// about a second, made for harm. The largest transaction that the store takes, of 128 KiB in rows of ten bytes, needs a
/// third of it (estimated).
pub const FUEL: u64 = 30_000_000;

/// Other tasks have their turn after this many requests in a row, as after a slice of fuel.
const REQUESTS_A_SLICE: u32 = 128;

/// Executes a call: at once if that is possible.
pub(super) async fn execute(
    cpu: &Processor,
    callee: &Callee<'_>,
    parameters: Parameters,
    transaction: &mut Transaction,
) -> Result<Returned, ProgramError> {
    if cpu.switches().hottest_first
        && let Some(returned) = at_once::execute(cpu, callee, &parameters, transaction, false)?
    {
        return Ok(returned);
    }
    let runtime = Runtime::get().map_err(|error| ProgramError::Trap(error.to_owned()))?;
    let _place = runtime.places.take().await;
    let exchange = Arc::<Mutex<Exchange>>::default();
    let Parameters { values, texts, nulls } = parameters;
    let invocation = Invocation::new(texts, nulls);
    let guest = Suspendable { invocation, exchange: Arc::clone(&exchange), slice_began: FUEL };
    let mut store = Store::new(&runtime.engine, guest);
    store.limiter(|guest| guest.invocation_mut());
    let mut results = callee.room();
    let mut requests = Requests::new(callee.read_only);
    let began = cpu.begin(Event::ProgramCalled, cpu.job());
    let ended = async {
        let mut running = pin!(run(&mut store, callee, &values, &mut results));
        let mut in_a_row = 0;
        loop {
            // The program waits for nothing but this task.
            let polled = running.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(ended) = polled {
                return ended.map_err(|error| reason(&error));
            }
            let request = exchange.lock().request.take();
            let is_request = request.is_some();
            if let Some(request) = request {
                let answer = perform(cpu, &callee.program.names, &mut requests, request, transaction).await?;
                exchange.lock().answer = Some(answer);
                in_a_row += 1;
            }
            if !is_request || in_a_row == REQUESTS_A_SLICE {
                in_a_row = 0;
                if transaction.conflicts() {
                    // It may loop for ever on what it read at two times.
                    return Err(ProgramError::Timeout);
                }
                cpu.yield_now().await;
            }
        }
    }
    .await;
    cpu.end(began, Event::ProgramCalled, cpu.job(), requests.count, 0);
    ended?;
    Ok(Returned::new(results.pop(), store.into_data().invocation, false))
}

async fn run(
    store: &mut Store<Suspendable>,
    callee: &Callee<'_>,
    parameters: &[Val],
    results: &mut [Val],
) -> wasmtime::Result<()> {
    store.set_fuel(FUEL)?;
    store.fuel_async_yield_interval(Some(SLICE))?;
    let instance = callee.program.instance.instantiate_async(&mut *store).await?;
    let function = called(store, callee, &instance)?;
    function.call_async(&mut *store, parameters, results).await
}
