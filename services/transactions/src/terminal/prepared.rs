//! Statements whose names are resolved and whose types are known, and what is bound to them.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use kernel::Processor;
use smallvec::SmallVec;

use super::evaluated::Evaluated;
use super::refusal::{Refusal, SqlState};
use super::reply::Column;
use super::sql::{Call, Constant, Expression, Known, Literal, LookupColumn, Query, QueryKind, Statement, no_parameter};
use super::types::{Format, SqlType, argument};
use crate::counters::Tally;
use crate::program::{Function, Version};
use crate::{Monitor, Signature, Value};

/// A statement that clients may execute again and again (OLTP-5: its names are resolved once, until programs are loaded anew).
pub struct Prepared {
    pub statement: Statement,
    pub parameters: Vec<SqlType>,
    /// `None`: it returns no rows.
    pub columns: Option<Vec<Column>>,
    /// Of each column that is a call.
    functions: Vec<Option<Resolved>>,
    /// In memory, about.
    bytes: usize,
}

struct Resolved {
    /// By which the statement's types are known.
    function: Arc<Function>,
    /// As it was looked up last, and the generation of the programs before that: while that is theirs, so is the function.
    latest: RefCell<(u64, Arc<Function>)>,
    tally: Arc<Tally>,
}

/// What is known of a session, for [`Known`].
pub struct Facts {
    pub user: String,
    pub process: i32,
}

/// The result of evaluating a column: a value, or a call that returns it.
pub enum Cell {
    Value(Value),
    Call(Arc<Function>, Arc<Tally>, Vec<Value>),
}

impl Prepared {
    /// `programs`: by whose functions its names are resolved. `declared`: the types of the first parameters by their numbers,
    /// 0 for those that are to be found out.
    ///
    /// # Errors
    /// If a name or type is unknown.
    pub fn new(
        monitor: &Monitor,
        programs: &Version,
        mut statement: Statement,
        declared: &[u32],
    ) -> Result<Prepared, Refusal> {
        if let Statement::Refused(refusal) = statement {
            return Err(refusal);
        }
        drop_results(&mut statement, declared);
        let mut types = Types::new(declared)?;
        let (parameters, functions) = (Vec::new(), Vec::new());
        let mut prepared = Prepared { statement, parameters, columns: None, functions, bytes: 0 };
        if let Statement::Query(query) = &prepared.statement {
            let mut columns = Vec::new();
            for column in &query.columns {
                let resolved = match &column.what {
                    Expression::Call(call) => Some(resolve(monitor, programs, call)?),
                    Expression::Constant(_) | Expression::Known(_) => None,
                };
                types.learn(&column.what, resolved.as_ref().map(|resolved| resolved.function.signature()));
                let of = type_of(&column.what, resolved.as_ref(), &types);
                let name = column.alias.clone().unwrap_or_else(|| default_name(&column.what));
                columns.push(Column { name, of });
                prepared.functions.push(resolved);
            }
            prepared.columns = has_row(query, &columns).then_some(columns);
        }
        if let Statement::Lookup(lookup) = &prepared.statement {
            lookup.parameters.iter().for_each(|number| types.learn_number(*number, SqlType::Text));
            let column = |column: &LookupColumn| Column { name: column.name.clone(), of: column.of };
            prepared.columns = Some(lookup.columns.iter().map(column).collect());
        }
        if let Statement::Show(name) = &prepared.statement {
            let column = |name: &str| Column { name: name.to_owned(), of: SqlType::Text };
            let columns =
                name.as_ref().map_or_else(|| vec![column("name"), column("setting")], |name| vec![column(name)]);
            prepared.columns = Some(columns);
        }
        prepared.parameters = types.all()?;
        let columns = prepared.columns.as_deref().unwrap_or_default();
        prepared.bytes = size_of::<Prepared>()
            + prepared.statement.bytes()
            + size_of_val(&*prepared.parameters)
            + size_of_val(&*prepared.functions)
            + size_of_val(columns)
            + columns.iter().map(|column| column.name.len()).sum::<usize>();
        Ok(prepared)
    }

