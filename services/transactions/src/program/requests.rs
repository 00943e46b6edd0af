//! What a program asks of the transaction that it is a part of.

use std::collections::BTreeMap;

use kernel::Processor;
use kernel::counters::Count;
use kernel::trace::Event;
use parking_lot::RwLock;

use super::ProgramError;
use super::guest::{Answer, KeyBytes, Request};
use crate::store::{FoundTable, Searched, TableNo, Transaction};

/// Tables that one call uses, at most.
const TABLES_MAX: usize = 256;

/// Tables that a program's calls asked for by name, which are resolved once (OLTP-5). No more than the database has: a table
/// keeps its number.
#[derive(Default)]
pub(super) struct Names(RwLock<BTreeMap<Box<str>, TableNo>>);

/// What one call has asked for.
pub(super) struct Requests {
    pub count: u64,
    /// It may not write.
    read_only: bool,
    /// The tables that it has asked for by name; it knows them by their index.
    tables: Vec<TableNo>,
}

impl Requests {
    pub fn new(read_only: bool) -> Requests {
        Requests { count: 0, read_only, tables: Vec::new() }
    }
}

impl Names {
    /// The table of that name.
    ///
    /// # Errors
    /// If it is not the programs', or there cannot be one.
    fn table(&self, cpu: &Processor, name: &str, transaction: &mut Transaction) -> Result<TableNo, ProgramError> {
        let is_on = cpu.switches().resolved_names;
        if is_on && let Some(no) = self.0.read().get(name) {
            return Ok(*no);
        }
        check_table(name)?;
        let FoundTable { no, is_stored } = transaction.find_table(name)?;
        if is_on && is_stored {
            self.0.write().insert(name.into(), no);
        }
        Ok(no)
    }
}

/// Whether a program may use a table of that name.
fn check_table(name: &str) -> Result<(), ProgramError> {
    match name.split('.').next() {
        Some("awase") => Err(ProgramError::Trap(format!("the table {name} is the monitor's own"))),
        _ => Ok(()),
    }
}

/// How it is counted and traced.
fn recorded(request: &Request) -> (Count, Event) {
    match request {
        Request::Table(_) => (Count::ProgramTables, Event::ProgramTable),
        Request::Get { .. } => (Count::ProgramGets, Event::ProgramGet),
        Request::Put { .. } => (Count::ProgramPuts, Event::ProgramPut),
        Request::Delete { .. } => (Count::ProgramDeletes, Event::ProgramDelete),
        Request::Next { .. } => (Count::ProgramNexts, Event::ProgramNext),
    }
}

/// Performs what the program asks for.
pub(super) async fn perform(
    cpu: &Processor,
    names: &Names,
    Requests { count, read_only, tables }: &mut Requests,
    request: Request,
    transaction: &mut Transaction,
) -> Result<Answer, ProgramError> {
    let (counted, event) = recorded(&request);
    cpu.count(counted, 1);
    *count += 1;
    let began = cpu.begin_implied(event, cpu.job());
    let answer = async {
        let known = |table: u32| {
            let wrong =
                || ProgramError::Trap(format!("it has asked for no table by name that would be number {table}"));
            tables.get(table as usize).copied().ok_or_else(wrong)
        };
        Ok(match request {
            Request::Table(name) => {
                if tables.len() == TABLES_MAX {
                    return Err(ProgramError::Tables(TABLES_MAX));
                }
                tables.push(names.table(cpu, &name, transaction)?);
                Answer::Table(tables.len() as u32 - 1)
            }
            Request::Get { table, key } => Answer::Row(transaction.get(cpu, known(table)?, &key).await?),
            Request::Put { .. } | Request::Delete { .. } if *read_only => return Err(ProgramError::ReadOnly),
            Request::Put { table, key, row } => {
                transaction.put_row(known(table)?, &key, row)?;
                Answer::Done
            }
            Request::Delete { table, key } => {
                transaction.delete(known(table)?, &key)?;
                Answer::Done
            }
            Request::Next { table, range } => {
                let table = known(table)?;
                if range.is_empty() {
                    return Ok(Answer::Entry(Searched { row: None, passed_over: 0 }));
                }
                let bounds = (range.low.as_ref().map(KeyBytes::as_slice), range.high.as_ref().map(KeyBytes::as_slice));
                Answer::Entry(transaction.search(cpu, table, bounds, range.backwards).await?)
            }
        })
    }
    .await;
    cpu.end(began, event, cpu.job(), 0, 0);
    answer
}
