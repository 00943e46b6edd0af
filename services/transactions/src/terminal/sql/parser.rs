//! Parses statements. A parser for all of SQL would be larger than everything else here, and refuse no less in the end.

mod constant;

use super::catalogue::lookup;
use super::lexer::{Placed, Token, tokens};
use super::{Call, Column, Constant, Expression, Known, Query, QueryKind, STATEMENTS_MAX, Statement};
use crate::terminal::refusal::{Refusal, SqlState};
use crate::terminal::types::SqlType;

/// Items of one list at most, as in PostgreSQL (`FUNC_MAX_ARGS`).
const ITEMS_MAX: usize = 100;

const SERVED: &str = "Served: SELECT f(...), SELECT * FROM f(...), CALL f(...) of installed functions; BEGIN, COMMIT, \
                      ROLLBACK, SAVEPOINT, RELEASE; SET, RESET, SHOW, DISCARD ALL, DEALLOCATE; SELECT of constants.";

/// The first words of statements that PostgreSQL knows and that are not served.
const NOT_SERVED: &[&str] = &[
    "alter",
    "analyze",
    "checkpoint",
    "cluster",
    "comment",
    "copy",
    "create",
    "declare",
    "delete",
    "do",
    "drop",
    "execute",
    "explain",
    "fetch",
    "grant",
    "import",
    "insert",
    "listen",
    "load",
    "lock",
    "merge",
    "move",
    "notify",
    "prepare",
    "reassign",
    "refresh",
    "reindex",
    "revoke",
    "security",
    "table",
    "truncate",
    "update",
    "vacuum",
    "values",
    "with",
];

pub struct Parser {
    tokens: Vec<Placed>,
    at: usize,
    /// Where the query ends: characters, from 1.
    end: usize,
    /// Tokens that were taken.
    #[cfg(test)]
    taken: usize,
}

/// Parses a query: statements with `;` between them, up to the first that is not served. Errors behind that are not seen.
///
/// # Errors
/// If it is the first of all, or a syntax error, with which PostgreSQL executes nothing of the query. Some of what only
/// PostgreSQL knows is one here, too (`CLOSE c`, `SELECT 1 ^ 2`).
pub fn parse(query: &str) -> Result<Vec<Statement>, Refusal> {
    let mut parser = Parser::new(query)?;
    let mut statements = Vec::new();
    loop {
        while parser.takes_symbol(';') {}
        if parser.peek().is_none() {
            return Ok(statements);
        }
        if statements.len() == STATEMENTS_MAX {
            let message = format!("a query holds more than {STATEMENTS_MAX} statements");
            return Err(Refusal::new(SqlState::LIMIT_EXCEEDED, message));
        }
        match parser.statement() {
            Ok(statement) => statements.push(statement),
            Err(refusal) if statements.is_empty() || refusal.state == SqlState::SYNTAX => return Err(refusal),
            Err(refusal) => {
                // What follows may be a part of it.
                statements.push(Statement::Refused(refusal));
                return Ok(statements);
            }
        }
        if parser.peek().is_some() && !parser.takes_symbol(';') {
            return Err(parser.unexpected());
        }
    }
}

impl Parser {
    fn new(query: &str) -> Result<Parser, Refusal> {
        Ok(Parser {
            tokens: tokens(query)?,
            at: 0,
            end: query.chars().count() + 1,
            #[cfg(test)]
            taken: 0,
        })
    }

