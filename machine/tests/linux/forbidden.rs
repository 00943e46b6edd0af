//! Where io_uring is forbidden, as in default containers.

use std::thread;

use machine::linux::{Config, Engine, Error, Processors, machines};

/// Makes the kernel refuse `io_uring_setup` to the calling thread from now on, as container runtimes do.
fn forbid_io_uring() {
    let instruction = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut filter = [
        // The number of the system call is the first word.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, refuse),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its instructions outlive the calls, which copy them.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
    }
}

#[test]
fn the_thread_pool_is_the_fallback_and_names_the_reason() {
    let forbidden = thread::spawn(|| {
        forbid_io_uring();
        let mut config =
            Config { processors: Processors::Count(1), engine: Engine::Auto, pin: false, ..Config::default() };
        let (mut builders, chosen) = machines(&config).expect("threads always work");
        assert_eq!(chosen.engine, Engine::Threads);
        let reason = chosen.reason.expect("a reason");
        let machine = builders.remove(0)().expect("a machine");
        assert!(machine.describe().contains(&reason), "{}", machine.describe());
        config.engine = Engine::IoUring;
        let error = machines(&config).map(drop).expect_err("forbidden");
        assert_eq!(error, Error::NoIoUring(reason));
    });
    forbidden.join().expect("as promised");
}

#[test]
fn a_processor_whose_ring_is_refused_later_uses_threads() {
    let config = Config { processors: Processors::Count(1), engine: Engine::Auto, pin: false, ..Config::default() };
    let (mut builders, chosen) = machines(&config).expect("a machine");
    let builder = builders.remove(0);
    let described = thread::spawn(move || {
        forbid_io_uring();
        builder().expect("a machine").describe()
    });
    let described = described.join().expect("built");
    assert!(described.starts_with("thread pool"), "{described} after {chosen}");
}
