//! Passwords by SCRAM-SHA-256 (RFC 5802, RFC 7677), without channel binding: there is no TLS here to bind to.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use constant_time_eq::constant_time_eq;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

pub mod client;

const ITERATIONS: u32 = 4096;
/// A verifier with more would let a client's guess cost nothing and its owner's login seconds.
const ITERATIONS_MAX: u32 = 10_000_000;
const PREFIX: &str = "SCRAM-SHA-256$";
pub const MECHANISM: &str = "SCRAM-SHA-256";

type Key = [u8; 32];

/// What is known of a password: enough to check it, not enough to log in elsewhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    iterations: u32,
    salt: Vec<u8>,
    stored_key: Key,
    server_key: Key,
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> Key {
    // A key of HMAC may have any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return Key::default() };
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

fn hash(bytes: &[u8]) -> Key {
    Sha256::digest(bytes).into()
}

/// `Hi` of RFC 5802: PBKDF2 with one block.
fn salted(password: &[u8], salt: &[u8], iterations: u32) -> Key {
    let mut last = hmac(password, &[salt, &1_u32.to_be_bytes()]);
    let mut sum = last;
    for _ in 1..iterations {
        last = hmac(password, &[&last]);
        sum.iter_mut().zip(last).for_each(|(sum, byte)| *sum ^= byte);
    }
    sum
}

impl Verifier {
    /// Of a password in printable ASCII, to which SASLprep (RFC 4013) changes nothing.
    pub fn of_password(password: &str, salt: &[u8; 16]) -> Verifier {
        let salted = salted(password.as_bytes(), salt, ITERATIONS);
        let stored_key = hash(&hmac(&salted, &[b"Client Key"]));
        let server_key = hmac(&salted, &[b"Server Key"]);
        Verifier { iterations: ITERATIONS, salt: salt.to_vec(), stored_key, server_key }
    }

    /// As PostgreSQL writes it (`pg_authid.rolpassword`): `SCRAM-SHA-256$4096:salt$stored key:server key`.
    pub fn parse(text: &str) -> Option<Verifier> {
        let (head, keys) = text.strip_prefix(PREFIX)?.split_once('$')?;
        let ((iterations, salt), (stored, server)) = (head.split_once(':')?, keys.split_once(':')?);
        let key = |text: &str| Key::try_from(BASE64_STANDARD.decode(text).ok()?).ok();
        let iterations = iterations.parse().ok().filter(|number| (1..=ITERATIONS_MAX).contains(number))?;
        let salt = BASE64_STANDARD.decode(salt).ok().filter(|salt| !salt.is_empty() && salt.len() <= 256)?;
        Some(Verifier { iterations, salt, stored_key: key(stored)?, server_key: key(server)? })
    }

    /// For a user who does not exist: what a client sees of it is always the same for a name, and it fits no password.
    fn mock(secret: &Key, user: &str) -> Verifier {
        let salt = hmac(secret, &[b"mock salt", user.as_bytes()])[..16].to_vec();
        let key = |what: &[u8]| hmac(secret, &[what, user.as_bytes()]);
        Verifier { iterations: ITERATIONS, salt, stored_key: key(b"mock stored"), server_key: key(b"mock server") }
    }
}

impl std::fmt::Display for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |bytes: &[u8]| BASE64_STANDARD.encode(bytes);
        let (salt, stored, server) = (text(&self.salt), text(&self.stored_key), text(&self.server_key));
        write!(f, "{PREFIX}{}:{salt}${stored}:{server}", self.iterations)
    }
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verifier")
    }
}

/// The exchange after the client's first message.
#[derive(Debug)]
pub struct Exchange {
    verifier: Verifier,
    /// A user who does not exist is refused at the end, as one with a wrong password.
    is_known: bool,
    /// The client's and ours.
    nonce: String,
    client_first_bare: String,
    pub server_first: String,
    /// The client's header, which it repeats.
    header: String,
}

/// The exchange failed; the client is told no more.
#[derive(Debug, PartialEq, Eq)]
pub struct Failed;

