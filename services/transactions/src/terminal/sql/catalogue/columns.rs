//! What the columns of such a query are called, as by PostgreSQL, and of which types they are.

use super::pg_type::{self, Field, is_of};
use super::{Column, EMPTY, Placed, Token, find, first_table, is, is_any, is_from, is_symbol, name, outermost};
use crate::Value;
use crate::terminal::types::SqlType;

/// Words after which none is an alias.
const INSIDE: &[&str] =
    &["and", "or", "not", "is", "in", "like", "ilike", "between", "collate", "then", "else", "when", "case"];
/// Words that end an expression.
const ENDS: &[&str] = &["end", "null", "true", "false"];

/// `absent`: tables of which no served type has a row. `None`: the list has all columns of a table, or more than `max`.
pub fn columns(list: &[Placed], absent: &[&str], max: usize) -> Option<Vec<Column>> {
    let list = list.split_at(usize::from(is_any(list.first(), &["all", "distinct"]))).1;
    let mut columns = Vec::new();
    let commas = outermost(list).filter(|at| is_symbol(list.get(*at), ','));
    let mut begin = 0;
    for end in commas.chain([list.len()]) {
        let item = &list[begin..end];
        if item.is_empty() || is_symbol(item.last(), '*') || columns.len() == max {
            return None;
        }
        columns.push(column(item, absent));
        begin = end + 1;
    }
    Some(columns)
}

fn column(item: &[Placed], absent: &[&str]) -> Column {
    let before = |from_end: usize| item.len().checked_sub(from_end).and_then(|at| item.get(at));
    let (what, alias) = match name(item.last()) {
        Some(alias) if is(before(2), "as") => (&item[..item.len() - 2], Some(alias)),
        Some(alias) if ends(before(2)) && !is_any(item.last(), ENDS) => (&item[..item.len() - 1], Some(alias)),
        _ => (item, None),
    };
    let name = alias.map_or_else(|| default_name(what).to_owned(), str::to_owned);
    let field = field(what, absent);
    let of = match (call(what), &field) {
        (Some("coalesce"), Some(Field::Own(name))) => pg_type::type_of(name).unwrap_or(SqlType::Text),
        (Some("coalesce"), Some(Field::Same(_))) => SqlType::Oid,
        _ => type_of(what),
    };
    Column { name, of, field }
}

/// `None`: it is none that is known.
fn field(what: &[Placed], absent: &[&str]) -> Option<Field> {
    match call(what) {
        Some("coalesce") => {
            let inner = what.get(2..what.len() - 1).filter(|_| is_symbol(what.get(1), '('))?;
            let all = inner.split(|placed| placed.token == Token::Symbol(',')).map(|of| match of {
                [Placed { token: Token::Number(number), .. }] if number == "0" => Some(Field::Same(Value::BigInt(0))),
                of => plain(of, absent),
            });
            let all: Vec<Field> = all.collect::<Option<_>>()?;
            Some(all.into_iter().find(|field| !field.is_null()).unwrap_or(Field::Same(Value::Null)))
        }
        Some("array") if is_empty(what.get(2..what.len() - 1)?) => Some(Field::Same(Value::Text("{}".into()))),
        _ => plain(what, absent),
    }
}

fn plain(what: &[Placed], absent: &[&str]) -> Option<Field> {
    if is_of(absent, what) && what.len() == 3 || what.len() == 1 && is(what.first(), "null") {
        return Some(Field::Same(Value::Null));
    }
    path(what).filter(|name| pg_type::type_of(name).is_some()).map(|name| Field::Own(name.to_owned()))
}

/// `SELECT a.b FROM c ...`, of a catalogue that is empty.
fn is_empty(query: &[Placed]) -> bool {
    let from = outermost(query).find(|at| is_from(query, *at)).filter(|_| is(query.first(), "select"));
    from.is_some_and(|from| {
        let table = first_table(&query[from..]).filter(|table| *table != "pg_type" && EMPTY.contains(table));
        table.is_some() && path(&query[1..from]).is_some() && find(query, &["union", "intersect", "except"]).is_none()
    })
}

/// Can an expression end so?
fn ends(token: Option<&Placed>) -> bool {
    match token.map(|placed| &placed.token) {
        Some(Token::Word(_)) => !is_any(token, INSIDE),
        Some(Token::Symbol(symbol)) => matches!(symbol, ')' | ']'),
        Some(Token::Cast) | None => false,
        Some(_) => true,
    }
}

/// The last part of the name of a column: `a.b.c`.
fn path(what: &[Placed]) -> Option<&str> {
    let is_path = what.iter().enumerate().all(|(at, placed)| match at % 2 {
        0 => name(Some(placed)).is_some() && !is_any(Some(placed), ENDS),
        _ => placed.token == Token::Symbol('.'),
    });
    name(what.last()).filter(|_| what.len() % 2 == 1 && is_path)
}

/// What is cast, and the name of the last type that it is cast to.
fn cast(what: &[Placed]) -> Option<(&[Placed], &[Placed])> {
    let mut casts = outermost(what).filter(|at| what[*at].token == Token::Cast);
    let first = casts.next()?;
    let of = &what[casts.last().unwrap_or(first) + 1..];
    let is_type =
        |placed: &Placed| name(Some(placed)).is_some() || matches!(placed.token, Token::Symbol('.' | '[' | ']'));
    of.iter().all(is_type).then_some((&what[..first], of))
}

fn default_name(what: &[Placed]) -> &str {
    let Some((inner, of)) = cast(what) else { return own_name(what).unwrap_or("?column?") };
    let is_whole = inner.len() == 1 || is_symbol(inner.first(), '(') && is_symbol(inner.last(), ')');
    let of = of.iter().rev().find_map(|placed| name(Some(placed))).unwrap_or_default();
    let of_type = || Some(SqlType::named(of).map_or(of, |known| known.typname())).filter(|_| is_whole);
    own_name(inner).or_else(of_type).unwrap_or("?column?")
}

fn own_name(what: &[Placed]) -> Option<&str> {
    let word = name(what.first()).filter(|_| is_any(what.first(), &["case", "array"]));
    path(what).or(word).or_else(|| call(what))
}

/// The name of the function, if it is but a call.
fn call(what: &[Placed]) -> Option<&str> {
    let open = outermost(what).find(|at| is_symbol(what.get(*at), '('))?;
    let close = outermost(what).find(|at| is_symbol(what.get(*at), ')'))?;
    path(&what[..open]).filter(|_| close == what.len() - 1)
}

fn type_of(what: &[Placed]) -> SqlType {
    if let Some((_, of)) = cast(what) {
        return path(of).and_then(SqlType::named).unwrap_or(SqlType::Text);
    }
    match (path(what), call(what)) {
        (Some(field), _) => pg_type::type_of(field).unwrap_or(SqlType::Text),
        (_, Some("count")) => SqlType::Int8,
        _ => SqlType::Text,
    }
}
