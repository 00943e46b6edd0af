//! Makes a ring: tries the best one first, and records what this kernel lacks.

use io_uring::{IoUring, Probe, opcode, squeue};

use super::super::credentials::{self, AsNobody};
use super::super::syscall;
use crate::Errno;

/// Entries of the submission queue. When it is full it is submitted: this bounds a batch, not the operations in flight.
const SUBMISSIONS: u32 = 256;
/// Entries of the completion queue. The kernel buffers further completions (`IORING_FEAT_NODROP`).
const COMPLETIONS: u32 = 4096;

/// Why there is no ring.
#[derive(Clone, Debug, thiserror::Error)]
pub(in super::super) enum SetupError {
    #[error("this kernel has none")]
    Missing,
    #[error("switched off by the sysctl kernel.io_uring_disabled")]
    Disabled,
    #[error("forbidden here, as in most containers: the seccomp profile does not allow it")]
    Forbidden,
    #[error("this kernel's is too old: it lacks {0}")]
    TooOld(&'static str),
    #[error("the limit of locked memory is too low for it; raise it (ulimit -l, LimitMEMLOCK=)")]
    LockedMemory,
    #[error("it can't be set up: {0}")]
    Failed(Errno),
}

/// A ring and its features.
pub(super) struct Setup {
    pub(super) ring: IoUring,
    /// Memory is registered (Linux 6.15). Older kernels have no vectored transfers in registered buffers, and before 6.4
    /// they unpin memory one second after its withdrawal, which is late for a host that needs it.
    pub(super) registers: bool,
    /// Waiting that is not accounted as iowait (Linux 6.15).
    pub(super) no_iowait: bool,
    /// The credentials with which content is written; `None` where they are the server's.
    pub(super) writer: Option<u16>,
    pub(super) missing: Vec<&'static str>,
}

/// Sets of flags, best first, with the features lacking in each.
const TIERS: [(Tier, &[&str]); 4] = [
    (Tier::DeferredTaskWork, &[]),
    (Tier::SingleIssuer, &["deferred task work"]),
    (Tier::CooperativeTaskWork, &["deferred task work", "single issuer"]),
    (Tier::Plain, &["deferred task work", "single issuer", "cooperative task work"]),
];

#[derive(Clone, Copy)]
enum Tier {
    /// Linux 6.1.
    DeferredTaskWork,
    /// Linux 6.0.
    SingleIssuer,
    /// Linux 5.19.
    CooperativeTaskWork,
    /// With the required features only.
    Plain,
}

/// Makes a ring for the calling thread, which is the only one that may use it.
pub(super) fn set_up() -> Result<Setup, SetupError> {
    let (ring, lost) = build()?;
    let params = ring.params();
    if !params.is_feature_nodrop() {
        return Err(SetupError::TooOld("completions that are never dropped"));
    }
    if !params.is_feature_ext_arg() {
        return Err(SetupError::TooOld("waiting with a time limit"));
    }
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|_| SetupError::TooOld("probing"))?;
    if let Some((_, name)) = NEEDED.iter().find(|(code, _)| !probe.is_supported(*code)) {
        return Err(SetupError::TooOld(name));
    }
    credentials::drop_resource_capability();
    // Registers the user for whom the thread acts now.
    let writer = AsNobody::begin().and_then(|_acting| ring.submitter().register_personality().ok());
    let registers = probe.is_supported(opcode::ReadvFixed::CODE) && probe.is_supported(opcode::WritevFixed::CODE);
    let mut missing = lost.to_vec();
    if !registers {
        missing.push("registered memory");
    }
    let no_iowait = params.is_feature_no_iowait();
    if !no_iowait {
        missing.push("idle time that is not shown as iowait");
    }
    Ok(Setup { ring, registers, no_iowait, writer, missing })
}

/// Whether io_uring works. Makes a ring perform an operation: a sandbox may allow the set-up alone.
pub(in super::super) fn try_out() -> Result<(), SetupError> {
    let mut ring = set_up()?.ring;
    let nop = opcode::Nop::new().build();
    // SAFETY: a no-op refers to no memory.
    let pushed = unsafe { ring.submission().push(&nop) };
    debug_assert!(pushed.is_ok(), "a new submission queue is empty");
    ring.submit_and_wait(1).map_err(|error| refusal(syscall::errno(&error)))?;
    match ring.completion().next() {
        Some(completion) if completion.result() >= 0 => Ok(()),
        Some(completion) => Err(refusal(Errno(-completion.result()))),
        None => Err(SetupError::Failed(Errno::IO)),
    }
}

const NEEDED: [(u8, &str); 12] = [
    (opcode::Read::CODE, "reads"),
    (opcode::Write::CODE, "writes"),
    (opcode::Readv::CODE, "vectored reads"),
    (opcode::Writev::CODE, "vectored writes"),
    (opcode::Fsync::CODE, "flushes"),
    (opcode::SyncFileRange::CODE, "write-back"),
    (opcode::Fallocate::CODE, "fallocate"),
    (opcode::PollAdd::CODE, "poll"),
    (opcode::Recv::CODE, "receive"),
    (opcode::RecvMsg::CODE, "vectored receive"),
    (opcode::SendMsg::CODE, "vectored send"),
    (opcode::AsyncCancel::CODE, "cancel"),
];

fn build() -> Result<(IoUring, &'static [&'static str]), SetupError> {
    for (tier, lost) in TIERS {
        match build_tier(tier) {
            Ok(ring) => return Ok((ring, lost)),
            // A flag that this kernel does not know.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(error) => return Err(refusal(syscall::errno(&error))),
        }
    }
    Err(SetupError::TooOld("queues of a chosen size"))
}

fn build_tier(tier: Tier) -> std::io::Result<IoUring> {
    let mut builder = IoUring::<squeue::Entry>::builder();
    builder.setup_cqsize(COMPLETIONS).setup_clamp();
    // With the task-run flag the kernel reports in shared memory that completions wait to be posted: without any,
    // `enter` needs no system call.
    match tier {
        Tier::DeferredTaskWork => {
            builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all()
        }
        Tier::SingleIssuer => {
            builder.setup_single_issuer().setup_coop_taskrun().setup_taskrun_flag().setup_submit_all()
        }
        Tier::CooperativeTaskWork => builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all(),
        Tier::Plain => &mut builder,
    };
    builder.build(SUBMISSIONS)
}

fn refusal(errno: Errno) -> SetupError {
    match errno.0 {
        libc::ENOSYS => SetupError::Missing,
        libc::EPERM | libc::EACCES if disabled_by_sysctl() => SetupError::Disabled,
        libc::EPERM | libc::EACCES => SetupError::Forbidden,
        libc::ENOMEM => SetupError::LockedMemory,
        _ => SetupError::Failed(errno),
    }
}

fn disabled_by_sysctl() -> bool {
    // 1: only with CAP_SYS_ADMIN or in kernel.io_uring_group; 2: never.
    std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").is_ok_and(|value| value.trim() != "0")
}
