//! What is mounted, as people write it.

use std::fmt;

use mount::{Port, Ports};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// What of a path would not be read as it is shown.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%').add(b'?');

/// An export of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// A name or an address.
    pub host: String,
    pub ports: Ports,
    /// Absolute.
    pub path: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no export: {why}; nfs://HOST[:PORT]/PATH or HOST:/PATH is needed")]
pub struct UrlError {
    text: String,
    why: &'static str,
}

const NO_PORT: &str = "its port is not a number from 1 to 65535";

impl Url {
    /// A URL (RFC 2224) may name ports as libnfs does: `?nfsport=N&mountport=N`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Url, UrlError> {
        let wrong = |why| UrlError { text: text.to_owned(), why };
        let (host, ports, path) = match text.split_once("://") {
            Some(("nfs", rest)) => {
                let at = rest.find('/').ok_or(wrong("it has no path"))?;
                let (authority, path) = rest.split_at(at);
                let (path, arguments) = path.split_once('?').unwrap_or((path, ""));
                let (host, port) = split_port(authority).ok_or(wrong(NO_PORT))?;
                let ports = with_named(Ports { nfs: port, mount: None }, arguments).map_err(wrong)?;
                (host, ports, percent_decode_str(path).decode_utf8().map_err(|_| wrong("its path is not UTF-8"))?)
            }
            Some(_) => return Err(wrong("its scheme is not nfs")),
            None => {
                let at = text.find(":/").ok_or(wrong("it has no host and path"))?;
                (&text[..at], Ports::default(), text[at + 1..].into())
            }
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(wrong("it has no host"));
        }
        Ok(Url { host: host.to_owned(), ports, path: path.into_owned() })
    }
}

/// The ports, and those that a URL's arguments name.
fn with_named(mut ports: Ports, arguments: &str) -> Result<Ports, &'static str> {
    for argument in arguments.split('&').filter(|argument| !argument.is_empty()) {
        let (name, value) = argument.split_once('=').unwrap_or((argument, ""));
        let port = match name {
            "nfsport" => &mut ports.nfs,
            "mountport" => &mut ports.mount,
            _ => return Err("of arguments it may have nfsport and mountport; all else is an option (-o)"),
        };
        let named = parse_port(value).ok_or(NO_PORT)?;
        if port.replace(named).is_some_and(|other| other != named) {
            return Err("it has two ports for one thing");
        }
    }
    Ok(ports)
}

fn parse_port(text: &str) -> Option<Port> {
    text.parse().ok().filter(|port| *port != 0).map(Port)
}

/// Host and port; `None`: there is a port that is none.
fn split_port(authority: &str) -> Option<(&str, Option<Port>)> {
    let end_of_host = authority.rfind(']').map_or(0, |at| at + 1);
    match authority[end_of_host..].find(':') {
        None => Some((authority, None)),
        Some(at) => {
            let (host, port) = authority.split_at(end_of_host + at);
            Some((host, Some(parse_port(&port[1..])?)))
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Url { host, ports, path } = self;
        write!(f, "nfs://")?;
        if host.contains(':') {
            write!(f, "[{host}]")?
        } else {
            write!(f, "{host}")?
        }
        ports.nfs.map_or(Ok(()), |Port(port)| write!(f, ":{port}"))?;
        write!(f, "{}", utf8_percent_encode(path, ENCODED))?;
        ports.mount.map_or(Ok(()), |Port(port)| write!(f, "?mountport={port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_are_written_as_urls_or_as_for_mount() {
        for (text, host, [nfs, mount], path, shown) in [
            ("nfs://server/srv/a b", "server", [0, 0], "/srv/a b", "nfs://server/srv/a b"),
            ("nfs://10.0.0.1:20490/", "10.0.0.1", [20490, 0], "/", "nfs://10.0.0.1:20490/"),
            ("nfs://[::1]:2049/x", "::1", [2049, 0], "/x", "nfs://[::1]:2049/x"),
            ("nfs://[fe80::1]/x", "fe80::1", [0, 0], "/x", "nfs://[fe80::1]/x"),
            ("server:/srv", "server", [0, 0], "/srv", "nfs://server/srv"),
            ("[::1]:/srv", "::1", [0, 0], "/srv", "nfs://[::1]/srv"),
            ("nfs://h/x?nfsport=7&mountport=8", "h", [7, 8], "/x", "nfs://h:7/x?mountport=8"),
            ("nfs://h:7/x?nfsport=7", "h", [7, 0], "/x", "nfs://h:7/x"),
            ("nfs://h/%C3%A4%3F%25", "h", [0, 0], "/ä?%", "nfs://h/%C3%A4%3F%25"),
            ("h:/a?b%20", "h", [0, 0], "/a?b%20", "nfs://h/a%3Fb%2520"),
        ] {
            let url = Url::parse(text).expect(text);
            let ports = [url.ports.nfs, url.ports.mount].map(|port| port.map_or(0, |Port(port)| port));
            assert_eq!((url.host.as_str(), ports, url.path.as_str()), (host, [nfs, mount], path), "{text}");
            assert_eq!(url.to_string(), shown);
            assert_eq!(Url::parse(shown), Ok(url));
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
            ("nfs://server/x?nfsport=", "port"),
            ("nfs://server:1/x?nfsport=2", "two ports"),
            ("nfs://server/x?version=3", "nfsport and mountport"),
            ("nfs://server/%FF", "UTF-8"),
            ("http://server/x", "scheme"),
        ] {
            let error = Url::parse(text).expect_err(text).to_string();
            assert!(error.contains(why) && error.contains("nfs://HOST"), "{error}");
        }
    }
}
