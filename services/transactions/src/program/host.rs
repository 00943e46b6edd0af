//! What programs import: the functions of the module [`MODULE`]. Pointers and lengths are of the program's memory, and
//! checked; whatever is wrong with them ends the call.
//!
//! | function | what it does |
//! |---|---|
//! | `table(name, bytes) -> table` | the number of a table, for this call |
//! | `get(table, key, bytes, row, room) -> bytes` | reads a row: its length, of which at most `room` bytes are copied to `row`; -1 if there is none |
//! | `put(table, key, bytes, row, bytes)` | writes a row |
//! | `delete(table, key, bytes)` | deletes a row, if there is one |
//! | `next(table, low, bytes, high, bytes, flags, entry, room) -> bytes` | the first row of a range, or the last: the length of its key as an u32 (little-endian), the key, the row, of which at most `room` bytes are copied; -1 if there is none |
//! | `argument(index, at)` | copies the text or bytea of an argument, as long as the function's parameter says |
//! | `is_null(index) -> boolean` | whether an argument is NULL |
//! | `reply(at, bytes)` | the text or bytea that the function returns |
//! | `null()` | the function returns NULL |
//! | `abort(at, bytes)` | ends the call with this message; nothing is changed |
//! | `panic(at, bytes)` | ends it as a program that failed |

use std::future::poll_fn;
use std::ops::Bound;
use std::task::Poll;

use wasmtime::{Caller, Linker, Memory};

use super::ProgramError;
use super::direct::Direct;
use super::guest::{Answer, Guest, KeyBytes, Range, Request, SLICE, Suspendable};
use crate::store::{KEY_BYTES_MAX, ROW_BYTES_MAX, Searched, StoreError, TABLE_NAME_BYTES_MAX};

pub const MODULE: &str = "awase";
pub const NAMES: [&str; 11] =
    ["table", "get", "put", "delete", "next", "argument", "is_null", "reply", "null", "abort", "panic"];

/// Longest text or bytea that a function returns. Bytes.
pub const REPLY_BYTES_MAX: usize = 1 << 20;

/// Longest message of `abort`; what is longer is cut. Bytes.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Fuel that a call of the host takes, on top of one for each byte and each deleted row that `next` passes over: about what it
/// takes of the processor's time.
const FUEL_A_CALL: u64 = 500;

/// There is no row.
const NONE: i32 = -1;

/// Bits of `next`'s flags.
mod flag {
    pub const LOW_EXCLUDED: u32 = 1;
    pub const HIGH_EXCLUDED: u32 = 2;
    pub const NO_LOW: u32 = 4;
    pub const NO_HIGH: u32 = 8;
    pub const BACKWARDS: u32 = 16;
    pub const ALL: u32 = 31;
}

type Bytes = (u32, u32);

/// A range, as `next` has it: low, high, flags, the room for the entry.
type Next = (u32, u32, u32, u32, u32, u32, u32, u32);

/// Defines all of them for guests that can be suspended.
pub(super) fn define(linker: &mut Linker<Suspendable>) -> wasmtime::Result<()> {
    linker.func_wrap_async(MODULE, "table", |mut caller, (name, bytes): (u32, u32)| {
        Box::new(async move {
            let request = ask_table(&mut caller, (name, bytes))?;
            told_table(ask(&mut caller, request).await?)
        })
    })?;
    linker.func_wrap_async(
        MODULE,
        "get",
        |mut caller, (table, key, bytes, row, room): (u32, u32, u32, u32, u32)| {
            Box::new(async move {
                let key = read_key(&mut caller, (key, bytes))?;
                let answer = ask(&mut caller, Request::Get { table, key }).await?;
                told_row(&mut caller, answer, (row, room))
            })
        },
    )?;
    linker.func_wrap_async(
        MODULE,
        "put",
        |mut caller, (table, key, bytes, row, row_bytes): (u32, u32, u32, u32, u32)| {
            Box::new(async move {
                let request = ask_put(&mut caller, table, (key, bytes), (row, row_bytes))?;
                done(ask(&mut caller, request).await?)
            })
        },
    )?;
    linker.func_wrap_async(MODULE, "delete", |mut caller, (table, key, bytes): (u32, u32, u32)| {
        Box::new(async move {
            let key = read_key(&mut caller, (key, bytes))?;
            done(ask(&mut caller, Request::Delete { table, key }).await?)
        })
    })?;
    linker.func_wrap_async(
        MODULE,
        "next",
        |mut caller, (table, low, low_bytes, high, high_bytes, flags, entry, room): Next| {
            Box::new(async move {
                let range = read_range(&mut caller, (low, low_bytes), (high, high_bytes), flags)?;
                let answer = ask(&mut caller, Request::Next { table, range }).await?;
                told_entry(&mut caller, answer, (entry, room))
            })
        },
    )?;
    linker.func_wrap_async(MODULE, "argument", |mut caller, (index, at): (u32, u32)| {
        Box::new(async move {
            turn(&mut caller).await?;
            argument(&mut caller, index, at)
        })
    })?;
    linker.func_wrap_async(MODULE, "is_null", |mut caller, (index,): (u32,)| {
        Box::new(async move {
            turn(&mut caller).await?;
            is_null(&mut caller, index)
        })
    })?;
    linker.func_wrap_async(MODULE, "reply", |mut caller, (at, bytes): (u32, u32)| {
        Box::new(async move {
            turn(&mut caller).await?;
            reply(&mut caller, at, bytes)
        })
    })?;
    linker.func_wrap_async(MODULE, "null", |mut caller, (): ()| {
        Box::new(async move {
            turn(&mut caller).await?;
            null(&mut caller)
        })
    })?;
    define_ends(linker)
}

