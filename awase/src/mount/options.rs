//! The options of a mount, as `mount -o` has them.

use std::time::Duration;

use fuser::MountOption;
use mount::{Bounds, LookupCache, Port, Ports, Timeouts};
use policy::readahead;
use policy::unit::BLOCK_BYTES;

use crate::config::parse_bytes;

/// Longest transfers, in bytes: what the host asks of a mount at most.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;

const CACHE_BYTES_DEFAULT: u64 = 256 << 20;
const CACHE_BYTES_MIN: u64 = 16 << 20;

const CONNECTIONS_MAX: u64 = 16;

/// For the host's own mount(8), or of no meaning here.
const IGNORED: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "intr",
    "nointr",
    "fg",
    "tcp",
    "nolock",
    "relatime",
    "norelatime",
    "strictatime",
    "lazytime",
    "diratime",
    "nodiratime",
    "loud",
    "silent",
];

/// Options that the host knows by the same name.
const OF_HOST: &[(&str, MountOption)] = &[
    ("nodev", MountOption::NoDev),
    ("dev", MountOption::Dev),
    ("nosuid", MountOption::NoSuid),
    ("suid", MountOption::Suid),
    ("noexec", MountOption::NoExec),
    ("exec", MountOption::Exec),
    ("noatime", MountOption::NoAtime),
    ("atime", MountOption::Atime),
    ("dirsync", MountOption::DirSync),
];

#[derive(Clone, Debug, PartialEq)]
pub struct MountOptions {
    pub files: mount::Options,
    pub ports: Ports,
    pub connections: usize,
    pub timeouts: Timeouts,
    /// Bytes.
    pub cache: u64,
    pub read_ahead: readahead::Mode,
    pub direct_io: bool,
    pub allow_other: bool,
    /// Connects from ports that only root may use.
    pub privileged: bool,
    pub of_host: Vec<MountOption>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    #[error("unknown option {name:?}{}", hint(.meant))]
    Unknown { name: String, meant: Option<&'static str> },
    #[error("option {name}={value} is wrong: {allowed} is allowed")]
    Value { name: String, value: String, allowed: &'static str },
    #[error("option {0} needs a value, as in {0}=1")]
    NoValue(String),
    #[error("option {0} has no value")]
    HasNone(String),
    #[error("acregmin and acdirmin must not exceed acregmax and acdirmax")]
    Bounds,
}

fn hint(meant: &Option<&'static str>) -> String {
    meant.map_or_else(String::new, |meant| format!("; did you mean {meant:?}?"))
}

/// All options with a meaning here; those that have a value end with `=`.
const OPTIONS: &[&str] = &[
    "ro",
    "rw",
    "port=",
    "mountport=",
    "nconnect=",
    "rsize=",
    "wsize=",
    "hard",
    "soft",
    "timeo=",
    "retrans=",
    "acregmin=",
    "acregmax=",
    "acdirmin=",
    "acdirmax=",
    "actimeo=",
    "ac",
    "noac",
    "lookupcache=",
    "cto",
    "nocto",
    "sync",
    "async",
    "closecommit",
    "noclosecommit",
    "readahead=",
    "cache=",
    "direct_io",
    "allow_other",
    "resvport",
    "noresvport",
    "nodev",
    "nosuid",
    "noexec",
    "noatime",
    "proto=",
    "vers=",
    "nfsvers=",
    "sec=",
    "local_lock=",
];

impl Default for MountOptions {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        MountOptions {
            files: mount::Options {
                read_size: TRANSFER_BYTES_MAX,
                write_size: TRANSFER_BYTES_MAX,
                read_only: false,
                files: Bounds { min: seconds(3), max: seconds(60) },
                directories: Bounds { min: seconds(30), max: seconds(60) },
                lookup_cache: LookupCache::All,
                close_to_open: true,
                is_sync: false,
                commits_at_close: true,
            },
            ports: Ports::default(),
            connections: 1,
            timeouts: Timeouts { reply: seconds(60), fails_after: None, fails_unconnected: false },
            cache: CACHE_BYTES_DEFAULT,
            read_ahead: readahead::Config::default().mode,
            direct_io: false,
            allow_other: false,
            privileged: false,
            of_host: Vec::new(),
        }
    }
}

impl MountOptions {
    /// Parses lists of options; later ones count.
    ///
    /// # Errors
    /// The first that is wrong.
    pub fn parse<'a>(lists: impl IntoIterator<Item = &'a str>) -> Result<MountOptions, OptionError> {
        let mut options = MountOptions::default();
        let mut last = Last::default();
        for given in lists.into_iter().flat_map(|list| list.split(',')).filter(|given| !given.is_empty()) {
            let (name, value) = given.split_once('=').map_or((given, None), |(name, value)| (name, Some(value)));
            options.set(Given { name, value }, &mut last)?;
            if value.is_some()
                && !OPTIONS.iter().any(|known| known.strip_suffix('=') == Some(name))
                && !is_comment(name)
            {
                return Err(OptionError::HasNone(name.to_owned()));
            }
        }
        options.timeouts.fails_after =
            last.is_soft.then(|| options.timeouts.reply.saturating_mul(last.repeats.saturating_add(1)));
        if last.is_uncached {
            options.files.files = Bounds { min: Duration::ZERO, max: Duration::ZERO };
            (options.files.directories, options.files.is_sync) = (options.files.files, true);
        }
        let Bounds { min, max } = options.files.files;
        let of_directories = options.files.directories;
        if min > max || of_directories.min > of_directories.max {
            return Err(OptionError::Bounds);
        }
        Ok(options)
    }

