//! Words, texts and numbers of a query (PostgreSQL's documentation, 4.1 "Lexical Structure").

use crate::terminal::refusal::{Refusal, SqlState};

/// Longest identifier; longer ones are cut, as PostgreSQL does. Bytes.
const NAME_BYTES_MAX: usize = 63;

#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    /// A keyword or a name, in lower case.
    Word(String),
    /// A name in double quotes.
    Quoted(String),
    Text(String),
    Number(String),
    Parameter(u16),
    /// `::`
    Cast,
    Symbol(char),
    /// What PostgreSQL takes and is not served; what follows is not looked at.
    Refused(Box<Refusal>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    pub token: Token,
    /// Characters, from 1.
    pub position: usize,
}

struct Lexer<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    position: usize,
}

/// Splits a query into tokens, up to the first that is [`Token::Refused`].
///
/// # Errors
/// Where a text or comment does not end, or a character has no place in SQL.
pub fn tokens(query: &str) -> Result<Vec<Placed>, Refusal> {
    let mut lexer = Lexer { rest: query.chars().peekable(), position: 1 };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_blanks()?;
        let position = lexer.position;
        match lexer.token() {
            Ok(Some(token)) => tokens.push(Placed { token, position }),
            Ok(None) => return Ok(tokens),
            Err(refusal) if refusal.state == SqlState::SYNTAX => return Err(refusal),
            Err(refusal) => {
                tokens.push(Placed { token: Token::Refused(Box::new(refusal)), position });
                return Ok(tokens);
            }
        }
    }
}

fn is_name_start(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

fn cut(mut name: String) -> String {
    let mut end = name.len().min(NAME_BYTES_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    name
}

impl Lexer<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.next()?;
        self.position += 1;
        Some(c)
    }

    fn peek(&mut self) -> Option<char> {
        self.rest.peek().copied()
    }

    /// The character after the next.
    fn peek_second(&self) -> Option<char> {
        self.rest.clone().nth(1)
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> String {
        let mut text = String::new();
        while let Some(c) = self.peek().filter(|c| is_part(*c)) {
            self.next();
            text.push(c);
        }
        text
    }

    fn skip_blanks(&mut self) -> Result<(), Refusal> {
        loop {
            match (self.peek(), self.peek_second()) {
                (Some(c), _) if c.is_whitespace() => {
                    self.next();
                }
                (Some('-'), Some('-')) => {
                    self.take_while(|c| c != '\n' && c != '\r');
                }
                (Some('/'), Some('*')) => self.skip_comment()?,
                _ => return Ok(()),
            }
        }
    }

    /// Comments of this kind nest.
    fn skip_comment(&mut self) -> Result<(), Refusal> {
        let (start, mut depth) = (self.position, 0_usize);
        loop {
            match (self.next(), self.peek()) {
                (Some('/'), Some('*')) => {
                    self.next();
                    depth += 1;
                }
                (Some('*'), Some('/')) => {
                    self.next();
                    depth -= 1;
                    if depth == 0 {
                        return Ok(());
                    }
                }
                (Some(_), _) => {}
                (None, _) => return Err(unterminated("/* comment", start)),
            }
        }
    }

    fn token(&mut self) -> Result<Option<Token>, Refusal> {
        let position = self.position;
        let Some(first) = self.peek() else { return Ok(None) };
        let second = self.peek_second();
        Ok(Some(match first {
            'e' | 'E' if second == Some('\'') => {
                self.next();
                Token::Text(self.text(true)?)
            }
            '\'' => Token::Text(self.text(false)?),
            '"' => Token::Quoted(cut(self.quoted('"', "quoted identifier")?)),
            c if is_name_start(c) => Token::Word(cut(self.take_while(is_name).to_lowercase())),
            c if c.is_ascii_digit() || (c == '.' && second.is_some_and(|c| c.is_ascii_digit())) => {
                Token::Number(self.number())
            }
            '$' if second.is_some_and(|c| c.is_ascii_digit()) => {
                self.next();
                let digits = self.take_while(|c| c.is_ascii_digit());
                let number = digits.parse().ok().filter(|number| *number > 0);
                Token::Parameter(number.ok_or_else(|| no_parameter(&digits).at(position))?)
            }
            ':' if second == Some(':') => {
                self.next();
                self.next();
                Token::Cast
            }
            '(' | ')' | ',' | ';' | '.' | '=' | '-' | '+' | '*' | ':' | '<' | '>' | '/' | '%' | '!' | '~' | '|'
            | '&' | '^' | '@' | '#' | '?' | '[' | ']' | '`' => {
                self.next();
                Token::Symbol(first)
            }
            '$' => {
                let refusal = Refusal::new(SqlState::NOT_SUPPORTED, "dollar-quoted texts are not served");
                return Err(refusal.hint("Write the text in single quotes.").at(position));
            }
            other => {
                return Err(Refusal::new(SqlState::SYNTAX, format!("syntax error at or near {:?}", other.to_string()))
                    .at(position));
            }
        }))
    }

    fn number(&mut self) -> String {
        let mut number = self.take_while(|c| c.is_ascii_digit());
        if self.peek() == Some('.') {
            self.next();
            number.push('.');
            number += &self.take_while(|c| c.is_ascii_digit());
        }
        if matches!(self.peek(), Some('e' | 'E')) {
            let mut ahead = self.rest.clone().skip(1);
            let sign = ahead.next();
            let has_sign = matches!(sign, Some('+' | '-'));
            let digit = if has_sign { ahead.next() } else { sign };
            if digit.is_some_and(|c| c.is_ascii_digit()) {
                number.extend(self.next());
                if has_sign {
                    number.extend(self.next());
                }
                number += &self.take_while(|c| c.is_ascii_digit());
            }
        }
        number
    }

    /// What stands between two `quote`s; two of them in a row are one.
    fn quoted(&mut self, quote: char, what: &str) -> Result<String, Refusal> {
        let start = self.position;
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                Some(c) if c == quote => {
                    if self.peek() != Some(quote) {
                        return Ok(text);
                    }
                    self.next();
                    text.push(quote);
                }
                Some(c) => text.push(c),
                None => return Err(unterminated(what, start)),
            }
        }
    }

    fn text(&mut self, with_escapes: bool) -> Result<String, Refusal> {
        if !with_escapes {
            return self.quoted('\'', "quoted string");
        }
        let start = self.position;
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                Some('\'') if self.peek() == Some('\'') => text.extend(self.next()),
                Some('\'') => return Ok(text),
                Some('\\') => {
                    let escaped = self.next().ok_or_else(|| unterminated("quoted string", start))?;
                    text.push(match escaped {
                        'n' => '\n',
                        't' => '\t',
                        'r' => '\r',
                        'b' => '\u{8}',
                        'f' => '\u{c}',
                        '\\' | '\'' | '"' | '/' => escaped,
                        other => {
                            let message = format!("the escape \\{other} is not served");
                            return Err(Refusal::new(SqlState::NOT_SUPPORTED, message).at(self.position - 1));
                        }
                    });
                }
                Some(c) => text.push(c),
                None => return Err(unterminated("quoted string", start)),
            }
        }
    }
}

pub fn no_parameter(number: &impl std::fmt::Display) -> Refusal {
    Refusal::new(SqlState::UNKNOWN_PARAMETER, format!("there is no parameter ${number}"))
}

fn unterminated(what: &str, position: usize) -> Refusal {
    Refusal::new(SqlState::SYNTAX, format!("unterminated {what}")).at(position)
}
