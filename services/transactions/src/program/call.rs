//! One call of a function: a new instance, executed until it returns, and what it asks for meanwhile.
//!
//! A program executes on a stack of its own (a fiber). What it asks of the store may wait for the disk, and only this
//! task has the transaction: so the program is suspended, its request performed here, and the program resumed with the
//! answer. It is suspended, too, after each [`SLICE`] of fuel, so that other tasks of the processor go on.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use kernel::Processor;
use parking_lot::Mutex;
use wasmtime::{ModuleExport, Store, Trap, Val, WasmBacktrace};

use super::engine::Runtime;
use super::guest::{Answer, Exchange, Guest, Request};
use super::{Program, ProgramError};
use crate::store::{TableNo, Transaction};

/// Fuel of a call: 15 ms of a processor for long copies, below 100 ms for an empty loop, where a unit takes longest. The
/// largest transaction that the store takes, of 128 KiB in rows of ten bytes, needs a third of it.
pub const FUEL: u64 = 30_000_000;

/// After this much fuel other tasks have their turn: some hundred microseconds at most.
const SLICE: u64 = 100_000;

/// And after this many requests in a row.
const REQUESTS_A_SLICE: u32 = 128;

/// Tables that one call uses, at most.
const TABLES_MAX: usize = 256;

/// Frames of the program's stack in a message.
const FRAMES_SHOWN: usize = 4;

/// A function's arguments, as WebAssembly has them.
#[derive(Default)]
pub(super) struct Parameters {
    pub values: Vec<Val>,
    pub texts: Vec<Option<Arc<[u8]>>>,
    pub nulls: u32,
}

/// What a function returned, as WebAssembly has it.
pub(super) struct Returned {
    pub result: Option<Val>,
    pub reply: Option<Vec<u8>>,
    pub null: bool,
}

/// Executes the function `export` of `program`.
pub(super) async fn execute(
    cpu: &Processor,
    program: &Program,
    export: &ModuleExport,
    parameters: Parameters,
    results: usize,
    transaction: &mut Transaction,
) -> Result<Returned, ProgramError> {
    let runtime = Runtime::get().map_err(|error| ProgramError::Trap(error.to_owned()))?;
    let _place = runtime.places.take().await;
    let exchange = Arc::<Mutex<Exchange>>::default();
    let Parameters { values, texts, nulls } = parameters;
    let own = Arc::clone(&exchange);
    let guest = Guest { exchange: own, memory: None, texts, nulls, reply: None, returns_null: false };
    let mut store = Store::new(&runtime.engine, guest);
    store.limiter(|guest| guest);
    let mut results = vec![Val::I64(0); results];
    {
        let mut running = pin!(run(&mut store, program, export, &values, &mut results));
        let mut tables = Vec::new();
        let mut requests = 0;
        loop {
            // The program waits for nothing but this task.
            let polled = running.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(ended) = polled {
                ended.map_err(|error| reason(&error))?;
                break;
            }
            let request = exchange.lock().request.take();
            let is_request = request.is_some();
            if let Some(request) = request {
                let answer = perform(cpu, program, &mut tables, request, transaction).await?;
                exchange.lock().answer = Some(answer);
                requests += 1;
            }
            if !is_request || requests == REQUESTS_A_SLICE {
                requests = 0;
                if transaction.conflicts() {
                    // It may loop for ever on what it read at two times.
                    return Err(ProgramError::Timeout);
                }
                cpu.yield_now().await;
            }
        }
    }
    let guest = store.into_data();
    Ok(Returned { result: results.pop(), reply: guest.reply, null: guest.returns_null })
}

async fn run(
    store: &mut Store<Guest>,
    program: &Program,
    export: &ModuleExport,
    parameters: &[Val],
    results: &mut [Val],
) -> wasmtime::Result<()> {
    store.set_fuel(FUEL)?;
    store.fuel_async_yield_interval(Some(SLICE))?;
    let instance = program.instance.instantiate_async(&mut *store).await?;
    let memory = program.memory.and_then(|memory| instance.get_module_export(&mut *store, &memory));
    store.data_mut().memory = memory.and_then(|memory| memory.into_memory());
    let function = instance.get_module_export(&mut *store, export).and_then(|export| export.into_func());
    let function = function.ok_or_else(|| wasmtime::Error::msg("the function is not there"))?;
    function.call_async(&mut *store, parameters, results).await
}

/// Performs what the program asks for. `tables`: those that it has asked for by name; it knows them by their index.
async fn perform(
    cpu: &Processor,
    program: &Program,
    tables: &mut Vec<TableNo>,
    request: Request,
    transaction: &mut Transaction,
) -> Result<Answer, ProgramError> {
    let known = |table: u32| {
        let wrong = || ProgramError::Trap(format!("it has asked for no table by name that would be number {table}"));
        tables.get(table as usize).copied().ok_or_else(wrong)
    };
    Ok(match request {
        Request::Table(name) => {
            if tables.len() == TABLES_MAX {
                return Err(ProgramError::Trap(format!("it asks for more than {TABLES_MAX} tables")));
            }
            tables.push(program.table(&name, transaction)?);
            Answer::Table(tables.len() as u32 - 1)
        }
        Request::Get { table, key } => Answer::Row(transaction.get(cpu, known(table)?, &key).await?),
        Request::Put { table, key, row } => {
            transaction.put(known(table)?, &key, &row)?;
            Answer::Done
        }
        Request::Delete { table, key } => {
            transaction.delete(known(table)?, &key)?;
            Answer::Done
        }
        Request::Next { table, range } => {
            let table = known(table)?;
            if range.is_empty() {
                return Ok(Answer::Entry(None));
            }
            let bounds = (range.low.as_ref().map(Vec::as_slice), range.high.as_ref().map(Vec::as_slice));
            Answer::Entry(transaction.next(cpu, table, bounds, range.backwards).await?)
        }
    })
}

/// Why a program ended, in a person's words.
fn reason(error: &wasmtime::Error) -> ProgramError {
    let what = match (error.downcast_ref::<ProgramError>(), error.downcast_ref::<Trap>()) {
        (Some(ProgramError::Trap(what)), _) => what.clone(),
        (Some(other), _) => return other.clone(),
        (None, Some(Trap::OutOfFuel)) => return ProgramError::Timeout,
        (None, Some(Trap::StackOverflow)) => "its stack is full: endless recursion?".to_owned(),
        (None, Some(Trap::UnreachableCodeReached)) => "it came to an instruction `unreachable`".to_owned(),
        (None, Some(trap)) => trap.to_string().trim_start_matches("wasm trap: ").to_owned(),
        (None, None) => format!("{error:#}"),
    };
    let frames = error.downcast_ref::<WasmBacktrace>().map_or(&[][..], WasmBacktrace::frames);
    let names: Vec<&str> = frames.iter().filter_map(|frame| frame.func_name()).take(FRAMES_SHOWN).collect();
    let place = if names.is_empty() { String::new() } else { format!(" (in {})", names.join(", called by ")) };
    ProgramError::Trap(what + &place)
}
