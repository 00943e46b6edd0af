//! The client's side: it proves that it knows the password, and has the server prove the same.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use constant_time_eq::constant_time_eq;
use thiserror::Error;

use super::{ITERATIONS_MAX, hash, hmac, salted};

/// Neither binding to a channel nor another identity: "n,," in base 64.
const HEADER: &str = "biws";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LoginError {
    #[error("the server's message is none of SCRAM-SHA-256")]
    Malformed,
    #[error("the server does not know the password either: it may be another one than it seems")]
    Impostor,
}

/// An exchange.
pub struct Login {
    password: String,
    nonce: String,
    signature: Option<[u8; 32]>,
}

impl Login {
    /// `random`: never used before. The password is used as it is: SASLprep (RFC 4013) changes nothing in printable ASCII.
    pub fn new(password: &str, random: &[u8; 18]) -> Login {
        Login { password: password.to_owned(), nonce: BASE64_STANDARD.encode(random), signature: None }
    }

    fn first_bare(&self) -> String {
        // PostgreSQL takes the name from the first message of the session.
        format!("n=,r={}", self.nonce)
    }

    /// The first message.
    pub fn first(&self) -> String {
        format!("n,,{}", self.first_bare())
    }

    /// The second message.
    ///
    /// # Errors
    /// If the server's first one is none.
    pub fn last(&mut self, server_first: &[u8]) -> Result<String, LoginError> {
        let server_first = std::str::from_utf8(server_first).map_err(|_| LoginError::Malformed)?;
        let mut parts = server_first.split(',');
        let mut part = |name: &str| parts.next().and_then(|part| part.strip_prefix(name)).ok_or(LoginError::Malformed);
        let (nonce, salt, iterations) = (part("r=")?, part("s=")?, part("i=")?);
        let iterations = iterations.parse().ok().filter(|number| (1..=ITERATIONS_MAX).contains(number));
        let (Ok(salt), Some(iterations)) = (BASE64_STANDARD.decode(salt), iterations) else {
            return Err(LoginError::Malformed);
        };
        if nonce.len() <= self.nonce.len() || !nonce.starts_with(&self.nonce) {
            return Err(LoginError::Malformed);
        }
        let without_proof = format!("c={HEADER},r={nonce}");
        let message = format!("{},{server_first},{without_proof}", self.first_bare());
        let salted = salted(self.password.as_bytes(), &salt, iterations);
        let mut proof = hmac(&salted, &[b"Client Key"]);
        let signature = hmac(&hash(&proof), &[message.as_bytes()]);
        proof.iter_mut().zip(signature).for_each(|(proof, byte)| *proof ^= byte);
        self.signature = Some(hmac(&hmac(&salted, &[b"Server Key"]), &[message.as_bytes()]));
        Ok(format!("{without_proof},p={}", BASE64_STANDARD.encode(proof)))
    }

    /// Whether the server knows the password, too, or what can only be made from it.
    ///
    /// # Errors
    /// If it does not.
    pub fn finish(&self, server_last: &[u8]) -> Result<(), LoginError> {
        let text = std::str::from_utf8(server_last).map_err(|_| LoginError::Malformed)?;
        let theirs = text.strip_prefix("v=").and_then(|text| BASE64_STANDARD.decode(text).ok());
        let theirs = theirs.ok_or(LoginError::Malformed)?;
        let is_right = self.signature.is_some_and(|ours| constant_time_eq(&ours, &theirs));
        if is_right { Ok(()) } else { Err(LoginError::Impostor) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Exchange, Verifier};
    use super::*;

    fn exchange(password: &str) -> (Login, Exchange) {
        let verifier = Verifier::of_password("pencil", &[9; 16]);
        let login = Login::new(password, &[3; 18]);
        let exchange = Exchange::begin(login.first().as_bytes(), "ann", Some(&verifier), &[7; 32], b"1");
        (login, exchange.expect("well-formed"))
    }

    #[test]
    fn both_sides_agree_on_a_password_and_on_no_other() {
        let (mut login, server) = exchange("pencil");
        let last = login.last(server.server_first.as_bytes()).expect("well-formed");
        let theirs = server.finish(last.as_bytes()).expect("the right password");
        assert_eq!(login.finish(theirs.as_bytes()), Ok(()));
        assert_eq!(login.finish(theirs.replace("v=", "v=AAAA").as_bytes()), Err(LoginError::Impostor));
        assert_eq!(login.finish(b"e=invalid-proof"), Err(LoginError::Malformed));
        let (mut login, server) = exchange("pencils");
        let last = login.last(server.server_first.as_bytes()).expect("well-formed");
        assert!(server.finish(last.as_bytes()).is_err());
    }

    #[test]
    fn what_is_no_message_of_a_server_is_refused() {
        let (mut login, server) = exchange("pencil");
        let right = server.server_first;
        let nonce = login.nonce.clone();
        for wrong in [
            String::new(),
            right.replace("r=", "r=x"),
            right.replace(",i=4096", ",i=0"),
            right.replace(",i=4096", ""),
            right.replace(",s=", ",s=*"),
            format!("r={nonce},s=AAAA,i=1"),
        ] {
            assert_eq!(login.last(wrong.as_bytes()), Err(LoginError::Malformed), "{wrong}");
        }
        assert_eq!(login.finish(b"v="), Err(LoginError::Impostor), "before anything was proved");
        assert_eq!(login.last(right.as_bytes()).map(|last| last.starts_with("c=biws,r=")), Ok(true));
    }
}