/// Defines all of them for guests that are executed at once.
pub(super) fn define_at_once(linker: &mut Linker<Direct>) -> wasmtime::Result<()> {
    type Guest<'a> = Caller<'a, Direct>;
    linker.func_wrap(MODULE, "table", |mut caller: Guest<'_>, name: u32, bytes: u32| {
        let request = ask_table(&mut caller, (name, bytes))?;
        told_table(caller.data_mut().perform(request)?)
    })?;
    linker.func_wrap(
        MODULE,
        "get",
        |mut caller: Guest<'_>, table: u32, key: u32, bytes: u32, row: u32, room: u32| {
            let key = read_key(&mut caller, (key, bytes))?;
            let answer = caller.data_mut().perform(Request::Get { table, key })?;
            told_row(&mut caller, answer, (row, room))
        },
    )?;
    linker.func_wrap(
        MODULE,
        "put",
        |mut caller: Guest<'_>, table: u32, key: u32, bytes: u32, row: u32, row_bytes: u32| {
            let request = ask_put(&mut caller, table, (key, bytes), (row, row_bytes))?;
            done(caller.data_mut().perform(request)?)
        },
    )?;
    linker.func_wrap(MODULE, "delete", |mut caller: Guest<'_>, table: u32, key: u32, bytes: u32| {
        let key = read_key(&mut caller, (key, bytes))?;
        done(caller.data_mut().perform(Request::Delete { table, key })?)
    })?;
    linker.func_wrap(
        MODULE,
        "next",
        |mut caller: Guest<'_>,
         table: u32,
         low: u32,
         low_bytes: u32,
         high: u32,
         high_bytes: u32,
         flags: u32,
         entry: u32,
         room: u32| {
            let range = read_range(&mut caller, (low, low_bytes), (high, high_bytes), flags)?;
            let answer = caller.data_mut().perform(Request::Next { table, range })?;
            told_entry(&mut caller, answer, (entry, room))
        },
    )?;
    linker
        .func_wrap(MODULE, "argument", |mut caller: Guest<'_>, index: u32, at: u32| argument(&mut caller, index, at))?;
    linker.func_wrap(MODULE, "is_null", |mut caller: Guest<'_>, index: u32| is_null(&mut caller, index))?;
    linker.func_wrap(MODULE, "reply", |mut caller: Guest<'_>, at: u32, bytes: u32| reply(&mut caller, at, bytes))?;
    linker.func_wrap(MODULE, "null", |mut caller: Guest<'_>| null(&mut caller))?;
    define_ends(linker)
}

/// Those that end the call.
fn define_ends<G: Guest>(linker: &mut Linker<G>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "abort", |mut caller: Caller<'_, G>, at: u32, bytes: u32| {
        let message = message(&mut caller, (at, bytes))?;
        wasmtime::Result::<()>::Err(ProgramError::Abort(message).into())
    })?;
    linker.func_wrap(MODULE, "panic", |mut caller: Caller<'_, G>, at: u32, bytes: u32| {
        let message = message(&mut caller, (at, bytes))?;
        wasmtime::Result::<()>::Err(misuse(&message).into())
    })?;
    Ok(())
}

