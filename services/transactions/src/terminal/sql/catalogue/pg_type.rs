//! What `pg_type` has of the types that are served, for those who look up all types, or some by their names or numbers.

use super::{AFTER_FROM, Column, Placed, Token, find, is, is_any, is_symbol, name, outermost};
use crate::Value;
use crate::terminal::types::SqlType;

/// Its columns, and those that are joined to them.
const FIELDS: &[(&str, SqlType)] = &[
    ("oid", SqlType::Oid),
    ("typname", SqlType::Text),
    ("typnamespace", SqlType::Oid),
    ("nspname", SqlType::Text),
    ("typlen", SqlType::Int2),
    ("typtype", SqlType::Text),
    ("typcategory", SqlType::Text),
    ("typdelim", SqlType::Text),
    ("typrelid", SqlType::Oid),
    ("typelem", SqlType::Oid),
    ("typarray", SqlType::Oid),
    ("typbasetype", SqlType::Oid),
    ("typnotnull", SqlType::Bool),
    ("typtypmod", SqlType::Int4),
    ("typinput", SqlType::Text),
    ("typoutput", SqlType::Text),
    ("typreceive", SqlType::Text),
    ("typsend", SqlType::Text),
    ("proname", SqlType::Text),
    ("rngsubtype", SqlType::Oid),
    // As Sequelize calls them in a query of WITH.
    ("rngtypname", SqlType::Text),
    ("rngtypid", SqlType::Oid),
    ("rngtyparray", SqlType::Oid),
];

/// Of `pg_catalog`.
const NAMESPACE: i64 = 11;

/// Bytes of a field in a reply, at most: the longest is `numeric_send`, with its length.
const FIELD_BYTES_MAX: usize = 16;

/// Of all conditions of a query, at most: each is compared whenever it is executed.
const OPERANDS_MAX: usize = 100;

/// Tables that may be joined, at most.
const JOINS_MAX: usize = 4;

/// What a column has of each served type.
#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    /// What `pg_type` has in the column of this name, or a table that is joined to it.
    Own(String),
    /// The same for all.
    Same(Value),
}

