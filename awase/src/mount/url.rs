//! What is mounted, as people write it.

use std::fmt;

/// An export of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// A name or an address.
    pub host: String,
    pub port: Option<u16>,
    /// Absolute.
    pub path: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no export: {why}; nfs://HOST[:PORT]/PATH or HOST:/PATH is needed")]
pub struct UrlError {
    text: String,
    why: &'static str,
}

impl Url {
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Url, UrlError> {
        let wrong = |why| UrlError { text: text.to_owned(), why };
        let (host, port, path) = match text.split_once("://") {
            Some(("nfs", rest)) => {
                let at = rest.find('/').ok_or(wrong("it has no path"))?;
                let (authority, path) = rest.split_at(at);
                let (host, port) = split_port(authority).ok_or(wrong("its port is not a number from 1 to 65535"))?;
                (host, port, path)
            }
            Some(_) => return Err(wrong("its scheme is not nfs")),
            None => {
                let at = text.find(":/").ok_or(wrong("it has no host and path"))?;
                (&text[..at], None, &text[at + 1..])
            }
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(wrong("it has no host"));
        }
        Ok(Url { host: host.to_owned(), port, path: path.to_owned() })
    }
}

/// Host and port; `None`: there is a port that is none.
fn split_port(authority: &str) -> Option<(&str, Option<u16>)> {
    let end_of_host = authority.rfind(']').map_or(0, |at| at + 1);
    match authority[end_of_host..].find(':') {
        None => Some((authority, None)),
        Some(at) => {
            let (host, port) = authority.split_at(end_of_host + at);
            let port = port[1..].parse().ok().filter(|port| *port != 0)?;
            Some((host, Some(port)))
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Url { host, port, path } = self;
        write!(f, "nfs://")?;
        if host.contains(':') {
            write!(f, "[{host}]")?
        } else {
            write!(f, "{host}")?
        }
        port.map_or(Ok(()), |port| write!(f, ":{port}"))?;
        write!(f, "{path}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_are_written_as_urls_or_as_for_mount() {
        for (text, host, port, path, shown) in [
            ("nfs://server/srv/a b", "server", None, "/srv/a b", "nfs://server/srv/a b"),
            ("nfs://10.0.0.1:20490/", "10.0.0.1", Some(20490), "/", "nfs://10.0.0.1:20490/"),
            ("nfs://[::1]:2049/x", "::1", Some(2049), "/x", "nfs://[::1]:2049/x"),
            ("nfs://[fe80::1]/x", "fe80::1", None, "/x", "nfs://[fe80::1]/x"),
            ("server:/srv", "server", None, "/srv", "nfs://server/srv"),
            ("[::1]:/srv", "::1", None, "/srv", "nfs://[::1]/srv"),
        ] {
            let url = Url::parse(text).expect(text);
            assert_eq!((url.host.as_str(), url.port, url.path.as_str()), (host, port, path), "{text}");
            assert_eq!(url.to_string(), shown);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, why) in [
            ("", "no host and path"),
            ("server", "no host and path"),
            ("nfs://server", "no path"),
            ("nfs:///x", "no host"),
            (":/x", "no host"),
            ("nfs://server:0/x", "port"),
            ("nfs://server:70000/x", "port"),
            ("http://server/x", "scheme"),
        ] {
            let error = Url::parse(text).expect_err(text).to_string();
            assert!(error.contains(why) && error.contains("nfs://HOST"), "{error}");
        }
    }
}