impl Exchange {
    /// `first`: the client's first message. `fresh`: never used before. The name in it counts for nothing, as in PostgreSQL.
    pub fn begin(
        first: &[u8],
        user: &str,
        verifier: Option<&Verifier>,
        secret: &Key,
        fresh: &[u8],
    ) -> Result<Exchange, Failed> {
        let first = std::str::from_utf8(first).map_err(|_| Failed)?;
        let mut parts = first.splitn(3, ',');
        let (Some(binding), Some(identity), Some(bare)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(Failed);
        };
        // "y": the client could bind, and believes that we cannot, which is right.
        if !matches!(binding, "n" | "y") || !identity.is_empty() {
            return Err(Failed);
        }
        let client_nonce = bare.split(',').nth(1).and_then(|part| part.strip_prefix("r="));
        let is_printable = |nonce: &&str| !nonce.is_empty() && nonce.bytes().all(|byte| byte.is_ascii_graphic());
        let client_nonce = client_nonce.filter(is_printable).ok_or(Failed)?;
        let own = BASE64_STANDARD.encode(&hmac(secret, &[b"nonce", fresh])[..18]);
        let nonce = format!("{client_nonce}{own}");
        let (is_known, verifier) =
            (verifier.is_some(), verifier.cloned().unwrap_or_else(|| Verifier::mock(secret, user)));
        let salt = BASE64_STANDARD.encode(&verifier.salt);
        let server_first = format!("r={nonce},s={salt},i={}", verifier.iterations);
        let header = format!("{binding},,");
        Ok(Exchange { verifier, is_known, nonce, client_first_bare: bare.to_owned(), server_first, header })
    }

    /// `last`: the client's last message. Returns ours.
    pub fn finish(&self, last: &[u8]) -> Result<String, Failed> {
        let last = std::str::from_utf8(last).map_err(|_| Failed)?;
        let (without_proof, proof) = last.rsplit_once(",p=").ok_or(Failed)?;
        let mut parts = without_proof.split(',');
        let binding = parts.next().and_then(|part| part.strip_prefix("c=")).ok_or(Failed)?;
        let nonce = parts.next().and_then(|part| part.strip_prefix("r=")).ok_or(Failed)?;
        if BASE64_STANDARD.decode(binding).ok().as_deref() != Some(self.header.as_bytes()) || nonce != self.nonce {
            return Err(Failed);
        }
        let proof = Key::try_from(BASE64_STANDARD.decode(proof).map_err(|_| Failed)?).map_err(|_| Failed)?;
        let message = format!("{},{},{without_proof}", self.client_first_bare, self.server_first);
        let mut client_key = hmac(&self.verifier.stored_key, &[message.as_bytes()]);
        client_key.iter_mut().zip(proof).for_each(|(key, byte)| *key ^= byte);
        if !constant_time_eq(&hash(&client_key), &self.verifier.stored_key) || !self.is_known {
            return Err(Failed);
        }
        let signature = hmac(&self.verifier.server_key, &[message.as_bytes()]);
        Ok(format!("v={}", BASE64_STANDARD.encode(signature)))
    }
}

/// `len` bytes that nobody can predict who does not know `secret`.
pub fn derive(secret: &Key, what: &[u8], fresh: &[u8]) -> Key {
    hmac(secret, &[what, fresh])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exchange of RFC 7677, section 3, with its nonces.
    #[test]
    fn the_exchange_of_the_rfc_succeeds_and_any_other_proof_fails() {
        let salt: [u8; 16] =
            BASE64_STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").expect("base64").try_into().expect("16 bytes");
        let verifier = Verifier::of_password("pencil", &salt);
        let nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        let exchange = Exchange {
            verifier: verifier.clone(),
            is_known: true,
            nonce: nonce.into(),
            client_first_bare: "n=user,r=rOprNGfwEbeRWgbNEkqO".into(),
            server_first: format!("r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"),
            header: "n,,".into(),
        };
        let last = format!("c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=");
        let ours = exchange.finish(last.as_bytes());
        assert_eq!(ours.as_deref(), Ok("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="));
        let wrong = last.replace("dHzb", "dHzc");
        assert_eq!(exchange.finish(wrong.as_bytes()), Err(Failed));
        assert_eq!(Verifier::parse(&verifier.to_string()), Some(verifier));
    }

    #[test]
    fn what_is_no_message_of_the_exchange_fails() {
        let secret = [7; 32];
        for first in [
            "",
            "n,,",
            "n,,n=,r=",
            "p=tls-server-end-point,,n=,r=x",
            "n,a=other,n=,r=x",
            "x,,n=,r=x",
            "n,,n=\u{7},r=\u{7}",
        ] {
            assert!(Exchange::begin(first.as_bytes(), "u", None, &secret, b"1").is_err(), "{first:?}");
        }
        let exchange = Exchange::begin(b"n,,n=,r=abc", "u", None, &secret, b"1").expect("well-formed");
        let nonce = exchange.nonce.clone();
        assert!(nonce.starts_with("abc") && nonce.len() > 20, "{nonce}");
        for last in [
            String::new(),
            "p=".into(),
            format!("c=biws,r={nonce}"),
            format!("c=eSws,r={nonce},p=AAAA"),
            "c=biws,r=abc,p=AAAA".into(),
        ] {
            assert_eq!(exchange.finish(last.as_bytes()), Err(Failed), "{last}");
        }
    }
}