impl Field {
    pub fn is_null(&self) -> bool {
        match self {
            Field::Own(name) => field(SqlType::Bool, name) == Some(Value::Null),
            Field::Same(value) => *value == Value::Null,
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Field::Own(name) => name.len(),
            Field::Same(value) => value.bytes(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    field: String,
    /// One of which it must be.
    any: Vec<Operand>,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Literal(String),
    Parameter(u16),
}

impl Condition {
    pub fn bytes(&self) -> usize {
        let text = |operand: &Operand| if let Operand::Literal(text) = operand { text.len() } else { 0 };
        size_of::<Self>() + self.field.len() + self.any.iter().map(text).sum::<usize>() + size_of_val(&*self.any)
    }

    fn is_met(&self, of: SqlType, values: &[Value]) -> bool {
        let own = field(of, &self.field).filter(|own| *own != Value::Null).map(|own| text(&own));
        own.is_some_and(|own| {
            self.any.iter().any(|operand| match operand {
                Operand::Literal(text) => *text == own,
                Operand::Parameter(number) => match values.get(usize::from(*number) - 1) {
                    Some(Value::Text(text)) => *text == own,
                    Some(value) => text(value) == own,
                    None => false,
                },
            })
        })
    }
}

/// Of a column of a catalogue.
pub fn type_of(column: &str) -> Option<SqlType> {
    FIELDS.iter().find(|(name, _)| *name == column).map(|(_, of)| *of)
}

/// All but `void`. Only simple look-ups find that: JDBC looks for it as for types that are not served, and takes no row well.
fn served() -> impl Iterator<Item = SqlType> {
    SqlType::all().filter(|of| *of != SqlType::Void)
}

/// Is it a name or the number of a type that is served?
pub fn is_served(text: &str) -> bool {
    let folded = text.to_lowercase().replace(['"', '{', '}'], "");
    let name = folded.strip_prefix("pg_catalog.").unwrap_or(&folded);
    let of = name.parse().map_or_else(|_| SqlType::named(name), SqlType::of_oid);
    of.is_some_and(|of| served().any(|served| served == of))
}

pub fn is_of_served(value: &Value) -> bool {
    match value {
        Value::Text(text) => is_served(text),
        Value::BigInt(number) => is_served(&number.to_string()),
        _ => false,
    }
}

/// To compare.
fn text(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        Value::BigInt(number) => number.to_string(),
        Value::Bool(value) => (if *value { "t" } else { "f" }).to_owned(),
        _ => String::new(),
    }
}

fn field(of: SqlType, name: &str) -> Option<Value> {
    let text = |text: &str| Some(Value::Text(text.to_owned()));
    let separator = if matches!(of, SqlType::Numeric | SqlType::Void) { "_" } else { "" };
    let function = |does: &str| text(&format!("{}{separator}{does}", of.typname()));
    match name {
        "oid" => Some(Value::BigInt(of.oid().into())),
        "typname" => text(of.typname()),
        "typnamespace" => Some(Value::BigInt(NAMESPACE)),
        "nspname" => text("pg_catalog"),
        "typlen" => Some(Value::BigInt(of.size().into())),
        "typtype" => text(if of == SqlType::Void { "p" } else { "b" }),
        "typcategory" => text(match of {
            SqlType::Void => "P",
            SqlType::Bool => "B",
            SqlType::Bytea => "U",
            SqlType::Text | SqlType::Varchar => "S",
            _ => "N",
        }),
        "typdelim" => text(","),
        "typinput" | "proname" => function("in"),
        "typoutput" => function("out"),
        "typreceive" => function("recv"),
        "typsend" => function("send"),
        "typrelid" | "typelem" | "typarray" | "typbasetype" => Some(Value::BigInt(0)),
        "typnotnull" => Some(Value::Bool(false)),
        "typtypmod" => Some(Value::BigInt(-1)),
        "rngsubtype" | "rngtypname" | "rngtypid" | "rngtyparray" => Some(Value::Null),
        _ => None,
    }
}

pub fn rows_bytes_max(columns: usize) -> usize {
    SqlType::all().count() * (16 + columns * FIELD_BYTES_MAX)
}

pub fn rows(columns: &[Column], conditions: &[Condition], values: &[Value]) -> Vec<Vec<Value>> {
    let fields = |of| {
        let value = |column: &Column| match &column.field {
            Some(Field::Own(name)) => field(of, name).unwrap_or(Value::Null),
            Some(Field::Same(value)) => value.clone(),
            None => Value::Null,
        };
        columns.iter().map(value).collect()
    };
    let is_met = |of: &SqlType| conditions.iter().all(|condition| condition.is_met(*of, values));
    SqlType::all().filter(is_met).map(fields).collect()
}

/// Those of a query of the served types. `clauses`: from FROM on. `None`: it is not that simple.
pub fn conditions(
    columns: &[Column],
    joined: &Joined<'_>,
    list: &[Placed],
    clauses: &[Placed],
) -> Option<Vec<Condition>> {
    let end = find(clauses, &["order"]).unwrap_or(clauses.len());
    let clauses = &clauses[..end];
    let is_known = columns.iter().all(|column| column.field.is_some());
    if !is_known || find(clauses, &["group", "limit", "offset", "fetch", "window"]).is_some() {
        return None;
    }
    let where_at = find(clauses, &["where"]).unwrap_or(clauses.len());
    let rest = unparenthesized(clauses.get(where_at + 1..).unwrap_or_default());
    let is_other = |of: &[Placed]| is_of(&joined.names, of) && is(of.get(2), "oid");
    if list.windows(3).chain(rest.windows(3)).any(is_other) || rest.windows(3).any(|of| is_of(&joined.absent, of)) {
        return None;
    }
    let (mut conditions, mut operands, mut begin) = (Vec::new(), 0, 0);
    if rest.is_empty() {
        return Some(conditions);
    }
    if find(rest, &["or"]).is_some() {
        return None;
    }
    let ands = outermost(rest).filter(|at| is(rest.get(*at), "and"));
    for end in ands.chain([rest.len()]) {
        let whole = unparenthesized(&rest[std::mem::replace(&mut begin, end + 1)..end]);
        let or = find(whole, &["or"]);
        let first = unparenthesized(&whole[..or.unwrap_or(whole.len())]);
        let Some((condition, [])) = condition(first) else { return None };
        // What all meet, they meet whatever else is sufficient.
        if or.is_none() {
            operands += condition.any.len();
            conditions.push(condition);
        } else if !SqlType::all().all(|of| condition.is_met(of, &[])) {
            return None;
        }
    }
    (operands <= OPERANDS_MAX).then_some(conditions)
}

/// Without parentheses around all of it.
fn unparenthesized(of: &[Placed]) -> &[Placed] {
    let opened = of.iter().take_while(|token| is_symbol(Some(token), '(')).count();
    let closed = of.iter().rev().take_while(|token| is_symbol(Some(token), ')')).count();
    // Those that are still open wherever one looks between them.
    let (mut depth, mut around) = (opened, opened);
    for token in &of[opened..of.len() - closed] {
        match token.token {
            Token::Symbol('(') => depth += 1,
            Token::Symbol(')') => depth = depth.saturating_sub(1),
            _ => {}
        }
        around = around.min(depth);
    }
    let pairs = if depth == closed { around } else { 0 };
    &of[pairs..of.len() - pairs]
}

/// Does no served type meet a WHERE clause, unless a parameter is its name or number? `false`: that is not seen.
pub fn finds_none(clause: &[Placed]) -> bool {
    let Some((_, rest)) = clause.split_first() else { return false };
    let rest = &rest[..find(rest, AFTER_FROM).unwrap_or(rest.len())];
    if find(rest, &["or"]).is_some() {
        return false;
    }
    let ands = outermost(rest).filter(|at| is(rest.get(*at), "and"));
    let mut begin = 0;
    ands.chain([rest.len()]).any(|end| is_never_met(&rest[std::mem::replace(&mut begin, end + 1)..end]))
}

/// `field = x` that no served type meets; `oid = to_regtype(x)` of another.
fn is_never_met(condition: &[Placed]) -> bool {
    if let Some((condition, [])) = self::condition(condition) {
        let is_identity = matches!(&*condition.field, "oid" | "typname");
        let is_literal = condition.any.iter().all(|operand| matches!(operand, Operand::Literal(_)));
        return (is_identity || is_literal) && served().all(|of| !condition.is_met(of, &[]));
    }
    let condition = if is_symbol(condition.get(1), '.') { &condition[2..] } else { condition };
    matches!(condition, [oid, equals, to_regtype, open, of, close]
        if is(Some(oid), "oid")
            && is_symbol(Some(equals), '=')
            && is(Some(to_regtype), "to_regtype")
            && is_symbol(Some(open), '(')
            && operand(Some(of)).is_some()
            && is_symbol(Some(close), ')'))
}

/// Tables that are joined to the first, by their names in the query.
#[derive(Default)]
pub struct Joined<'a> {
    /// All of them.
    names: Vec<&'a str>,
    /// Those of which no served type has a row: in their columns it has NULL.
    pub absent: Vec<&'a str>,
}

/// Is it a column of one of these tables?
pub fn is_of(tables: &[&str], column: &[Placed]) -> bool {
    is_symbol(column.get(1), '.') && name(column.first()).is_some_and(|table| tables.contains(&table))
}

/// `None`: one has not just one row for each type, or none for any.
pub fn joined<'a>(from: &'a [Placed], common: &[&str]) -> Option<Joined<'a>> {
    let joins: Vec<usize> = outermost(from).filter(|at| is(from.get(*at), "join")).collect();
    if joins.len() > JOINS_MAX || outermost(from).any(|at| is_symbol(from.get(at), ',')) {
        return None;
    }
    let mut all = Joined::default();
    for (join, end) in joins.iter().zip(joins.iter().skip(1).copied().chain([from.len()])) {
        let joined = &from[join + 1..end];
        let joined = if is(joined.first(), "pg_catalog") { joined.get(2..)? } else { joined };
        let on = joined.iter().position(|token| is(Some(token), "on"))?;
        let condition = &joined[on + 1..];
        let words = condition.iter().rev().take_while(|token| is_any(Some(token), &["left", "inner", "outer"])).count();
        let condition = &condition[..condition.len() - words];
        let is_by = |field| is_equality(condition) && condition.iter().any(|token| is(Some(token), field));
        let is_left = is_any(from.get(join.checked_sub(1)?), &["left", "outer"]);
        let is_absent = match name(joined.first())? {
            "pg_proc" if is_by("typinput") => false,
            "pg_namespace" if is_by("typnamespace") => false,
            // There are no ranges, and no type is based on another.
            "pg_range" if is_left => true,
            "pg_type" if is_left && is_by("typbasetype") && is_by("oid") => true,
            other if common.contains(&other) && is_left && is_by("rngsubtype") => true,
            _ => return None,
        };
        let alias = if is(joined.get(1), "as") { 2 } else { usize::from(on != 1) };
        let name = name(joined.get(alias))?;
        all.names.push(name);
        all.absent.extend(is_absent.then_some(name));
    }
    Some(all)
}

