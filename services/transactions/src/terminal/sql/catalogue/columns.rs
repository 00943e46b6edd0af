//! What the columns of such a query are called, as by PostgreSQL, and of which types they are.

use super::{Column, Placed, Token, is, is_any, is_symbol, name, outermost, pg_type};
use crate::terminal::types::SqlType;

/// Words after which none is an alias.
const INSIDE: &[&str] =
    &["and", "or", "not", "is", "in", "like", "ilike", "between", "collate", "then", "else", "when", "case"];
/// Words that end an expression.
const ENDS: &[&str] = &["end", "null", "true", "false"];

/// `None`: the list has all columns of a table, or more than `max`.
pub fn columns(list: &[Placed], max: usize) -> Option<Vec<Column>> {
    let list = list.split_at(usize::from(is_any(list.first(), &["all", "distinct"]))).1;
    let mut columns = Vec::new();
    let commas = outermost(list).filter(|at| is_symbol(list.get(*at), ','));
    let mut begin = 0;
    for end in commas.chain([list.len()]) {
        let item = &list[begin..end];
        if item.is_empty() || is_symbol(item.last(), '*') || columns.len() == max {
            return None;
        }
        columns.push(column(item));
        begin = end + 1;
    }
    Some(columns)
}

fn column(item: &[Placed]) -> Column {
    let before = |from_end: usize| item.len().checked_sub(from_end).and_then(|at| item.get(at));
    let (what, alias) = match name(item.last()) {
        Some(alias) if is(before(2), "as") => (&item[..item.len() - 2], Some(alias)),
        Some(alias) if ends(before(2)) && !is_any(item.last(), ENDS) => (&item[..item.len() - 1], Some(alias)),
        _ => (item, None),
    };
    let field = path(what).map(str::to_owned);
    let name = alias.map_or_else(|| default_name(what).to_owned(), str::to_owned);
    Column { name, of: type_of(what), field }
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
