//! The replies to what was executed, and statements that are about the session alone.

use bytes::BytesMut;
use pgwire::messages::data::{NoData, ParameterDescription};
use pgwire::messages::response::EmptyQueryResponse;

use super::cycle::{Item, Step};
use super::prepared::{Bound, Prepared};
use super::refusal::{Refusal, SqlState};
use super::reply::{complete, describe, row};
use super::session::Conversation;
use super::settings::{Lasts, Settings, report};
use super::sql::{Lookup, QueryKind, Statement};
use super::types::Format;
use super::wire::put;
use crate::Value;

pub fn describe_statement(out: &mut BytesMut, prepared: &Prepared) {
    put(out, &ParameterDescription::new(prepared.parameters.iter().map(|of| of.oid()).collect()));
    // The formats are chosen later.
    describe_columns(out, prepared, |_| Format::Text);
}

pub fn describe_portal(out: &mut BytesMut, bound: &Bound) {
    describe_columns(out, &bound.prepared, bound.format());
}

fn describe_columns(out: &mut BytesMut, prepared: &Prepared, format: impl Fn(usize) -> Format) {
    match &prepared.columns {
        Some(columns) => describe(out, columns, format),
        None => put(out, &NoData::new()),
    }
}

fn is_lookup(item: &Item) -> bool {
    matches!(item, Item::Step(step) if matches!(step.bound.prepared.statement, Statement::Lookup(_)))
}

impl Conversation {
    /// Appends the replies to items that were executed. `rows`: of the queries among them. A look-up may take 100 µs: others
    /// have their turn before the next one.
    pub(super) async fn write(&mut self, items: &[Item], rows: Vec<Vec<Value>>) {
        let mut rows = rows.into_iter();
        for part in items.split_inclusive(is_lookup) {
            let looks_up = part.last().is_some_and(is_lookup);
            if looks_up && std::mem::replace(&mut self.cycle.has_looked_up, true) {
                self.give_way().await;
            }
            self.write_at_once(part, &mut rows);
        }
    }

    async fn give_way(&self) {
        // An open transaction does not expire meanwhile.
        let taken = self.block.take();
        self.cpu.yield_now().await;
        if let Some((transaction, explicit, programs)) = taken {
            self.block.put_back(transaction, explicit, programs);
        }
    }

    pub(super) fn write_at_once(&mut self, items: &[Item], rows: &mut impl Iterator<Item = Vec<Value>>) {
        for item in items {
            match item {
                Item::Reply(bytes) => self.cycle.out.extend_from_slice(bytes),
                Item::Step(step) if step.bound.prepared.query().is_some() => {
                    let values = rows.next().unwrap_or_default();
                    self.write_row(step, &values);
                }
                Item::Step(step) => self.local(step),
                Item::Failure(_) => {}
            }
        }
    }

    fn write_row(&mut self, step: &Step, values: &[Value]) {
        let (bound, out) = (&step.bound, &mut self.cycle.out);
        if let Some(columns) = &bound.prepared.columns {
            if step.describes {
                describe(out, columns, bound.format());
            }
            row(out, columns, values, bound.format());
        }
        let is_call = bound.prepared.query().is_some_and(|query| query.kind == QueryKind::Call);
        complete(out, if is_call { "CALL" } else { "SELECT 1" });
    }

    /// Would [`Conversation::local`] fail? `settings`: as statements before it leave them, if they set some.
    pub(super) fn check(&self, statement: &Statement, settings: &mut Option<Settings>) -> Result<(), Refusal> {
        match statement {
            Statement::Set { name, value, .. } => {
                let settings = settings.get_or_insert_with(|| self.settings.clone());
                settings.set(name, value.as_deref(), Lasts::Session).map(drop)
            }
            Statement::ResetAll => {
                settings.get_or_insert_with(|| self.settings.clone()).reset_all(Lasts::Session);
                Ok(())
            }
            Statement::Show(Some(name)) => settings.as_ref().unwrap_or(&self.settings).get(name).map(drop),
            Statement::Deallocate(Some(name)) if self.statements.get(name).is_none() => {
                let message = format!("prepared statement {name:?} does not exist");
                Err(Refusal::new(SqlState::UNKNOWN_STATEMENT, message))
            }
            Statement::DiscardAll if self.block.is_explicit() => {
                let message = "DISCARD ALL cannot run inside a transaction block";
                Err(Refusal::new(SqlState::ACTIVE_TRANSACTION, message))
            }
            Statement::DiscardAll => self.check(&Statement::ResetAll, settings),
            _ => Ok(()),
        }
    }

