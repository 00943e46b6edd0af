//! The keys of an export.

use std::net::IpAddr;
use std::time::Duration;

use nfs::IpNet;

use super::directory;
use super::draft::Draft;
use super::given::{Refusal, show_bytes, show_duration};
use super::key::{Entry, Key, apply};
use super::kind::{Kind, MECHANICAL, SECTOR_BYTES, StableWrites};
use super::problem::Problem;
use super::switches::{ACCESS_MODES, name_of, named};

/// NBD protocol, "Values": strings are at most 4096 bytes.
const TEXT_BYTES_MAX: usize = 4096;

/// The largest volume whose blocks can be numbered, 1 EiB: within `off_t`, too.
const SIZE_MAX: u64 = kernel::volume::VOLUME_BYTES_MAX;

/// To the host, user or group -1 means "do not change" (chown(2)).
pub(super) const ID_MAX: u64 = u32::MAX as u64 - 1;

fn short(text: &str) -> Result<String, Refusal> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(Refusal::Because(format!("is {} bytes long, more than {TEXT_BYTES_MAX}", text.len())));
    }
    if text.contains('\0') {
        return Err(Refusal::Because("holds a zero byte".into()));
    }
    Ok(text.to_owned())
}

macro_rules! permille {
    ($name:literal, $field:ident, $about:literal) => {
        Key {
            name: $name,
            allowed: "a number from 0 to 1000",
            about: $about,
            paper: "",
            set: |draft, given| {
                draft.faults.$field = given.number(0..=1000)? as u16;
                Ok(())
            },
            show: |draft| Some(draft.faults.$field).filter(|n| *n > 0).map(|n| n.to_string()),
        }
    };
}

pub(super) fn network(text: &str) -> Result<IpNet, Refusal> {
    let one = || text.parse().map(|address: IpAddr| IpNet::from(address));
    text.parse().or_else(|_| one()).map_err(|_| Refusal::Because(format!("holds {text:?}, which is not a network")))
}