fn argument<G: Guest>(caller: &mut Caller<'_, G>, index: u32, at: u32) -> wasmtime::Result<()> {
    let argument = caller.data().invocation().texts.get(index as usize).cloned().flatten();
    let argument = argument.ok_or_else(|| misuse("there is no text or bytea in the argument that it asks for"))?;
    write(caller, "the room for the argument", (at, argument.len() as u32), &[&argument]).map(drop)
}

fn is_null<G: Guest>(caller: &mut Caller<'_, G>, index: u32) -> wasmtime::Result<i32> {
    charge(caller, 0)?;
    let is_null = caller.data().invocation().nulls.checked_shr(index).is_some_and(|nulls| nulls & 1 == 1);
    Ok(i32::from(is_null))
}

fn reply<G: Guest>(caller: &mut Caller<'_, G>, at: u32, bytes: u32) -> wasmtime::Result<()> {
    let long = |bytes| misuse(&format!("it returns {bytes} bytes; at most {REPLY_BYTES_MAX} are possible"));
    let reply = read(caller, "what it returns", (at, bytes), REPLY_BYTES_MAX, long)?.to_vec();
    caller.data_mut().invocation_mut().reply = Some(reply);
    Ok(())
}

fn null<G: Guest>(caller: &mut Caller<'_, G>) -> wasmtime::Result<()> {
    caller.data_mut().invocation_mut().returns_null = true;
    charge(caller, 0)
}

/// Lets others have their turn if the program has used up a slice since. [`charge`] begins the runtime's slice anew, so
/// that a program that calls the host now and then would never be suspended.
async fn turn(caller: &mut Caller<'_, Suspendable>) -> wasmtime::Result<()> {
    let fuel = caller.get_fuel()?;
    let guest = caller.data_mut();
    if guest.slice_began.saturating_sub(fuel) >= SLICE {
        guest.slice_began = fuel;
        let mut was_suspended = false;
        // Without a request: that is what it looks like after a slice of the runtime's, too.
        poll_fn(|_| if std::mem::replace(&mut was_suspended, true) { Poll::Ready(()) } else { Poll::Pending }).await;
    }
    Ok(())
}

/// Has the request performed outside of the program, which is suspended until then.
async fn ask(caller: &mut Caller<'_, Suspendable>, request: Request) -> wasmtime::Result<Answer> {
    turn(caller).await?;
    let exchange = caller.data().exchange.clone();
    exchange.lock().request = Some(request);
    Ok(poll_fn(|_| exchange.lock().answer.take().map_or(Poll::Pending, Poll::Ready)).await)
}

fn ask_table<G: Guest>(caller: &mut Caller<'_, G>, name: Bytes) -> wasmtime::Result<Request> {
    let long = |_| ProgramError::Store(StoreError::TableName);
    let name = read(caller, "the table's name", name, TABLE_NAME_BYTES_MAX, long)?;
    let name = str::from_utf8(name).map_err(|_| misuse("a table's name is not UTF-8"))?;
    Ok(Request::Table(name.to_owned()))
}

fn ask_put<G: Guest>(caller: &mut Caller<'_, G>, table: u32, key: Bytes, row: Bytes) -> wasmtime::Result<Request> {
    let key = read_key(caller, key)?;
    let long = |bytes| ProgramError::Store(StoreError::RowTooLong(bytes));
    let row = read(caller, "the row", row, ROW_BYTES_MAX, long)?;
    Ok(Request::Put { table, key, row: row.into() })
}

fn told_table(answer: Answer) -> wasmtime::Result<u32> {
    match answer {
        Answer::Table(table) => Ok(table),
        _ => Err(mismatch()),
    }
}

fn told_row<G: Guest>(caller: &mut Caller<'_, G>, answer: Answer, room: Bytes) -> wasmtime::Result<i32> {
    match answer {
        Answer::Row(None) => Ok(NONE),
        Answer::Row(Some(found)) => write(caller, "the room for the row", room, &[&found]),
        _ => Err(mismatch()),
    }
}

fn told_entry<G: Guest>(caller: &mut Caller<'_, G>, answer: Answer, room: Bytes) -> wasmtime::Result<i32> {
    match answer {
        Answer::Entry(Searched { row, passed_over }) => {
            spend(caller, passed_over as u64)?;
            let Some((key, row)) = row else { return Ok(NONE) };
            let length = (key.len() as u32).to_le_bytes();
            write(caller, "the room for the entry", room, &[&length, &key, &row])
        }
        _ => Err(mismatch()),
    }
}