    /// In memory, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn query(&self) -> Option<&Query> {
        if let Statement::Query(query) = &self.statement { Some(query) } else { None }
    }

    /// Is it about the transaction block?
    pub fn is_control(&self) -> bool {
        matches!(
            self.statement,
            Statement::Begin { .. } | Statement::Commit | Statement::Rollback | Statement::Savepoint { .. }
        )
    }

    /// Must it be executed in a transaction?
    pub fn calls(&self) -> bool {
        self.functions.iter().any(Option::is_some)
    }

    /// Evaluates the columns. A function that was installed anew since is called in its new version, or in that of `programs`.
    ///
    /// # Errors
    /// If an argument does not fit, or the function is not what it was.
    pub fn cells(
        &self,
        cpu: &Processor,
        monitor: &Monitor,
        values: &[Value],
        facts: &Facts,
        programs: Option<&Version>,
        evaluated: &Evaluated,
    ) -> Result<SmallVec<[Cell; 1]>, Refusal> {
        let columns = self.query().map_or(&[][..], |query| &query.columns);
        let cell = |(column, resolved): (&super::sql::Column, &Option<Resolved>)| match (&column.what, resolved) {
            (Expression::Call(call), Some(resolved)) => {
                let function = resolved.current(cpu, monitor, call, programs)?;
                let arguments = arguments(function.signature(), call, (values, &self.parameters), evaluated)?;
                Ok(Cell::Call(function, Arc::clone(&resolved.tally), arguments))
            }
            (Expression::Constant(constant), _) => {
                constant_value(constant, (values, &self.parameters), evaluated).map(|(value, _)| Cell::Value(value))
            }
            (Expression::Known(known), _) => Ok(Cell::Value(facts.value(*known, monitor))),
            (Expression::Call(call), None) => Err(unknown(monitor, programs, call)),
        };
        columns.iter().zip(&self.functions).map(cell).collect()
    }
}

impl Resolved {
    /// Without looking up its name, unless programs were loaded since.
    fn current(
        &self,
        cpu: &Processor,
        monitor: &Monitor,
        call: &Call,
        programs: Option<&Version>,
    ) -> Result<Arc<Function>, Refusal> {
        let generation = programs.map_or_else(|| monitor.programs().generation(), Version::generation);
        if cpu.switches().resolved_names && self.latest.borrow().0 == generation {
            return Ok(Arc::clone(&self.latest.borrow().1));
        }
        monitor.counters().lookup();
        let name = &call.function;
        let found = programs.map_or_else(|| monitor.programs().find(name), |programs| programs.find(name));
        let found = found.ok_or_else(|| unknown(monitor, programs, call))?;
        if !Arc::ptr_eq(&found, &self.function) && found.signature() != self.function.signature() {
            let message = format!("cached plan must not change: function {} is another one now", call.function);
            return Err(Refusal::new(SqlState::NOT_SUPPORTED, message).hint("Prepare the statement again."));
        }
        self.latest.replace((generation, Arc::clone(&found)));
        Ok(found)
    }
}

impl Facts {
    fn value(&self, known: Known, monitor: &Monitor) -> Value {
        match known {
            Known::Version => Value::Text(concat!("PostgreSQL 15.0 (Awase ", env!("CARGO_PKG_VERSION"), ")").into()),
            Known::Database => Value::Text(monitor.name().to_owned()),
            Known::Schema => Value::Text("public".into()),
            Known::User => Value::Text(self.user.clone()),
            Known::ProcessId => Value::BigInt(self.process.into()),
            Known::InRecovery => Value::Bool(false),
            Known::Nothing => Value::Null,
        }
    }
}

/// Drops arguments that are parameters of type `void`, as PostgreSQL does: JDBC means the result by them, which it has
/// among the parameters (`{? = call f(?)}`).
fn drop_results(statement: &mut Statement, declared: &[u32]) {
    let Statement::Query(query) = statement else { return };
    let is_void = |constant: &Constant| {
        let Literal::Parameter(number) = constant.literal else { return false };
        declared.get(usize::from(number) - 1) == Some(&SqlType::Void.oid())
    };
    for column in &mut query.columns {
        if let Expression::Call(call) = &mut column.what {
            call.arguments.retain(|constant| !is_void(constant));
        }
    }
}

fn resolve(monitor: &Monitor, programs: &Version, call: &Call) -> Result<Resolved, Refusal> {
    monitor.counters().lookup();
    let function = programs.find(&call.function).ok_or_else(|| unknown(monitor, Some(programs), call))?;
    let signature = function.signature();
    let (has, given) = (signature.arguments.len(), call.arguments.len());
    if has != given {
        let message = format!("function {} takes {has} arguments, not {given}", call.function);
        let refusal = Refusal::new(SqlState::UNKNOWN_FUNCTION, message);
        return Err(refusal.hint(format!("It is {signature}.")).at(call.position));
    }
    let tally = monitor.counters().function(&call.function);
    Ok(Resolved { latest: RefCell::new((programs.generation(), Arc::clone(&function))), function, tally })
}

/// Names functions that there are.
fn unknown(monitor: &Monitor, programs: Option<&Version>, call: &Call) -> Refusal {
    const NAMED_MAX: usize = 20;
    let functions = programs.map_or_else(|| monitor.programs().functions(), Version::functions);
    let mut names: Vec<_> = functions.iter().take(NAMED_MAX).map(|function| function.signature().to_string()).collect();
    if functions.len() > NAMED_MAX {
        names.push("...".into());
    }
    let message = format!("function {} does not exist", call.function);
    let refusal = Refusal::new(SqlState::UNKNOWN_FUNCTION, message).at(call.position);
    refusal.hint(if names.is_empty() {
        format!("No program is installed in database {:?}.", monitor.name())
    } else {
        format!("Installed: {}.", names.join("; "))
    })
}