    /// Executes a statement that is about the session alone. It was checked: it does not fail.
    fn local(&mut self, step: &Step) {
        let tag = match &step.bound.prepared.statement {
            Statement::Set { name, value, local } => {
                self.set(name, value.as_deref(), *local);
                if value.is_some() { "SET" } else { "RESET" }
            }
            Statement::ResetAll => {
                self.reset_settings();
                "RESET"
            }
            Statement::Show(name) => return self.show(name.as_deref(), step),
            Statement::Lookup(lookup) => return self.look_up(lookup, step),
            Statement::DiscardAll => {
                self.reset_settings();
                self.forget_statements();
                "DISCARD ALL"
            }
            Statement::Deallocate(Some(name)) => {
                self.statements.remove(name);
                "DEALLOCATE"
            }
            Statement::Deallocate(None) => {
                self.forget_statements();
                "DEALLOCATE ALL"
            }
            Statement::Nothing("") => return put(&mut self.cycle.out, &EmptyQueryResponse::new()),
            Statement::Nothing(tag) => tag,
            Statement::Query(_)
            | Statement::Refused(_)
            | Statement::Begin { .. }
            | Statement::ReadOnly(_)
            | Statement::Commit
            | Statement::Rollback
            | Statement::Savepoint { .. } => return,
        };
        self.complete(tag);
    }

    fn set(&mut self, name: &str, value: Option<&str>, local: bool) {
        let lasts = match (self.block.is_explicit(), local) {
            (true, true) => Lasts::Block,
            (true, false) => Lasts::Committed,
            (false, false) => Lasts::Session,
            (false, true) => {
                let message = "SET LOCAL can only be used in transaction blocks";
                return self.warn(SqlState::NO_ACTIVE_TRANSACTION, message);
            }
        };
        if let Ok(Some((name, value))) = self.settings.set(name, value, lasts) {
            report(&mut self.cycle.out, name, &value);
        }
    }

    fn reset_settings(&mut self) {
        let before = self.settings.clone();
        let lasts = if self.block.is_explicit() { Lasts::Committed } else { Lasts::Session };
        self.settings.reset_all(lasts);
        self.settings.report_since(&before, &mut self.cycle.out);
    }

    fn look_up(&mut self, lookup: &Lookup, step: &Step) {
        let (bound, out) = (&step.bound, &mut self.cycle.out);
        let Some(columns) = &bound.prepared.columns else { return };
        if step.describes {
            describe(out, columns, bound.format());
        }
        let rows = lookup.rows(&bound.values);
        rows.iter().for_each(|values| row(out, columns, values, bound.format()));
        complete(out, &format!("SELECT {}", rows.len()));
    }

    fn show(&mut self, name: Option<&str>, step: &Step) {
        let Some(columns) = &step.bound.prepared.columns else { return };
        let out = &mut self.cycle.out;
        if step.describes {
            describe(out, columns, step.bound.format());
        }
        let text = |text: &str| Value::Text(text.to_owned());
        let mut shown = 0;
        match name {
            Some(name) => {
                let value = self.settings.get(name).unwrap_or_default();
                row(out, columns, &[text(value)], step.bound.format());
            }
            None => {
                for (name, value) in self.settings.all() {
                    row(out, columns, &[text(name), text(value)], step.bound.format());
                    shown += 1;
                }
            }
        }
        complete(out, &if shown > 0 { format!("SELECT {shown}") } else { "SHOW".to_owned() });
    }
}