    pub fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|placed| &placed.token)
    }

    pub fn position(&self) -> usize {
        self.tokens.get(self.at).map_or(self.end, |placed| placed.position)
    }

    pub fn next(&mut self) -> Option<Token> {
        let token = self.peek().cloned()?;
        self.at += 1;
        #[cfg(test)]
        {
            self.taken += 1;
        }
        Some(token)
    }

    /// Before the token that was taken last.
    pub fn back(&mut self) -> &Self {
        self.at -= 1;
        self
    }

    pub fn takes_symbol(&mut self, symbol: char) -> bool {
        let takes = self.peek() == Some(&Token::Symbol(symbol));
        self.at += usize::from(takes);
        takes
    }

    pub fn takes_word(&mut self, word: &str) -> bool {
        let takes = matches!(self.peek(), Some(Token::Word(own)) if own == word);
        self.at += usize::from(takes);
        takes
    }

    pub fn takes_any(&mut self, words: &[&str]) -> bool {
        words.iter().any(|word| self.takes_word(word))
    }

    fn expect_symbol(&mut self, symbol: char) -> Result<(), Refusal> {
        if self.takes_symbol(symbol) { Ok(()) } else { Err(self.unexpected()) }
    }

    /// Is the statement over?
    pub fn is_over(&self) -> bool {
        matches!(self.peek(), None | Some(Token::Symbol(';')))
    }

    pub fn unexpected(&self) -> Refusal {
        let message = match self.peek() {
            None => "syntax error at end of input".to_owned(),
            Some(Token::Refused(refusal)) => return (**refusal).clone(),
            Some(token) => format!("syntax error at or near {:?}", shown(token)),
        };
        Refusal::new(SqlState::SYNTAX, message).hint(SERVED).at(self.position())
    }

    fn not_served(&self, what: &str) -> Refusal {
        Refusal::new(SqlState::NOT_SUPPORTED, format!("{what} is not served")).hint(SERVED).at(self.position())
    }

    fn statement(&mut self) -> Result<Statement, Refusal> {
        let Some(Token::Word(word)) = self.peek().cloned() else { return Err(self.unexpected()) };
        let start = self.at;
        self.served(&word).or_else(|refusal| {
            let is_query = matches!(word.as_str(), "select" | "with");
            let rest = self.tokens.get(start..).filter(|_| is_query).unwrap_or_default();
            let end = rest.iter().position(|placed| placed.token == Token::Symbol(';')).unwrap_or(rest.len());
            if let Some(Placed { token: Token::Refused(refusal), .. }) = rest[..end].last() {
                return Err((**refusal).clone());
            }
            let found = lookup(&rest[..end], ITEMS_MAX).ok_or(refusal)?;
            self.at = start + end;
            Ok(Statement::Lookup(found))
        })
    }

    /// What begins with `word`, up to its end, unless it is a query of catalogues.
    fn served(&mut self, word: &str) -> Result<Statement, Refusal> {
        if NOT_SERVED.contains(&word) {
            return Err(self.not_served(&word.to_uppercase()));
        }
        self.at += 1;
        let statement = match word {
            "select" => self.select().map(Statement::Query),
            "call" => self.called().map(Statement::Query),
            _ => self.session_statement(word),
        };
        let statement = statement?;
        if self.is_over() { Ok(statement) } else { Err(self.unexpected_end(word)) }
    }

    /// What follows a complete statement. SQL of other kinds than is served usually fails here.
    fn unexpected_end(&self, word: &str) -> Refusal {
        match self.peek() {
            Some(Token::Word(_) | Token::Symbol('+' | '-' | '*' | '/' | '<' | '>' | '=' | '|' | '%'))
                if word == "select" =>
            {
                self.not_served("this form of SELECT")
            }
            _ => self.unexpected(),
        }
    }

    fn select(&mut self) -> Result<Query, Refusal> {
        if self.takes_symbol('*') {
            if !self.takes_word("from") {
                return Err(self.unexpected());
            }
            return self.from();
        }
        let mut columns = Vec::new();
        loop {
            if columns.len() == ITEMS_MAX {
                return Err(too_many(ITEMS_MAX, "columns", self.position()));
            }
            let what = self.expression()?;
            let alias = self.alias()?;
            columns.push(Column { what, alias });
            if !self.takes_symbol(',') {
                return Ok(Query { columns, kind: QueryKind::Select });
            }
        }
    }

    /// `f(...) [AS alias]`: its one column is called as the alias.
    fn from(&mut self) -> Result<Query, Refusal> {
        let position = self.position();
        let what = self.expression()?;
        if matches!(what, Expression::Constant(_)) {
            return Err(Refusal::new(SqlState::NOT_SUPPORTED, "only functions can be selected from")
                .hint(SERVED)
                .at(position));
        }
        let alias = self.alias()?;
        Ok(Query { columns: vec![Column { what, alias }], kind: QueryKind::Select })
    }

    fn called(&mut self) -> Result<Query, Refusal> {
        let position = self.position();
        let what = self.expression()?;
        if !matches!(what, Expression::Call(_)) {
            return Err(Refusal::new(SqlState::SYNTAX, "CALL needs the call of an installed function").at(position));
        }
        Ok(Query { columns: vec![Column { what, alias: None }], kind: QueryKind::Call })
    }

    fn alias(&mut self) -> Result<Option<String>, Refusal> {
        if self.takes_word("as") {
            return self.name().map(Some);
        }
        match self.peek() {
            Some(Token::Word(word)) if !is_reserved(word) => self.name().map(Some),
            Some(Token::Quoted(_)) => self.name().map(Some),
            _ => Ok(None),
        }
    }

    pub fn name(&mut self) -> Result<String, Refusal> {
        match self.peek() {
            Some(Token::Word(name) | Token::Quoted(name)) if !name.is_empty() => {
                let name = name.clone();
                self.at += 1;
                Ok(name)
            }
            _ => Err(self.unexpected()),
        }
    }

    fn expression(&mut self) -> Result<Expression, Refusal> {
        let position = self.position();
        let is_quoted = matches!(self.peek(), Some(Token::Quoted(_)));
        let word = match self.peek() {
            Some(Token::Word(word)) if !self.is_constant_word(word) => word.clone(),
            Some(Token::Quoted(name)) => name.clone(),
            _ => return self.constant(0).map(Expression::Constant),
        };
        self.at += 1;
        if let Some(known) = Known::of_word(&word).filter(|_| !is_quoted && self.peek() != Some(&Token::Symbol('('))) {
            return Ok(Expression::Known(known));
        }
        let (mut function, mut schema) = (word, None);
        if self.takes_symbol('.') {
            schema = Some(std::mem::replace(&mut function, self.name()?));
        }
        if self.peek() != Some(&Token::Symbol('(')) {
            return Err(self.column(&function, position));
        }
        match schema.as_deref() {
            None | Some("public" | "pg_catalog") => {}
            Some(schema) => {
                let message = format!("schema {schema:?} does not exist");
                return Err(Refusal::new(SqlState("3F000"), message).at(position));
            }
        }
        let arguments = self.arguments()?;
        match Known::of_function(&function).filter(|_| arguments.is_empty() && schema.as_deref() != Some("public")) {
            Some(known) => Ok(Expression::Known(known)),
            None => Ok(Expression::Call(Call { function, arguments, position })),
        }
    }

    /// A column, or in FROM a table.
    fn column(&self, name: &str, position: usize) -> Refusal {
        let message = format!("{name:?} is no call of a function, and there are no tables here");
        Refusal::new(SqlState("42703"), message).hint(SERVED).at(position)
    }

    fn is_constant_word(&self, word: &str) -> bool {
        let is_call = self.tokens.get(self.at + 1).is_some_and(|next| next.token == Token::Symbol('('));
        match word {
            "null" | "true" | "false" => true,
            "cast" => is_call,
            // `bigint '1'`
            _ => {
                let is_text = self.tokens.get(self.at + 1).is_some_and(|next| matches!(next.token, Token::Text(_)));
                is_text && SqlType::named(word).is_some()
            }
        }
    }

    fn arguments(&mut self) -> Result<Vec<Constant>, Refusal> {
        self.expect_symbol('(')?;
        let mut arguments = Vec::new();
        if self.takes_symbol(')') {
            return Ok(arguments);
        }
        loop {
            if arguments.len() == ITEMS_MAX {
                return Err(too_many(ITEMS_MAX, "arguments", self.position()));
            }
            arguments.push(self.constant(0)?);
            if self.takes_symbol(')') {
                return Ok(arguments);
            }
            if !self.takes_symbol(',') {
                return Err(self.not_constant());
            }
        }
    }
}

fn shown(token: &Token) -> String {
    match token {
        Token::Word(text) | Token::Quoted(text) | Token::Text(text) | Token::Number(text) => {
            text.chars().take(80).collect()
        }
        Token::Parameter(number) => format!("${number}"),
        Token::Cast => "::".into(),
        Token::Symbol(symbol) => symbol.to_string(),
        Token::Refused(_) => String::new(),
    }
}

/// Words that follow a column, and are no alias without AS.
fn is_reserved(word: &str) -> bool {
    matches!(
        word,
        "from"
            | "where"
            | "group"
            | "having"
            | "order"
            | "limit"
            | "offset"
            | "union"
            | "intersect"
            | "except"
            | "for"
            | "into"
            | "window"
            | "fetch"
            | "and"
            | "or"
            | "not"
            | "is"
            | "in"
            | "like"
            | "between"
            | "join"
            | "on"
            | "collate"
            | "as"
    )
}

fn too_many(most: usize, what: &str, position: usize) -> Refusal {
    Refusal::new(SqlState::LIMIT_EXCEEDED, format!("more than {most} {what}")).at(position)
}
