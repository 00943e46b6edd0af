//! Constants and parameters, with their casts, and integers that are calculated from others.

use super::super::lexer::Token;
use super::super::{Constant, Literal};
use super::{ITEMS_MAX, Parser, too_many};
use crate::terminal::refusal::{Refusal, SqlState};
use crate::terminal::types::SqlType;

/// Casts of one constant at most: each may copy it. PostgreSQL has no such bound; who converts by way of a text needs two.
const CASTS_MAX: usize = 8;

impl Parser {
    pub(super) fn not_constant(&self) -> Refusal {
        match self.peek() {
            None | Some(Token::Symbol(';') | Token::Refused(_)) => self.unexpected(),
            Some(_) => {
                let message = "arguments can be constants and parameters, with casts; no other expressions are served";
                Refusal::new(SqlState::NOT_SUPPORTED, message).at(self.position())
            }
        }
    }

    /// `depth`: how many others it is in.
    pub(super) fn constant(&mut self, depth: usize) -> Result<Constant, Refusal> {
        let constant = self.operand(depth)?;
        match self.peek() {
            Some(Token::Symbol('+' | '-' | '*')) => self.arithmetic(constant, depth, 1),
            _ => Ok(constant),
        }
    }

    /// `left` and what follows it, if all are of `integer` (`SELECT 1 + 1` is what some clients ask first). `least`: how
    /// tightly its operators bind. Nothing is parsed twice: the work would double with each level of parentheses.
    fn arithmetic(&mut self, mut left: Constant, depth: usize, least: u8) -> Result<Constant, Refusal> {
        while let Some(Token::Symbol(operator @ ('+' | '-' | '*'))) = self.peek() {
            let (operator, position) = (*operator, self.position());
            let binds = if operator == '*' { 2 } else { 1 };
            if binds < least {
                break;
            }
            self.at += 1;
            let right = self.operand(depth)?;
            let right = self.arithmetic(right, depth, binds + 1)?;
            let (Some(one), Some(other)) = (integer(&left), integer(&right)) else {
                let message = format!("the operator {operator} is served between constants of type integer alone");
                return Err(Refusal::new(SqlState::NOT_SUPPORTED, message).at(position));
            };
            let result = match operator {
                '+' => one.checked_add(other),
                '-' => one.checked_sub(other),
                _ => one.checked_mul(other),
            };
            let out_of_range = || Refusal::new(SqlState::OUT_OF_RANGE, "integer out of range").at(position);
            left =
                Constant { literal: Literal::Number(result.ok_or_else(out_of_range)?.to_string()), casts: Vec::new() };
        }
        Ok(left)
    }

    fn operand(&mut self, depth: usize) -> Result<Constant, Refusal> {
        let mut constant = self.uncast(depth)?;
        while self.peek() == Some(&Token::Cast) {
            self.at += 1;
            self.add_cast(&mut constant)?;
        }
        Ok(constant)
    }

    fn uncast(&mut self, depth: usize) -> Result<Constant, Refusal> {
        if depth == ITEMS_MAX {
            return Err(too_many(ITEMS_MAX, "parentheses or signs", self.position()));
        }
        let plain = |literal| Ok(Constant { literal, casts: Vec::new() });
        let start = self.at;
        let token = self.next();
        match token {
            Some(Token::Text(text)) => plain(Literal::Text(text)),
            Some(Token::Number(number)) => plain(Literal::Number(number)),
            Some(Token::Parameter(number)) => plain(Literal::Parameter(number)),
            Some(Token::Symbol('(')) => {
                let constant = self.constant(depth + 1)?;
                if self.takes_symbol(')') { Ok(constant) } else { Err(self.not_constant()) }
            }
            Some(Token::Symbol(sign @ ('-' | '+'))) => match self.uncast(depth + 1)? {
                Constant { literal: Literal::Number(number), casts } if casts.is_empty() => {
                    plain(Literal::Number(signed(sign, number)))
                }
                _ => {
                    self.at = start;
                    Err(self.not_constant())
                }
            },
            Some(Token::Word(word)) => match word.as_str() {
                "null" => plain(Literal::Null),
                "true" => plain(Literal::Bool(true)),
                "false" => plain(Literal::Bool(false)),
                "cast" if self.takes_symbol('(') => self.cast(depth),
                _ => {
                    self.at = start;
                    self.typed_text()
                }
            },
            _ => {
                self.at = start;
                Err(self.not_constant())
            }
        }
    }

