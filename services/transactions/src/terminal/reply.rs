//! Messages to clients, as bytes.

use bytes::{BufMut, BytesMut};
use pgwire::messages::data::{FieldDescription, RowDescription};
use pgwire::messages::response::{ReadyForQuery, TransactionStatus};

use super::types::{Format, SqlType};
use super::wire::put;
use crate::Value;

/// A column of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    pub of: SqlType,
}

pub fn describe(out: &mut BytesMut, columns: &[Column], format: impl Fn(usize) -> Format) {
    let field = |(index, column): (usize, &Column)| {
        let (size, modifier, format) = (column.of.size(), -1, format(index) as i16);
        FieldDescription::new(column.name.clone(), 0, 0, column.of.oid(), size, modifier, format)
    };
    put(out, &RowDescription::new(columns.iter().enumerate().map(field).collect()));
}

/// A row, written in place: this is the message of every call.
pub fn row(out: &mut BytesMut, columns: &[Column], values: &[Value], format: impl Fn(usize) -> Format) {
    out.put_u8(b'D');
    let start = out.len();
    out.put_i32(0);
    out.put_i16(values.len() as i16);
    for (index, (column, value)) in columns.iter().zip(values).enumerate() {
        if *value == Value::Null && column.of != SqlType::Void {
            out.put_i32(-1);
            continue;
        }
        let at = out.len();
        out.put_i32(0);
        column.of.write(value, format(index), out);
        let len = (out.len() - at - 4) as i32;
        out[at..at + 4].copy_from_slice(&len.to_be_bytes());
    }
    let len = (out.len() - start) as i32;
    out[start..start + 4].copy_from_slice(&len.to_be_bytes());
}

/// `CommandComplete`, in place for the same reason.
pub fn complete(out: &mut BytesMut, tag: &str) {
    out.put_u8(b'C');
    out.put_i32(tag.len() as i32 + 5);
    out.put_slice(tag.as_bytes());
    out.put_u8(0);
}

pub fn ready(out: &mut BytesMut, status: TransactionStatus) {
    put(out, &ReadyForQuery::new(status));
}