/// `a.b = c.d`, or without the names of tables.
fn is_equality(condition: &[Placed]) -> bool {
    let sides = condition.split(|placed| placed.token == Token::Symbol('='));
    let is_field = |side: &[Placed]| match side {
        [field] => name(Some(field)).is_some(),
        [table, dot, field] => name(Some(table)).is_some() && is_symbol(Some(dot), '.') && name(Some(field)).is_some(),
        _ => false,
    };
    sides.clone().count() == 2 && sides.into_iter().all(is_field)
}

/// `field = x` or `field IN (x, ...)`, and what follows.
fn condition(tokens: &[Placed]) -> Option<(Condition, &[Placed])> {
    let tokens = if is_symbol(tokens.get(1), '.') { &tokens[2..] } else { tokens };
    let field = name(tokens.first()).filter(|field| type_of(field).is_some())?.to_owned();
    if is_symbol(tokens.get(1), '=') {
        return Some((Condition { field, any: vec![operand(tokens.get(2))?] }, &tokens[3..]));
    }
    if !is(tokens.get(1), "in") || !is_symbol(tokens.get(2), '(') {
        return None;
    }
    let (mut any, mut at) = (Vec::new(), 3);
    loop {
        any.push(operand(tokens.get(at))?);
        at += 2;
        if is_symbol(tokens.get(at - 1), ')') {
            return Some((Condition { field, any }, &tokens[at..]));
        }
        if !is_symbol(tokens.get(at - 1), ',') {
            return None;
        }
    }
}

fn operand(token: Option<&Placed>) -> Option<Operand> {
    match &token?.token {
        Token::Text(text) | Token::Number(text) => Some(Operand::Literal(text.clone())),
        Token::Parameter(number) => Some(Operand::Parameter(*number)),
        _ => None,
    }
}
