//! Queries of PostgreSQL's catalogues, which clients send by themselves, most of them when they connect: whether there is a
//! type `hstore` or `lo`, which types are arrays, enumerations or ranges.
//!
//! There are no tables here, and no types but those that are served. So those catalogues that would tell of others
//! ([`EMPTY`]) are empty: such a query has its columns and no row, and is not evaluated. What it asks of types is answered if
//! it is simple, or if no served type can meet it ([`pg_type`]), else refused. So is what is not empty: databases, users,
//! sessions, functions.

mod columns;
mod pg_type;

use columns::columns;
use pg_type::{Condition, Field};

use super::lexer::{Placed, Token};
use crate::Value;
use crate::terminal::refusal::{Refusal, SqlState};
use crate::terminal::types::SqlType;

/// The first table of a query is one of these, so there is nothing that others could be joined to.
const EMPTY: &[&str] = &[
    "pg_aggregate",
    "pg_attrdef",
    "pg_attribute",
    "pg_class",
    "pg_collation",
    "pg_constraint",
    "pg_depend",
    "pg_description",
    "pg_enum",
    "pg_event_trigger",
    "pg_extension",
    "pg_foreign_server",
    "pg_foreign_table",
    "pg_index",
    "pg_indexes",
    "pg_inherits",
    "pg_matviews",
    "pg_namespace",
    "pg_partitioned_table",
    "pg_policy",
    "pg_publication",
    "pg_range",
    "pg_rewrite",
    "pg_sequence",
    "pg_sequences",
    "pg_statistic_ext",
    "pg_subscription",
    "pg_tables",
    "pg_trigger",
    "pg_type",
    "pg_views",
];

/// Without GROUP BY these have a row of nothing.
const AGGREGATES: &[&str] = &[
    "array_agg",
    "avg",
    "bool_and",
    "bool_or",
    "count",
    "every",
    "json_agg",
    "json_object_agg",
    "jsonb_agg",
    "jsonb_object_agg",
    "max",
    "min",
    "string_agg",
    "sum",
];

/// Of a query that is looked at: clients send some hundred by themselves, and to look is not linear in all that may be sent.
const TOKENS_MAX: usize = 2048;
/// Queries of WITH.
const COMMON_MAX: usize = 16;

/// What ends a FROM clause.
const AFTER_FROM: &[&str] = &["where", "group", "having", "window", "order", "limit", "offset", "fetch"];

#[derive(Clone, Debug, PartialEq)]
pub struct Lookup {
    pub columns: Vec<Column>,
    /// The numbers of those that are used anywhere.
    pub parameters: Vec<u16>,
    rows: Rows,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    pub name: String,
    pub of: SqlType,
    /// If it is known of each served type.
    field: Option<Field>,
}

#[derive(Clone, Debug, PartialEq)]
enum Rows {
    None,
    Count(i64),
    /// Of the served types, those that meet all of these.
    Types(Vec<Condition>),
    /// None, as no served type meets one of its conditions; unless a parameter is the name or number of one.
    OtherTypes,
}

impl Lookup {
    /// In memory beside itself, about.
    pub fn bytes(&self) -> usize {
        let column =
            |column: &Column| size_of::<Column>() + column.name.len() + column.field.as_ref().map_or(0, Field::bytes);
        let conditions = if let Rows::Types(conditions) = &self.rows { &conditions[..] } else { &[] };
        self.columns.iter().map(column).sum::<usize>()
            + size_of_val(&*self.parameters)
            + conditions.iter().map(Condition::bytes).sum::<usize>()
    }

    /// Of its rows in a reply, at most.
    pub fn rows_bytes_max(&self) -> usize {
        if let Rows::Types(_) = self.rows { pg_type::rows_bytes_max(self.columns.len()) } else { 0 }
    }

    /// # Errors
    /// If it asks of a served type what is not known.
    pub fn check(&self, values: &[Value]) -> Result<(), Refusal> {
        if self.rows != Rows::OtherTypes || !values.iter().any(pg_type::is_of_served) {
            return Ok(());
        }
        let message = "of types that are served, only simple look-ups in pg_type are answered";
        Err(Refusal::new(SqlState::NOT_SUPPORTED, message))
    }

    pub fn rows(&self, values: &[Value]) -> Vec<Vec<Value>> {
        match &self.rows {
            Rows::None | Rows::OtherTypes => Vec::new(),
            Rows::Count(count) => vec![vec![Value::BigInt(*count)]],
            Rows::Types(conditions) => pg_type::rows(&self.columns, conditions, values),
        }
    }
}