    fn set(&mut self, given: Given<'_>, last: &mut Last) -> Result<(), OptionError> {
        let files = &mut self.files;
        match given.name {
            "ro" => files.read_only = true,
            "rw" => files.read_only = false,
            "port" => self.ports.nfs = Some(given.port()?),
            "mountport" => self.ports.mount = Some(given.port()?),
            "nconnect" => self.connections = given.number(1, CONNECTIONS_MAX, "1 to 16")? as usize,
            "rsize" => files.read_size = given.transfer()?,
            "wsize" => files.write_size = given.transfer()?,
            "soft" => last.is_soft = true,
            "hard" => last.is_soft = false,
            "timeo" => {
                self.timeouts.reply = Duration::from_millis(100 * given.number(1, 36_000, "1 to 36000")?);
            }
            "retrans" => last.repeats = given.number(0, 1000, "0 to 1000")? as u32,
            "acregmin" => files.files.min = given.seconds()?,
            "acregmax" => files.files.max = given.seconds()?,
            "acdirmin" => files.directories.min = given.seconds()?,
            "acdirmax" => files.directories.max = given.seconds()?,
            "actimeo" => {
                let seconds = given.seconds()?;
                files.files = Bounds { min: seconds, max: seconds };
                files.directories = files.files;
            }
            "ac" => last.is_uncached = false,
            "noac" => last.is_uncached = true,
            "lookupcache" => {
                files.lookup_cache = match given.needed()? {
                    "all" => LookupCache::All,
                    "positive" | "pos" => LookupCache::Positive,
                    "none" => LookupCache::None,
                    _ => return Err(given.wrong("all, positive or none")),
                }
            }
            "cto" => files.close_to_open = true,
            "nocto" => files.close_to_open = false,
            "sync" => files.is_sync = true,
            "async" => files.is_sync = false,
            "closecommit" => files.commits_at_close = true,
            "noclosecommit" => files.commits_at_close = false,
            "readahead" => self.read_ahead = given.read_ahead()?,
            "cache" => {
                let bytes = parse_bytes(given.needed()?).filter(|bytes| *bytes >= CACHE_BYTES_MIN);
                self.cache = bytes.ok_or(given.wrong("a size of 16MiB or more"))?;
            }
            "direct_io" => self.direct_io = true,
            "allow_other" => self.allow_other = true,
            "resvport" => self.privileged = true,
            "noresvport" => self.privileged = false,
            "proto" => given.only("tcp")?,
            "vers" | "nfsvers" => given.only("3")?,
            "sec" => given.only("sys")?,
            "local_lock" => given.only("all")?,
            other => self.set_other(other)?,
        }
        Ok(())
    }

    fn set_other(&mut self, name: &str) -> Result<(), OptionError> {
        if let Some((_, option)) = OF_HOST.iter().find(|(known, _)| *known == name) {
            self.of_host.push(option.clone());
            return Ok(());
        }
        if is_comment(name) || IGNORED.contains(&name) {
            return Ok(());
        }
        let known = OPTIONS.iter().map(|known| known.trim_end_matches('='));
        let near = known.map(|known| (strsim::damerau_levenshtein(known, name), known)).min();
        let meant = near.filter(|(distance, _)| *distance <= 2).map(|(_, known)| known);
        Err(OptionError::Unknown { name: name.to_owned(), meant })
    }
}