pub static EXPORT_KEYS: &[Key<Draft>] = &[
    Key {
        name: "name",
        allowed: "a text of 1 to 4096 bytes",
        about: "The name by which clients ask for it; required. The empty name means the first disk",
        paper: "",
        set: |draft, given| {
            draft.name = Some(short(given.filled_text()?)?);
            Ok(())
        },
        show: |draft| draft.name.as_ref().map(|name| quoted(name)),
    },
    Key {
        name: "description",
        allowed: "a text of at most 4096 bytes",
        about: "Disks: one line of text, shown by nbdinfo",
        paper: "",
        set: |draft, given| {
            draft.description = Some(short(given.text()?)?);
            Ok(())
        },
        show: |draft| draft.description.as_ref().map(|text| quoted(text)),
    },
    Key {
        name: "kind",
        allowed: Kind::ALLOWED,
        about: "What it is: a disk (NBD) in an image file, on a block device, in memory, or the papers' device of fixed \
                latency; or a directory (NFS); required",
        paper: "",
        set: |draft, given| {
            draft.kind = Some(match given.text()? {
                "mechanical" => return Err(Refusal::Because(MECHANICAL.to_owned())),
                _ => named(given, &Kind::ALL)?,
            });
            Ok(())
        },
        show: |draft| draft.kind.and_then(|kind| name_of(kind, &Kind::ALL)),
    },
    Key {
        name: "path",
        allowed: "a path",
        about: "The file, device or directory; a testdev keeps its bytes in memory without it",
        paper: "",
        set: |draft, given| {
            draft.path = Some(given.filled_text()?.into());
            Ok(())
        },
        show: |draft| draft.path.as_ref().map(|path| quoted(&path.to_string_lossy())),
    },
    Key {
        name: "size",
        allowed: "a size such as \"1GiB\", at most \"1EiB\", that is a multiple of 512",
        about: "Disks: the size; optional for a file that exists, whose size it must be",
        paper: "",
        set: |draft, given| {
            let size = given.bytes(SECTOR_BYTES..=SIZE_MAX)?;
            if !size.is_multiple_of(SECTOR_BYTES) {
                return Err(Refusal::Because("is not a multiple of 512".into()));
            }
            draft.size = Some(size);
            Ok(())
        },
        show: |draft| draft.size.map(|size| quoted(&show_bytes(size))),
    },
    Key {
        name: "read_only",
        allowed: "true, false",
        about: "Refuse changes (default false)",
        paper: "",
        set: |draft, given| {
            draft.read_only = Some(given.boolean()?);
            Ok(())
        },
        show: |draft| draft.read_only.map(|value| value.to_string()),
    },
    Key {
        name: "block_size",
        allowed: "1, 512, 4096",
        about: "Disks: the smallest unit that clients may transfer, in bytes (default 1: any)",
        paper: "",
        set: |draft, given| {
            draft.block_size = Some(match given.bytes(0..=u64::MAX)? {
                1 => 1,
                512 => 512,
                4096 => 4096,
                _ => return Err(Refusal::NotAllowed),
            });
            Ok(())
        },
        show: |draft| draft.block_size.map(|bytes| bytes.to_string()),
    },
    Key {
        name: "create",
        allowed: "true, false",
        about: "Create the file, sparse and of `size`, or the directory if it does not exist (default false)",
        paper: "",
        set: |draft, given| {
            draft.create = Some(given.boolean()?);
            Ok(())
        },
        show: |draft| draft.create.map(|value| value.to_string()),
    },
    Key {
        name: "stable_writes",
        allowed: "\"auto\", \"flush\", \"fua\"",
        about: "Disks: how stable writes become durable: by a write and a flush, by forced unit access, or by whichever \
                measured cheaper at start, concurrent ones by forced unit access only if the disk itself has it; where both cost about the same, a write that no other shares a flush with is \
                forced; on file systems that are not known to make forced writes durable (all but ext4, XFS, Btrfs and \
                F2FS) always by a write and a flush (default auto)",
        paper: "",
        set: |draft, given| {
            draft.stable_writes = Some(named(given, &StableWrites::ALL)?);
            Ok(())
        },
        show: |draft| draft.stable_writes.and_then(|way| name_of(way, &StableWrites::ALL)),
    },
    Key {
        name: "access",
        allowed: "\"symmetric\", \"funnel\"",
        about: "Disks: every processor starts the device, or only the first, to which the others hand over their \
                requests (default: as the switch `access`)",
        paper: "MP 1a, 1b",
        set: |draft, given| {
            draft.access = Some(named(given, &ACCESS_MODES)?);
            Ok(())
        },
        show: |draft| draft.access.and_then(|access| name_of(access, &ACCESS_MODES)),
    },
    Key {
        name: "mount",
        allowed: "a path of at most 1024 bytes that begins with \"/\"",
        about: "Directories: the path by which clients mount it (default: \"/\" and the name)",
        paper: "",
        set: |draft, given| {
            let path = given.filled_text()?;
            directory::check_mount_path(path).map_err(|why| Refusal::Because(why.into()))?;
            draft.mount = Some(path.to_owned());
            Ok(())
        },
        show: |draft| draft.mount.as_ref().map(|path| quoted(path)),
    },
    Key {
        name: "clients",
        allowed: "a list of networks and addresses such as \"10.0.0.0/8\" or \"fd00::1\"; in a flag separated by spaces",
        about: "Directories: the clients that are served (default: all that reach `listen.nfs`)",
        paper: "",
        set: |draft, given| {
            let texts = given.texts()?;
            let words = texts.iter().flat_map(|text| text.split_whitespace());
            let networks = words.map(network).collect::<Result<Vec<_>, _>>()?;
            // An empty list would admit every client, which its author hardly means.
            if networks.is_empty() {
                return Err(Refusal::Because("is empty; leave it out to serve all clients".into()));
            }
            draft.clients = Some(networks);
            Ok(())
        },
        show: |draft| {
            let clients = draft.clients.as_ref()?;
            let networks: Vec<_> = clients.iter().map(|network| format!("\"{network}\"")).collect();
            Some(format!("[{}]", networks.join(", ")))
        },
    },
    Key {
        name: "secure",
        allowed: "true, false",
        about: "Directories: serve only clients with ports below 1024, which a host gives to root alone (default true). \
                If false, any user of a client's host can claim to be any other. Clients in user space (libnfs) that \
                ordinary users run need false, or `listen.nfs_unix`",
        paper: "",
        set: |draft, given| {
            draft.secure = Some(given.boolean()?);
            Ok(())
        },
        show: |draft| draft.secure.map(|secure| secure.to_string()),
    },
    Key {
        name: "squash",
        allowed: "\"root_squash\", \"all_squash\", \"no_root_squash\"",
        about: "Directories: which callers act as the anonymous user: root, all, or none (default root_squash)",
        paper: "",
        set: |draft, given| {
            draft.squash = Some(named(given, &directory::SQUASH_RULES)?);
            Ok(())
        },
        show: |draft| draft.squash.and_then(|squash| name_of(squash, &directory::SQUASH_RULES)),
    },
    Key {
        name: "anonymous_uid",
        allowed: "a number from 0 to 4294967294",
        about: "Directories: the anonymous user (default 65534)",
        paper: "",
        set: |draft, given| {
            draft.anonymous_uid = Some(given.number(0..=ID_MAX)? as u32);
            Ok(())
        },
        show: |draft| draft.anonymous_uid.map(|uid| uid.to_string()),
    },
    Key {
        name: "anonymous_gid",
        allowed: "a number from 0 to 4294967294",
        about: "Directories: the anonymous user's group (default 65534)",
        paper: "",
        set: |draft, given| {
            draft.anonymous_gid = Some(given.number(0..=ID_MAX)? as u32);
            Ok(())
        },
        show: |draft| draft.anonymous_gid.map(|gid| gid.to_string()),
    },
    Key {
        name: "names",
        allowed: "\"durable\", \"ordered\"",
        about: "Directories: when changes of names and attributes are answered: when they are durable (the default), or at \
                once. Then a crash of the host leaves a prefix of them, without at most the last second, and stable writes \
                and COMMIT make those before them durable, too. Needs ext4 with a journal",
        paper: "",
        set: |draft, given| {
            draft.names = Some(named(given, &directory::NAMES)?);
            Ok(())
        },
        show: |draft| draft.names.and_then(|names| name_of(names, &directory::NAMES)),
    },
    Key {
        name: "latency",
        allowed: "a time from 0s to 60s such as \"17ms\"",
        about: "The time that each operation of a testdev takes (default 17ms, as in the paper)",
        paper: "",
        set: |draft, given| {
            draft.latency = Some(given.duration(Duration::ZERO..=Duration::from_secs(60))?);
            Ok(())
        },
        show: |draft| draft.latency.map(|latency| quoted(&show_duration(latency))),
    },
    Key {
        name: "delay",
        allowed: "a time from 0s to 60s such as \"5ms\"",
        about: "For tests: added to every operation of the medium",
        paper: "",
        set: |draft, given| {
            draft.delay = Some(given.duration(Duration::ZERO..=Duration::from_secs(60))?);
            Ok(())
        },
        show: |draft| draft.delay.map(|delay| quoted(&show_duration(delay))),
    },
    permille!("faults.read_permille", read_permille, "For tests: failing reads of the medium, of 1000"),
    permille!("faults.write_permille", write_permille, "For tests: failing writes of the medium, of 1000"),
    permille!("faults.flush_permille", flush_permille, "For tests: failing flushes of the medium, of 1000"),
    Key {
        name: "faults.seed",
        allowed: "a number",
        about: "For tests: the seed from which the failing operations are drawn",
        paper: "",
        set: |draft, given| {
            draft.faults.seed = given.number(0..=i64::MAX as u64)?;
            Ok(())
        },
        show: |draft| Some(draft.faults.seed).filter(|seed| *seed > 0).map(|seed| seed.to_string()),
    },
];

impl Draft {
    /// # Errors
    /// When there is no such key or its value is not allowed.
    pub fn take(&mut self, entry: &Entry) -> Result<(), Problem> {
        let shown = self.key(&entry.key);
        apply(EXPORT_KEYS, self, entry, &shown)?;
        self.places.insert(entry.key.clone(), entry.place.clone());
        Ok(())
    }
}

pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