    /// The rest of `CAST(x AS type)`.
    fn cast(&mut self, depth: usize) -> Result<Constant, Refusal> {
        let mut constant = self.constant(depth + 1)?;
        if !self.takes_word("as") {
            return Err(self.unexpected());
        }
        self.add_cast(&mut constant)?;
        self.expect_symbol(')')?;
        Ok(constant)
    }

    /// To the type that follows.
    fn add_cast(&mut self, constant: &mut Constant) -> Result<(), Refusal> {
        if constant.casts.len() == CASTS_MAX {
            return Err(too_many(CASTS_MAX, "casts", self.position()));
        }
        constant.casts.push(self.type_name()?);
        Ok(())
    }

    /// `bigint '1'`
    fn typed_text(&mut self) -> Result<Constant, Refusal> {
        let start = self.at;
        if let Some(Token::Word(word)) = self.next()
            && let Some(of) = SqlType::named(&word)
            && let Some(Token::Text(text)) = self.next()
        {
            return Ok(Constant { literal: Literal::Text(text), casts: vec![of] });
        }
        self.at = start;
        Err(self.not_constant())
    }

    fn type_name(&mut self) -> Result<SqlType, Refusal> {
        let position = self.position();
        let mut name = self.name()?;
        if name == "pg_catalog" && self.takes_symbol('.') {
            name = self.name()?;
        }
        for (first, second) in [("double", "precision"), ("character", "varying")] {
            if name == first && self.takes_word(second) {
                name = format!("{first} {second}");
            }
        }
        let unknown = || {
            let message = format!("type {name:?} is not served");
            Refusal::new(SqlState::UNKNOWN_NAME, message)
                .hint("Served: boolean, smallint, integer, bigint, real, double precision, numeric, text, varchar, bytea.")
                .at(position)
        };
        let of = SqlType::named(&name).filter(|of| *of != SqlType::Void).ok_or_else(unknown)?;
        if self.takes_symbol('(') {
            let message = "types with a length or precision are not served";
            return Err(Refusal::new(SqlState::NOT_SUPPORTED, message).at(position));
        }
        Ok(of)
    }
}

/// Of type `integer`, by which PostgreSQL calculates.
fn integer(constant: &Constant) -> Option<i32> {
    match &constant.literal {
        Literal::Number(text) if constant.casts.is_empty() => text.parse().ok(),
        _ => None,
    }
}

fn signed(sign: char, number: String) -> String {
    match (sign, number.strip_prefix('-')) {
        ('-', Some(positive)) => positive.to_owned(),
        ('-', None) => format!("-{number}"),
        _ => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// To parse an operand again at each level doubles the work at each.
    #[test]
    fn what_cannot_be_calculated_is_refused_without_parsing_a_token_twice() {
        for depth in [12, 49, 99] {
            for last in ["'a'", "$1", "1.5", "1 / 2", "2147483647 + 1", "f()", "", "+"] {
                for (begin, end) in
                    [("1 + 2 * (", ")"), ("1 - (2 + ", ")"), ("cast(1 * ", " AS int8)"), ("-(1.5 + 1 * ", ")")]
                {
                    let query = format!("{}{last}{}", begin.repeat(depth), end.repeat(depth));
                    let mut parser = Parser::new(&query).expect("tokens");
                    let is_refused = parser.constant(0).is_err();
                    let (taken, all) = (parser.taken, parser.tokens.len());
                    assert!(is_refused && taken <= all, "{taken} of {all}: {query}");
                }
            }
        }
    }
}