fn done(answer: Answer) -> wasmtime::Result<()> {
    match answer {
        Answer::Done => Ok(()),
        _ => Err(mismatch()),
    }
}

fn mismatch() -> wasmtime::Error {
    misuse("the answer is to another request").into()
}

fn misuse(what: &str) -> ProgramError {
    ProgramError::Trap(what.to_owned())
}

fn outside(what: &str) -> ProgramError {
    misuse(&format!("{what} lies outside of its memory"))
}

fn memory<G: Guest>(caller: &mut Caller<'_, G>) -> Result<Memory, ProgramError> {
    // A start function executes before the instance is known.
    let memory = caller
        .data()
        .invocation()
        .memory
        .or_else(|| caller.get_export("memory").and_then(|export| export.into_memory()));
    memory.ok_or_else(|| misuse("it has no memory"))
}

/// Bytes of the program's memory. More than `max` of them: `long` of their number.
fn read<'a, G: Guest>(
    caller: &'a mut Caller<'_, G>,
    what: &str,
    (at, bytes): Bytes,
    max: usize,
    long: impl FnOnce(usize) -> ProgramError,
) -> wasmtime::Result<&'a [u8]> {
    let bytes = bytes as usize;
    if bytes > max {
        return Err(long(bytes).into());
    }
    charge(caller, bytes)?;
    let memory = memory(caller)?;
    let content = memory.data(caller).get(at as usize..).and_then(|content| content.get(..bytes));
    Ok(content.ok_or_else(|| outside(what))?)
}

fn read_key<G: Guest>(caller: &mut Caller<'_, G>, at: Bytes) -> wasmtime::Result<KeyBytes> {
    let long = |bytes| ProgramError::Store(StoreError::KeyTooLong(bytes));
    read(caller, "the key", at, KEY_BYTES_MAX, long).map(KeyBytes::from_slice)
}

fn read_range<G: Guest>(caller: &mut Caller<'_, G>, low: Bytes, high: Bytes, flags: u32) -> wasmtime::Result<Range> {
    if flags & !flag::ALL != 0 {
        return Err(misuse(&format!("there are no flags {flags:#x} of next")).into());
    }
    let is_set = |bit| flags & bit != 0;
    let mut bound = |at, none, excluded| -> wasmtime::Result<Bound<KeyBytes>> {
        Ok(match (is_set(none), is_set(excluded)) {
            (true, _) => Bound::Unbounded,
            (false, true) => Bound::Excluded(read_key(caller, at)?),
            (false, false) => Bound::Included(read_key(caller, at)?),
        })
    };
    Ok(Range {
        low: bound(low, flag::NO_LOW, flag::LOW_EXCLUDED)?,
        high: bound(high, flag::NO_HIGH, flag::HIGH_EXCLUDED)?,
        backwards: is_set(flag::BACKWARDS),
    })
}

/// Writes as much of `parts` as there is room for, and returns their whole length.
fn write<G: Guest>(
    caller: &mut Caller<'_, G>,
    what: &str,
    (at, room): Bytes,
    parts: &[&[u8]],
) -> wasmtime::Result<i32> {
    let whole: usize = parts.iter().map(|part| part.len()).sum();
    charge(caller, whole)?;
    let memory = memory(caller)?;
    let target = memory.data_mut(caller).get_mut(at as usize..).and_then(|target| target.get_mut(..room as usize));
    let mut target = target.ok_or_else(|| outside(what))?;
    for part in parts {
        let (now, rest) = target.split_at_mut(part.len().min(target.len()));
        now.copy_from_slice(&part[..now.len()]);
        target = rest;
    }
    Ok(i32::try_from(whole).map_err(|_| misuse("the row is too long"))?)
}

fn message<G: Guest>(caller: &mut Caller<'_, G>, (at, bytes): Bytes) -> wasmtime::Result<String> {
    let bytes = bytes.min(MESSAGE_BYTES_MAX as u32);
    let message = read(caller, "the message", (at, bytes), MESSAGE_BYTES_MAX, |_| misuse("the message is too long"))?;
    Ok(String::from_utf8_lossy(message).into_owned())
}

fn charge<G: Guest>(caller: &mut Caller<'_, G>, bytes: usize) -> wasmtime::Result<()> {
    spend(caller, FUEL_A_CALL + bytes as u64)
}

fn spend<G: Guest>(caller: &mut Caller<'_, G>, fuel: u64) -> wasmtime::Result<()> {
    let left = caller.get_fuel()?;
    caller.set_fuel(left.saturating_sub(fuel))
}