fn is(token: Option<&Placed>, word: &str) -> bool {
    matches!(token, Some(Placed { token: Token::Word(own), .. }) if own == word)
}

fn is_any(token: Option<&Placed>, words: &[&str]) -> bool {
    words.iter().any(|word| is(token, word))
}

fn is_symbol(token: Option<&Placed>, symbol: char) -> bool {
    token.is_some_and(|placed| placed.token == Token::Symbol(symbol))
}

fn name(token: Option<&Placed>) -> Option<&str> {
    match &token?.token {
        Token::Word(name) | Token::Quoted(name) => Some(name),
        _ => None,
    }
}

/// Where tokens outside of all parentheses are.
fn outermost(tokens: &[Placed]) -> impl Iterator<Item = usize> {
    let mut depth = 0_usize;
    (0..tokens.len()).filter(move |at| {
        if is_symbol(tokens.get(*at), ')') {
            depth = depth.saturating_sub(1);
        }
        let is_outermost = depth == 0;
        depth += usize::from(is_symbol(tokens.get(*at), '('));
        is_outermost
    })
}

/// Where the first of `words` is, outside of all parentheses.
fn find(tokens: &[Placed], words: &[&str]) -> Option<usize> {
    outermost(tokens).find(|at| is_any(tokens.get(*at), words))
}

/// `statement`: from SELECT or WITH to its end. `None`: it is no query of these catalogues alone, or none that can be
/// answered, or has more columns than `columns_max`.
pub fn lookup(statement: &[Placed], columns_max: usize) -> Option<Lookup> {
    if statement.len() > TOKENS_MAX {
        return None;
    }
    let (common, select) = common_tables(statement)?;
    let writes = statement.iter().any(|placed| is_any(Some(placed), &["insert", "update", "delete", "merge"]));
    if writes || !is(select.first(), "select") || !are_catalogues(statement, &common) {
        return None;
    }
    let from = outermost(select).find(|at| is_from(select, *at))?;
    let (list, clauses) = (&select[1..from], &select[from..]);
    if find(clauses, &["union", "intersect", "except", "having", "for", "into"]).is_some() {
        return None;
    }
    let table = first_table(clauses)?;
    let joined = pg_type::joined(&clauses[..find(clauses, AFTER_FROM).unwrap_or(clauses.len())], &common);
    let columns = columns(list, joined.as_ref().map_or(&[][..], |joined| &joined.absent[..]), columns_max)?;
    let where_at = find(clauses, &["where"]).unwrap_or(clauses.len());
    let rows = match (aggregates(list) && find(clauses, &["group"]).is_none(), table) {
        // pgpool asks so whether a function may write, and would cache or spread its calls if not. All are volatile.
        (true, "pg_proc") if is_count(list) => Rows::Count(i64::from(is_volatile(clauses)?)),
        (true, _) if is_count(list) && table != "pg_type" && EMPTY.contains(&table) => Rows::Count(0),
        (false, "pg_type") => match joined.and_then(|joined| pg_type::conditions(&columns, &joined, list, clauses)) {
            Some(conditions) => Rows::Types(conditions),
            None if clauses[where_at..].iter().any(names_served) => return None,
            None if pg_type::finds_none(&clauses[where_at..]) => Rows::OtherTypes,
            None => return None,
        },
        (false, _) if EMPTY.contains(&table) => Rows::None,
        _ => return None,
    };
    let parameter = |placed: &Placed| if let Token::Parameter(number) = placed.token { Some(number) } else { None };
    let mut parameters: Vec<u16> = statement.iter().filter_map(parameter).collect();
    parameters.sort_unstable();
    parameters.dedup();
    Some(Lookup { columns, parameters, rows })
}

/// Of a FROM clause.
fn first_table(clauses: &[Placed]) -> Option<&str> {
    let at = if is(clauses.get(1), "pg_catalog") && is_symbol(clauses.get(2), '.') { 3 } else { 1 };
    name(clauses.get(at))
}

fn names_served(placed: &Placed) -> bool {
    matches!(&placed.token, Token::Text(text) | Token::Number(text) if pg_type::is_served(text))
}

/// Does a FROM clause begin `at`? (`IS DISTINCT FROM` is none.)
fn is_from(tokens: &[Placed], at: usize) -> bool {
    is(tokens.get(at), "from") && !is(at.checked_sub(1).and_then(|before| tokens.get(before)), "distinct")
}