fn has_row(query: &Query, columns: &[Column]) -> bool {
    query.kind == QueryKind::Select || columns.iter().any(|column| column.of != SqlType::Void)
}

fn default_name(what: &Expression) -> String {
    match what {
        Expression::Call(call) => call.function.clone(),
        Expression::Constant(constant) => constant.casts.last().map_or("?column?", |of| of.typname()).into(),
        Expression::Known(known) => match known {
            Known::Version => "version",
            Known::Database => "current_database",
            Known::Schema => "current_schema",
            Known::User => "current_user",
            Known::ProcessId => "pg_backend_pid",
            Known::InRecovery => "pg_is_in_recovery",
            Known::Nothing => "pg_advisory_unlock_all",
        }
        .into(),
    }
}

fn type_of(what: &Expression, resolved: Option<&Resolved>, types: &Types) -> SqlType {
    match what {
        Expression::Call(_) => {
            let returns = resolved.and_then(|resolved| resolved.function.signature().returns);
            returns.map_or(SqlType::Void, SqlType::from)
        }
        Expression::Constant(Constant { literal, casts }) => match (casts.last(), literal) {
            (Some(of), _) => *of,
            (None, Literal::Parameter(number)) => types.of(*number),
            (None, Literal::Null | Literal::Text(_)) => SqlType::Text,
            (None, Literal::Bool(_)) => SqlType::Bool,
            (None, Literal::Number(text)) => number_type(text),
        },
        Expression::Known(Known::ProcessId) => SqlType::Int4,
        Expression::Known(Known::InRecovery) => SqlType::Bool,
        Expression::Known(Known::Nothing) => SqlType::Void,
        Expression::Known(_) => SqlType::Text,
    }
}

/// The smallest integer type that holds it, else `numeric`.
fn number_type(text: &str) -> SqlType {
    match text.parse::<i64>() {
        Ok(number) if i32::try_from(number).is_ok() => SqlType::Int4,
        Ok(_) => SqlType::Int8,
        Err(_) => SqlType::Numeric,
    }
}

fn literal_value(literal: &Literal, values: &[Value]) -> Result<Value, Refusal> {
    match literal {
        Literal::Null => Ok(Value::Null),
        Literal::Bool(value) => Ok(Value::Bool(*value)),
        Literal::Text(text) => Ok(Value::Text(text.clone())),
        Literal::Number(text) => SqlType::Numeric.read_as_text(text),
        Literal::Parameter(number) => values.get(usize::from(*number) - 1).cloned().ok_or_else(|| no_parameter(number)),
    }
}

/// Parameters' values, and their types.
type Given<'a> = (&'a [Value], &'a [SqlType]);

/// With its type.
fn constant_value(
    constant: &Constant,
    (values, parameters): Given<'_>,
    evaluated: &Evaluated,
) -> Result<(Value, SqlType), Refusal> {
    let mut value = literal_value(&constant.literal, values)?;
    evaluated.count(&value)?;
    let mut from = match constant.literal {
        Literal::Number(_) => SqlType::Numeric,
        Literal::Parameter(number) => parameters.get(usize::from(number) - 1).copied().unwrap_or(SqlType::Unknown),
        Literal::Null | Literal::Bool(_) | Literal::Text(_) => SqlType::Unknown,
    };
    for to in &constant.casts {
        value = to.cast(value, from)?;
        evaluated.count(&value)?;
        from = *to;
    }
    Ok((value, from))
}

fn arguments(
    signature: &Signature,
    call: &Call,
    given: Given<'_>,
    evaluated: &Evaluated,
) -> Result<Vec<Value>, Refusal> {
    let arguments = signature.arguments.iter().zip(&call.arguments);
    let value = |(parameter, constant)| {
        let parameter: &crate::Argument = parameter;
        let value = constant_value(constant, given, evaluated);
        value.and_then(|(value, of)| argument(of.rounded(value), parameter.of)).map_err(|refusal| {
            let message = format!("argument {:?} of {}: {}", parameter.name, call.function, refusal.message);
            Refusal { message, ..refusal }.at(call.position)
        })
    };
    arguments.map(value).collect()
}

/// The types of a statement's parameters, as far as they are known.
struct Types {
    known: Vec<Option<SqlType>>,
}

