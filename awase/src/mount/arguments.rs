//! The command lines of `mount` and `umount`.

use std::path::PathBuf;

use clap::Args;

pub const MOUNT_EXAMPLES: &str = "\
Options (-o, separated by commas; defaults in brackets):
  ro, rw                 read-only or not [rw]
  port=N, mountport=N    ports of NFS and MOUNT [as the URL or rpcbind says, or 2049]
  nconnect=N             connections, 1 to 16 [1]
  rsize=N, wsize=N       longest transfers in bytes [1048576, or less if the server says so]
  hard, soft             try again for ever, or fail with ETIMEDOUT after timeo and retrans [hard];
                         who waits can be killed, other signals do not end it (intr, nointr: as on Linux, ignored)
  timeo=N, retrans=N     tenths of a second until a call is repeated, and how often (soft) [600, 2]
  acregmin=N, acregmax=N, acdirmin=N, acdirmax=N, actimeo=N, noac
                         seconds for which attributes hold [3, 60, 30, 60]
  lookupcache=all|positive|none   names that are remembered while attributes hold [all]
  cto, nocto             ask for attributes at each open or not [cto]
  sync, async            every write durable before it returns, or with fsync [async]
  closecommit, noclosecommit
                         close returns when what was written is durable, or when the server has it: then it is durable
                         within a second, and close does not tell what the server could not store [closecommit]
  readahead=N|adaptive   blocks of 4 KiB read ahead of a reader, 0 for none, nor by the host [adaptive]
  cache=SIZE             memory for what is read ahead and not yet written [256MiB]
  direct_io              the host caches no content of its own
  resvport, noresvport   from a port below 1024, which only root may use, or not [noresvport]
  allow_other            other users may use it (user_allow_other in /etc/fuse.conf)
  nodev, nosuid, noexec, noatime, ...   as mount(8) has them

Semantics are those of NFS: who opens a file sees what others closed before. Data is durable at close and after fsync; a
server that restarts is waited for, and gets again what it may have lost. Locks (flock, fcntl) are local
to this host. The server must accept ports above 1023 (`insecure` in exports(5)), or root mounts with resvport.

In /etc/fstab, with packaging/mount.awase installed as /sbin/mount.awase:
  nfs://server/export  /mnt/data  awase  rw,_netdev,allow_other  0  0

Examples:
  awase mount nfs://server/srv/data ~/data
  awase mount server:/srv/data ~/data -o ro,nconnect=4
  awase mount nfs://127.0.0.1:2049/home /tmp/home --foreground
  awase umount ~/data

Signals: SIGTERM and SIGINT write everything to the server, unmount and end (a second one ends at once).
When the server is gone for good, `awase umount --force DIR` ends the mount and says what is lost.";

/// Arguments of `mount`.
#[derive(Args, Clone, Debug)]
pub struct MountArguments {
    /// The export: nfs://HOST[:PORT]/PATH[?nfsport=N&mountport=N] or HOST:/PATH.
    #[arg(value_name = "URL")]
    pub url: String,
    /// The directory to mount it on.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Options, separated by commas; see the list below (may be repeated).
    #[arg(short, long = "options", value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Stay in the foreground, and print messages about the server.
    #[arg(short, long)]
    pub foreground: bool,
    /// Append messages about the server to this file.
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
}

/// Arguments of `umount`.
#[derive(Args, Clone, Debug)]
pub struct UmountArguments {
    /// The directory.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Take it away now, and end the mount when nobody uses it any more.
    #[arg(short, long)]
    pub lazy: bool,
    /// Take it away now, end its process and give up what the server has not stored; says how much that was.
    #[arg(short, long, conflicts_with = "lazy")]
    pub force: bool,
}