/// The names of the queries of WITH, and what follows it.
fn common_tables(statement: &[Placed]) -> Option<(Vec<&str>, &[Placed])> {
    if !is(statement.first(), "with") {
        return Some((Vec::new(), statement));
    }
    let select = find(statement, &["select"])?;
    let with = &statement[..select];
    let named = outermost(with).filter(|at| is(with.get(*at), "as")).filter_map(|at| {
        // `name AS (...)` or `name (columns) AS (...)`
        let end = if is_symbol(with.get(at.checked_sub(1)?), ')') {
            with[..at].iter().rposition(|placed| placed.token == Token::Symbol('('))?
        } else {
            at
        };
        name(with.get(end.checked_sub(1)?))
    });
    let named: Vec<&str> = named.take(COMMON_MAX + 1).collect();
    (named.len() <= COMMON_MAX).then_some((named, &statement[select..]))
}

/// Between two parentheses, or outside of all.
struct Group {
    is_query: bool,
    /// A comma is followed by a table.
    in_from: bool,
}

/// Is each table of each FROM a catalogue, or one of `common`?
fn are_catalogues(statement: &[Placed], common: &[&str]) -> bool {
    let mut groups = vec![Group { is_query: true, in_from: false }];
    let (mut at, mut expects_table) = (0, false);
    while at < statement.len() {
        let (token, depth) = (statement.get(at), groups.len());
        let Some(group) = groups.last_mut() else { return false };
        if is_symbol(token, '(') {
            let is_query = is_any(statement.get(at + 1), &["select", "with"]);
            expects_table &= !is_query;
            groups.push(Group { is_query, in_from: expects_table });
        } else if is_symbol(token, ')') {
            groups.pop();
        } else if expects_table {
            expects_table = is_any(token, &["only", "lateral"]);
            if !expects_table {
                let is_call = |next: usize| is_symbol(statement.get(next), '(');
                match table(statement, at, common) {
                    Some(next) if !is_call(next) || depth > 1 => at = next - 1,
                    _ => return false,
                }
            }
        } else if group.is_query && is_from(statement, at)
            || is(token, "join")
            || group.in_from && is_symbol(token, ',')
        {
            group.in_from |= group.is_query;
            expects_table = true;
        } else if group.in_from && is_any(token, &["right", "full"]) {
            return false;
        } else if is_any(token, AFTER_FROM) {
            group.in_from = false;
        }
        at += 1;
    }
    groups.len() == 1 && !expects_table
}

/// Behind the name of a table that is there; a call is one, too.
fn table(statement: &[Placed], at: usize, common: &[&str]) -> Option<usize> {
    let first = name(statement.get(at))?;
    let (name, next) = if is_symbol(statement.get(at + 1), '.') {
        (name(statement.get(at + 2)).filter(|_| first == "pg_catalog")?, at + 3)
    } else {
        (first, at + 1)
    };
    let is_known = name.starts_with("pg_") || next == at + 1 && common.contains(&name);
    (is_known || is_symbol(statement.get(next), '(')).then_some(next)
}

/// Of `... provolatile = 'v' ...`, is it true? `None`: it is no such condition.
fn is_volatile(clauses: &[Placed]) -> Option<bool> {
    let at = clauses.iter().position(|token| is(Some(token), "provolatile"))?;
    match clauses.get(at + 2).map(|placed| &placed.token) {
        Some(Token::Text(of)) if is_symbol(clauses.get(at + 1), '=') => Some(of == "v"),
        _ => None,
    }
}

fn aggregates(list: &[Placed]) -> bool {
    let mut at = 0;
    while at < list.len() {
        if is_symbol(list.get(at), '(') && is(list.get(at + 1), "select") {
            let len = outermost(&list[at..]).find(|end| is_symbol(list.get(at + end), ')'));
            at += len.unwrap_or(0);
        } else if is_any(list.get(at), AGGREGATES) && is_symbol(list.get(at + 1), '(') {
            return true;
        }
        at += 1;
    }
    false
}

/// Is it `count(...)`, alone?
fn is_count(list: &[Placed]) -> bool {
    let close = outermost(list).find(|at| is_symbol(list.get(*at), ')'));
    let rest = close.map_or(0, |close| list.len() - close - 1);
    is(list.first(), "count") && (rest == 0 || rest == 2 && is(list.get(list.len() - 2), "as"))
}

#[cfg(test)]
mod tests;
