//! The keys of an export.

use std::net::IpAddr;
use std::sync::LazyLock;
use std::time::Duration;

use nfs::IpNet;
use policy::unit::BLOCK_BYTES;

use super::cluster::Backing;
use super::directory::{NAMES, SQUASH, check_mount_path};
use super::draft::Draft;
use super::form::{
    Form, bytes, filled, list, named, number, on_off, optional, parsed, path, quoted, text, time, unless_zero,
};
use super::given::{Given, Refusal};
use super::key::{Entry, Key, Keys, apply_all, keys};
use super::kind::{KINDS, Kind, MECHANICAL, SECTOR_BYTES, STABLE_WRITES};
use super::problem::Problems;
use super::switches::ACCESS;

/// NBD protocol, "Values": strings are at most 4096 bytes.
const TEXT_BYTES_MAX: usize = 4096;

/// The largest volume whose blocks can be numbered, 1 EiB: within `off_t`, too.
const SIZE_MAX: u64 = kernel::volume::VOLUME_BYTES_MAX;

const DELAY_MAX: Duration = Duration::from_secs(60);

pub static EXPORT_KEYS: Keys<Draft> = keys! { Draft:
    name: optional(fitting(text("a text of 1 to 4096 bytes"))),
        "The name by which clients ask for it; required. The empty name means the first disk";
    description: optional(fitting(Form::new(
            "a text of at most 4096 bytes", |given| Ok(given.text()?.to_owned()), quoted))),
        "Disks: one line of text, shown by nbdinfo";
    kind: optional(Form { read: Box::new(read_kind), ..named(KINDS) }),
        "What it is: a disk (NBD) in an image file, on a block device, in memory, the papers' device of fixed \
         latency, or one disk shared by the nodes of a cluster; or a directory (NFS); required";
    path: optional(path("a path")), "The file, device or directory; a testdev keeps its bytes in memory without it";
    size: optional(bytes(
            SECTOR_BYTES..=SIZE_MAX,
            "a size such as \"1GiB\", at most \"1EiB\", that is a multiple of 512 (shared disks: of 4096)")
            .unless(|size| (!size.is_multiple_of(SECTOR_BYTES)).then(|| "is not a multiple of 512".into()))),
        "Disks: the size; optional for a file that exists, whose size it must be";
    read_only: optional(on_off()), "Refuse changes (default false)";
    overlay: optional(on_off()),
        "Disks: what is written goes into a temporary file without a name (in $TMPDIR), and is gone when the server \
         ends or the disk is served no more, unless `awase keep NAME` writes it into the disk's file before; the disk itself \
         is only read, so that several servers can have it. Nothing of it survives a crash, whatever clients flush \
         (default false)", "OLTP test-update mode";
    overlay_size: optional(bytes(
            BLOCK_BYTES..=SIZE_MAX, "a size such as \"1GiB\", at most \"1EiB\"")),
        "Disks: how much can be written beside; then there is no space left (default: the size of the disk)";
    block_size: optional(Form::new("1, 512, 4096", read_block_size, u32::to_string)),
        "Disks: the smallest unit that clients may transfer, in bytes (default 1: any)";
    create: optional(on_off()),
        "Create the file, sparse and of `size`, or the directory if it does not exist, and the directories above it \
         (default false)";
    stable_writes: optional(named(STABLE_WRITES)),
        "Disks: how stable writes become durable: by a write and a flush, by forced unit access, or by whichever \
         measured cheaper at start, concurrent ones by forced unit access only if the disk itself has it; where both \
         cost about the same, a write that no other shares a flush with is forced; on file systems that are not known \
         to make forced writes durable (all but ext4, XFS, F2FS and, from Linux 6.1 on, Btrfs) always by a write and a \
         flush (default auto)";
    access: optional(named(ACCESS)),
        "Disks: every processor starts the device, or only the first, to which the others hand over their \
         requests (default: as the switch `access`)", "MP 1a, 1b";
    mount: optional(text("a path of at most 1024 bytes that begins with \"/\"")
            .unless(|path| check_mount_path(path).err().map(str::to_owned))),
        "Directories: the path by which clients mount it (default: \"/\" and the name)";
    clients: filled(parsed(
            "a list of networks and addresses such as \"10.0.0.0/8\" or \"fd00::1\"; in a flag separated by spaces",
            network)),
        "Directories: the clients that are served (default: all that reach `listen.nfs`)";
    secure: optional(on_off()),
        "Directories: serve only clients with ports below 1024, which a host gives to root alone (default true). \
         If false, any user of a client's host can claim to be any other. Clients in user space (libnfs) that \
         ordinary users run need false, or `listen.nfs_unix`";
    squash: optional(named(SQUASH)),
        "Directories: which callers act as the anonymous user: root, all, or none (default root_squash)";
    anonymous_uid: optional(id()), "Directories: the anonymous user (default 65534)";
    anonymous_gid: optional(id()), "Directories: the anonymous user's group (default 65534)";
    names: optional(named(NAMES)),
        "Directories: when changes of names and attributes are answered: when they are durable (the default), or at \
         once. Then a crash of the host leaves a prefix of them, without at most the last second, and stable writes \
         and COMMIT make those before them durable, too. Needs ext4 with a journal";
    persistent_handles: optional(on_off()),
        "Directories: files are found by file handle also on FUSE and FAT (default false). Only if these handles are \
         persistent: the daemon gives each file one number for ever. Otherwise clients get NFS3ERR_STALE for files \
         that are there, or read and write other files";
    homes: Form { show: Box::new(show_homes), ..list(text("a list of nodes such as [\"a\", \"b\"]"))
            .unless(|homes| homes.is_empty().then(|| "is empty; leave it out for all nodes".into())) },
        "Shared disks: the nodes that store its blocks, in turn each 1 MiB (default: all nodes of `cluster.peers`; \
         required with `cluster.etcd`); the same on all nodes";
    backing: optional(named([(Backing::Memory, "memory")])
            .or(path("").map(Backing::Path, |backing| match backing {
                Backing::Path(path) => Some(path.clone()),
                Backing::Memory | Backing::Device(_) => None,
            }), "\"memory\", or the path of a file, which is created at first")),
        "Shared disks: where this node stores the blocks whose home it is; this or `shared_device` is required. A file \
         that is missing later is not made anew: the server does not start without it";
    shared_device: optional(path("the path of a device, or of a file, that every node reaches")),
        "Shared disks: a device that every node reaches (Ceph RBD, a multi-attach cloud disk, iSCSI), or a file, with \
         direct I/O, unless it is in memory. Any node stores any block there, and others go on when one dies. Needs \
         `cluster.etcd`";
    latency: optional(time(Duration::ZERO..=DELAY_MAX, "a time from 0s to 60s such as \"17ms\"")),
        "The time that each operation of a testdev takes (default 17ms, as in the paper)";
    delay: optional(time(Duration::ZERO..=DELAY_MAX, "a time from 0s to 60s such as \"5ms\"")),
        "For tests: added to every operation of the medium";
    faults.read_permille: permille(), "For tests: failing reads of the medium, of 1000";
    faults.write_permille: permille(), "For tests: failing writes of the medium, of 1000";
    faults.flush_permille: permille(), "For tests: failing flushes of the medium, of 1000";
    faults.seed: Form { allowed: "a number".into(), ..unless_zero(number(0..=i64::MAX as u64)) },
        "For tests: the seed from which the failing operations are drawn";
};