impl Types {
    fn new(declared: &[u32]) -> Result<Types, Refusal> {
        let known = |oid: &u32| match oid {
            0 => Ok(None),
            oid => SqlType::of_oid(*oid).map(Some).ok_or_else(|| {
                Refusal::new(
                    SqlState::NOT_SUPPORTED,
                    format!("parameters of the type with number {oid} are not served"),
                )
            }),
        };
        Ok(Types { known: declared.iter().map(known).collect::<Result<_, _>>()? })
    }

    /// Learns from a column's expression, by its casts or by the parameters of the function.
    fn learn(&mut self, what: &Expression, signature: Option<&Signature>) {
        match what {
            Expression::Constant(constant) => self.learn_of(constant, SqlType::Text),
            Expression::Call(call) => {
                let of = |index: usize| Some(SqlType::from(signature?.arguments.get(index)?.of));
                let arguments = call.arguments.iter().enumerate();
                arguments.for_each(|(index, constant)| self.learn_of(constant, of(index).unwrap_or(SqlType::Text)));
            }
            Expression::Known(_) => {}
        }
    }

    fn learn_of(&mut self, constant: &Constant, otherwise: SqlType) {
        if let Literal::Parameter(number) = constant.literal {
            self.learn_number(number, constant.casts.first().copied().unwrap_or(otherwise));
        }
    }

    fn learn_number(&mut self, number: u16, of: SqlType) {
        let index = usize::from(number) - 1;
        if self.known.len() <= index {
            self.known.resize(index + 1, None);
        }
        let known = &mut self.known[index];
        if known.is_none_or(|known| known == SqlType::Unknown) {
            *known = Some(of);
        }
    }

    fn of(&self, number: u16) -> SqlType {
        self.known.get(usize::from(number) - 1).copied().flatten().unwrap_or(SqlType::Text)
    }

    fn all(self) -> Result<Vec<SqlType>, Refusal> {
        let known = |(index, known): (usize, Option<SqlType>)| {
            known.ok_or_else(|| {
                let message = format!("could not determine data type of parameter ${}", index + 1);
                Refusal::new(SqlState::INDETERMINATE_TYPE, message)
            })
        };
        self.known.into_iter().enumerate().map(known).collect()
    }
}

/// As a client chose them: none, one for all, or each.
type Formats = SmallVec<[Format; 8]>;

/// A statement with the values of its parameters.
#[derive(Clone)]
pub struct Bound {
    pub prepared: Rc<Prepared>,
    pub values: Rc<[Value]>,
    formats: Formats,
}

impl Bound {
    /// Without parameters, as in the simple protocol.
    pub fn plain(prepared: Rc<Prepared>) -> Bound {
        Bound { prepared, values: Rc::new([]), formats: Formats::new() }
    }

    /// # Errors
    /// If values and formats are not as many as there must be, or values not of their types.
    pub fn new<'a>(
        prepared: Rc<Prepared>,
        formats: &[i16],
        values: impl ExactSizeIterator<Item = Option<&'a [u8]>>,
        results: &[i16],
    ) -> Result<Bound, Refusal> {
        let (has, given) = (prepared.parameters.len(), values.len());
        if has != given {
            let message =
                format!("bind message supplies {given} parameters, but the prepared statement requires {has}");
            return Err(Refusal::new(SqlState::PROTOCOL_VIOLATION, message));
        }
        let formats = all_formats(formats, given, "parameters")?;
        let mut bound = SmallVec::<[Value; 4]>::new();
        for (index, (of, value)) in prepared.parameters.iter().zip(values).enumerate() {
            bound.push(match value {
                None => Value::Null,
                Some(bytes) => of.read(format_of(&formats, index), bytes).map_err(|refusal| Refusal {
                    message: format!("parameter ${}: {}", index + 1, refusal.message),
                    ..refusal
                })?,
            });
        }
        if let Statement::Lookup(lookup) = &prepared.statement {
            lookup.check(&bound)?;
        }
        let columns = prepared.columns.as_ref().map_or(0, Vec::len);
        let results = all_formats(results, columns, "result columns")?;
        Ok(Bound { prepared, values: bound.into_iter().collect(), formats: results })
    }

    pub fn format(&self) -> impl Fn(usize) -> Format {
        |index| format_of(&self.formats, index)
    }
}

/// None given: all as text; one: all in it.
fn format_of(formats: &[Format], index: usize) -> Format {
    match formats {
        [one] => *one,
        _ => formats.get(index).copied().unwrap_or_default(),
    }
}

fn all_formats(codes: &[i16], count: usize, what: &str) -> Result<Formats, Refusal> {
    if codes.len() > 1 && codes.len() != count {
        let message = format!("bind message has {} formats for {count} {what}", codes.len());
        return Err(Refusal::new(SqlState::PROTOCOL_VIOLATION, message));
    }
    codes.iter().map(|code| Format::of(*code)).collect()
}