fn is_comment(name: &str) -> bool {
    name.starts_with("x-") || name == "comment"
}

/// What counts when all options are known.
struct Last {
    is_soft: bool,
    repeats: u32,
    /// Attributes do not hold, and writes are synchronous.
    is_uncached: bool,
}

impl Default for Last {
    fn default() -> Self {
        Last { is_soft: false, repeats: 2, is_uncached: false }
    }
}

#[derive(Clone, Copy)]
struct Given<'a> {
    name: &'a str,
    value: Option<&'a str>,
}

impl<'a> Given<'a> {
    fn needed(self) -> Result<&'a str, OptionError> {
        self.value.ok_or_else(|| OptionError::NoValue(self.name.to_owned()))
    }

    fn wrong(self, allowed: &'static str) -> OptionError {
        let value = self.value.unwrap_or_default().to_owned();
        OptionError::Value { name: self.name.to_owned(), value, allowed }
    }

    fn number(self, least: u64, most: u64, allowed: &'static str) -> Result<u64, OptionError> {
        let number = self.needed()?.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or(self.wrong(allowed))
    }

    fn port(self) -> Result<Port, OptionError> {
        Ok(Port(self.number(1, 65_535, "1 to 65535")? as u16))
    }

    fn transfer(self) -> Result<u32, OptionError> {
        let bytes = parse_bytes(self.needed()?).filter(|bytes| *bytes >= BLOCK_BYTES);
        let bytes = bytes.ok_or(self.wrong("4096 or more bytes"))?;
        Ok(bytes.min(TRANSFER_BYTES_MAX.into()) as u32)
    }

    fn seconds(self) -> Result<Duration, OptionError> {
        Ok(Duration::from_secs(self.number(0, 86_400, "a number of seconds up to 86400")?))
    }

    fn read_ahead(self) -> Result<readahead::Mode, OptionError> {
        Ok(match self.needed()? {
            "adaptive" => readahead::Config::default().mode,
            _ => match self.number(0, 65_536, "a number of blocks up to 65536, or adaptive")? {
                0 => readahead::Mode::Off,
                blocks => readahead::Mode::Fixed { blocks },
            },
        })
    }

    fn only(self, allowed: &'static str) -> Result<(), OptionError> {
        if self.needed()? == allowed { Ok(()) } else { Err(self.wrong(allowed)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_of_mount() {
        let options = MountOptions::parse(["ro,rsize=65536,soft,timeo=10,retrans=3", "nconnect=4,x-systemd.automount"]);
        let options = options.expect("right");
        assert!(options.files.read_only);
        assert_eq!((options.files.read_size, options.connections), (65_536, 4));
        assert_eq!(options.timeouts.fails_after, Some(Duration::from_secs(4)));
        assert!(options.files.commits_at_close);
        let options =
            MountOptions::parse(["noclosecommit,noac,readahead=0,rw,defaults,_netdev,x-systemd.idle-timeout=5,nosuid"])
                .expect("right");
        assert!(options.files.is_sync && !options.files.commits_at_close && options.files.directories.max.is_zero());
        assert_eq!(options.read_ahead, readahead::Mode::Off);
        assert_eq!(options.of_host, [MountOption::NoSuid]);
        assert_eq!(MountOptions::parse([""]), Ok(MountOptions::default()));
    }

    #[test]
    fn what_is_wrong_is_said_with_what_is_allowed() {
        for (list, said) in [
            ("rsise=4096", "did you mean \"rsize\""),
            ("elephants", "unknown option \"elephants\""),
            ("nconnect=17", "1 to 16 is allowed"),
            ("timeo", "needs a value"),
            ("soft=3", "option soft has no value"),
            ("proto=udp", "tcp is allowed"),
            ("vers=4.2", "3 is allowed"),
            ("cache=1MiB", "16MiB"),
            ("readahead=-1", "adaptive"),
            ("acregmin=90", "must not exceed"),
            ("lookupcache=some", "all, positive or none"),
        ] {
            let error = MountOptions::parse([list]).expect_err(list).to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