impl Draft {
    /// Sets the keys of `entries`.
    pub fn take(&mut self, entries: &[Entry], problems: &mut Problems) {
        self.was_refused |= !apply_all(&EXPORT_KEYS, self, entries, Draft::key, problems);
        self.places.extend(entries.iter().map(|entry| (entry.key.clone(), entry.place.clone())));
    }
}

fn show_homes(homes: &Vec<String>) -> Option<String> {
    (list(text("")).show)(homes).filter(|_| !homes.is_empty())
}

fn fitting(text: Form<String>) -> Form<String> {
    text.unless(|text| match text.len() {
        bytes if bytes > TEXT_BYTES_MAX => Some(format!("is {bytes} bytes long, more than {TEXT_BYTES_MAX}")),
        _ => text.contains(char::is_control).then(|| "holds a control character".to_owned()),
    })
}

fn read_kind(given: &Given) -> Result<Kind, Refusal> {
    match given.text()? {
        "mechanical" => Err(Refusal::Because(MECHANICAL.to_owned())),
        _ => (named(KINDS).read)(given),
    }
}

fn read_block_size(given: &Given) -> Result<u32, Refusal> {
    let bytes = (bytes(0..=u64::MAX, "").read)(given)?;
    [1, 512, 4096].into_iter().find(|size| u64::from(*size) == bytes).ok_or(Refusal::NotAllowed)
}

/// To the host, user or group -1 means "do not change" (chown(2)).
pub fn id() -> Form<u32> {
    number(0..=u32::MAX - 1)
}

fn permille() -> Form<u16> {
    unless_zero(number(0..=1000))
}

pub fn network(text: &str) -> Result<IpNet, Refusal> {
    let one = || text.parse().map(|address: IpAddr| IpNet::from(address));
    text.parse().or_else(|_| one()).map_err(|_| Refusal::Because(format!("holds {text:?}, which is not a network")))
}
