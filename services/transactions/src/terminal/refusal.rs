//! What a client is told in place of a result: a message, and the code by which programs tell errors apart.

use bytes::BytesMut;
use machine::Errno;
use pgwire::messages::response::{ErrorResponse, NoticeResponse};

use super::wire::put;
use crate::CallError;
use crate::program::ProgramError;
use crate::store::{CommitError, StoreError};

/// A code of PostgreSQL's documentation, Appendix A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqlState(pub &'static str);

impl SqlState {
    pub const NO_ACTIVE_TRANSACTION: SqlState = SqlState("25P01");
    pub const ACTIVE_TRANSACTION: SqlState = SqlState("25001");
    pub const READ_ONLY_TRANSACTION: SqlState = SqlState("25006");
    pub const IN_FAILED_TRANSACTION: SqlState = SqlState("25P02");
    pub const IDLE_IN_TRANSACTION_TIMEOUT: SqlState = SqlState("25P03");
    pub const RESOLUTION_UNKNOWN: SqlState = SqlState("08007");
    pub const PROTOCOL_VIOLATION: SqlState = SqlState("08P01");
    pub const NOT_SUPPORTED: SqlState = SqlState("0A000");
    pub const INVALID_BYTES: SqlState = SqlState("22021");
    pub const OUT_OF_RANGE: SqlState = SqlState("22003");
    pub const INVALID_PARAMETER_VALUE: SqlState = SqlState("22023");
    pub const INVALID_TEXT: SqlState = SqlState("22P02");
    pub const INVALID_BINARY: SqlState = SqlState("22P03");
    pub const UNKNOWN_STATEMENT: SqlState = SqlState("26000");
    pub const INVALID_AUTHORIZATION: SqlState = SqlState("28000");
    pub const INVALID_PASSWORD: SqlState = SqlState("28P01");
    pub const UNKNOWN_PORTAL: SqlState = SqlState("34000");
    pub const PROGRAM_FAILED: SqlState = SqlState("38000");
    pub const INVALID_SAVEPOINT: SqlState = SqlState("3B001");
    pub const UNKNOWN_DATABASE: SqlState = SqlState("3D000");
    pub const CONFLICT: SqlState = SqlState("40001");
    pub const SYNTAX: SqlState = SqlState("42601");
    pub const INVALID_NAME: SqlState = SqlState("42602");
    pub const UNKNOWN_NAME: SqlState = SqlState("42704");
    pub const TYPE_MISMATCH: SqlState = SqlState("42804");
    pub const UNKNOWN_FUNCTION: SqlState = SqlState("42883");
    pub const UNKNOWN_PARAMETER: SqlState = SqlState("42P02");
    pub const DUPLICATE_PORTAL: SqlState = SqlState("42P03");
    pub const DUPLICATE_STATEMENT: SqlState = SqlState("42P05");
    pub const INDETERMINATE_TYPE: SqlState = SqlState("42P18");
    pub const DISK_FULL: SqlState = SqlState("53100");
    pub const OUT_OF_MEMORY: SqlState = SqlState("53200");
    pub const TOO_MANY_CONNECTIONS: SqlState = SqlState("53300");
    pub const LIMIT_EXCEEDED: SqlState = SqlState("54000");
    pub const QUERY_CANCELLED: SqlState = SqlState("57014");
    pub const SHUTDOWN: SqlState = SqlState("57P01");
    pub const CANNOT_CONNECT_NOW: SqlState = SqlState("57P03");
    pub const IO_ERROR: SqlState = SqlState("58030");
    pub const DATA_CORRUPTED: SqlState = SqlState("XX001");
    pub const ABORTED_BY_PROGRAM: SqlState = SqlState("P0001");
}

/// What is said to a client whose session goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub state: SqlState,
    pub message: String,
    pub hint: Option<String>,
    /// In the text of the query: characters, from 1.
    pub position: Option<usize>,
}

