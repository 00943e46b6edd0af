//! The SQL that is served: calls of functions, transactions, and the little that clients send by themselves.

mod catalogue;
mod lexer;
mod parser;
mod session;

pub use catalogue::{Column as LookupColumn, Lookup};
pub use lexer::no_parameter;
pub use parser::parse;

use super::refusal::Refusal;
use super::types::SqlType;

/// Statements of one query at most.
pub const STATEMENTS_MAX: usize = 1000;

#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    Query(Query),
    /// A query of PostgreSQL's catalogues.
    Lookup(Lookup),
    /// `None`: as `default_transaction_read_only`.
    Begin {
        read_only: Option<bool>,
    },
    /// Of the open block, from here on.
    ReadOnly(bool),
    Commit,
    Rollback,
    Savepoint {
        action: SavepointAction,
        name: String,
    },
    /// `None`: its default.
    Set {
        name: String,
        value: Option<String>,
        /// Until the block ends.
        local: bool,
    },
    ResetAll,
    /// `None`: all.
    Show(Option<String>),
    /// As a new session, but for an open transaction.
    DiscardAll,
    /// `None`: all.
    Deallocate(Option<String>),
    /// What is accepted though there is nothing to do; its tag.
    Nothing(&'static str),
    /// Well-formed as far as is seen, and not served. What comes before it in a query is executed.
    Refused(Refusal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavepointAction {
    Make,
    Release,
    RollBackTo,
}

impl Statement {
    /// In memory beside itself, about.
    pub fn bytes(&self) -> usize {
        let len = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        match self {
            Statement::Query(query) => {
                query.columns.iter().map(|column| column.what.bytes() + len(&column.alias)).sum()
            }
            Statement::Lookup(lookup) => lookup.bytes(),
            Statement::Set { name, value, .. } => name.len() + len(value),
            Statement::Show(name) | Statement::Deallocate(name) => len(name),
            Statement::Savepoint { name, .. } => name.len(),
            _ => 0,
        }
    }
}

/// A statement with one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    pub columns: Vec<Column>,
    pub kind: QueryKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKind {
    Select,
    /// A function that returns nothing has no row.
    Call,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    pub what: Expression,
    pub alias: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Expression {
    Constant(Constant),
    Call(Call),
    /// What is known of the session.
    Known(Known),
}

impl Expression {
    fn bytes(&self) -> usize {
        let of = |constant: &Constant| {
            let text = match &constant.literal {
                Literal::Number(text) | Literal::Text(text) => text.len(),
                Literal::Null | Literal::Bool(_) | Literal::Parameter(_) => 0,
            };
            text + size_of_val(&*constant.casts)
        };
        size_of::<Column>()
            + match self {
                Expression::Constant(constant) => of(constant),
                Expression::Call(call) => {
                    let arguments = call.arguments.iter().map(of).sum::<usize>();
                    call.function.len() + size_of_val(&*call.arguments) + arguments
                }
                Expression::Known(_) => 0,
            }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    Version,
    Database,
    Schema,
    User,
    ProcessId,
    /// Of `pg_is_in_recovery`.
    InRecovery,
    /// Of functions that connection pools call and that have nothing to do.
    Nothing,
}

impl Known {
    fn of_word(word: &str) -> Option<Known> {
        match word {
            "current_catalog" => Some(Known::Database),
            "current_schema" => Some(Known::Schema),
            "current_user" | "session_user" | "user" | "current_role" => Some(Known::User),
            _ => None,
        }
    }

    /// Of a function without arguments.
    fn of_function(name: &str) -> Option<Known> {
        match name {
            "version" => Some(Known::Version),
            "current_database" => Some(Known::Database),
            "current_schema" => Some(Known::Schema),
            "pg_backend_pid" => Some(Known::ProcessId),
            "pg_is_in_recovery" => Some(Known::InRecovery),
            "pg_advisory_unlock_all" => Some(Known::Nothing),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub function: String,
    pub arguments: Vec<Constant>,
    /// Characters, from 1.
    pub position: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Constant {
    pub literal: Literal,
    /// From the inside.
    pub casts: Vec<SqlType>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    Null,
    Bool(bool),
    /// As written, with its sign.
    Number(String),
    Text(String),
    /// From 1.
    Parameter(u16),
}

#[cfg(test)]
mod tests;