impl Refusal {
    pub fn new(state: SqlState, message: impl Into<String>) -> Refusal {
        Refusal { state, message: message.into(), hint: None, position: None }
    }

    /// A transaction was committed, and then its log could not be written: it is written again later, if that is possible.
    pub fn undecided(error: &StoreError) -> Refusal {
        let message = format!("{error}; the transaction may be durable, now or later, or not");
        Refusal::new(SqlState::RESOLUTION_UNKNOWN, message).hint("Look before it is repeated.")
    }

    pub fn hint(self, hint: impl Into<String>) -> Refusal {
        Refusal { hint: Some(hint.into()), ..self }
    }

    pub fn at(self, position: usize) -> Refusal {
        Refusal { position: Some(position), ..self }
    }

    fn fields(&self, severity: &str) -> Vec<(u8, String)> {
        // A text ends with a zero byte, which a program's message may hold, too.
        let text = |text: &str| text.replace('\0', "\u{fffd}");
        let mut fields = vec![
            (b'S', severity.to_owned()),
            (b'V', severity.to_owned()),
            (b'C', self.state.0.to_owned()),
            (b'M', text(&self.message)),
        ];
        fields.extend(self.hint.as_deref().map(|hint| (b'H', text(hint))));
        fields.extend(self.position.map(|position| (b'P', position.to_string())));
        fields
    }

    pub fn write(&self, out: &mut BytesMut) {
        put(out, &ErrorResponse::new(self.fields("ERROR")));
    }

    /// The session ends with it.
    pub fn write_fatal(&self, out: &mut BytesMut) {
        put(out, &ErrorResponse::new(self.fields("FATAL")));
    }

    pub fn write_warning(&self, out: &mut BytesMut) {
        put(out, &NoticeResponse::new(self.fields("WARNING")));
    }
}

impl From<&StoreError> for Refusal {
    fn from(error: &StoreError) -> Refusal {
        let state = match error {
            StoreError::KeyTooLong(_)
            | StoreError::RowTooLong(_)
            | StoreError::TransactionTooLong
            | StoreError::TooManyTables => SqlState::LIMIT_EXCEEDED,
            StoreError::Damaged(_) => SqlState::DATA_CORRUPTED,
            StoreError::TableName => SqlState::INVALID_NAME,
            StoreError::Full => SqlState::DISK_FULL,
            StoreError::Closing | StoreError::LeaseOver => SqlState::SHUTDOWN,
            StoreError::Volume(Errno::NO_SPACE) => SqlState::DISK_FULL,
            StoreError::Volume(_) => SqlState::IO_ERROR,
        };
        Refusal::new(state, error.to_string())
    }
}

impl From<&ProgramError> for Refusal {
    fn from(error: &ProgramError) -> Refusal {
        let state = match error {
            ProgramError::Store(error) => return error.into(),
            ProgramError::Abort(_) => SqlState::ABORTED_BY_PROGRAM,
            ProgramError::Timeout => SqlState::QUERY_CANCELLED,
            ProgramError::Memory(_) => SqlState::OUT_OF_MEMORY,
            ProgramError::Tables(_) => SqlState::LIMIT_EXCEEDED,
            ProgramError::ReadOnly => SqlState::READ_ONLY_TRANSACTION,
            _ => SqlState::PROGRAM_FAILED,
        };
        Refusal::new(state, error.to_string())
    }
}

impl From<&CommitError> for Refusal {
    fn from(error: &CommitError) -> Refusal {
        match error {
            CommitError::Store(error) => error.into(),
            CommitError::Conflict(conflict) => {
                Refusal::new(SqlState::CONFLICT, format!("could not serialize access: {conflict}"))
                    .hint("The transaction can be executed again.")
            }
        }
    }
}

impl From<&CallError> for Refusal {
    fn from(error: &CallError) -> Refusal {
        match error {
            CallError::Program(error) => error.into(),
            CallError::Conflict(conflict) => (&CommitError::from(*conflict)).into(),
            CallError::Store(error) => error.into(),
        }
    }
}
