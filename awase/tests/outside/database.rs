//! Databases: what a terminal was told of survives `kill -9` and a full disk, and no money is made or lost.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use awase::control::client::Client;
use testkit::failing_disk::Faults;
use testkit::progress::Progress;
use testkit::random::Random;
use testkit::rounds::Rounds;
use testkit::server::{Sandbox, Server, await_that};
use testkit::skip;

use transactions::program::BANK;

use crate::failing_disk::{MOUNTED, NO_ERRORS, cut, mount};
use crate::full_disk::Small;
use crate::kill::{ARGUMENTS, CLIENTS, End, end};
use crate::terminal::Terminal;

/// Accounts of the bank, and what is in each at first.
pub const ACCOUNTS: i64 = 1000;
pub const BALANCE: i64 = 1000;
/// Bounds the wait for acknowledgements where a disk fails.
const LOAD_MAX: Duration = Duration::from_secs(5);
/// Free at the begin of a round of the full disk: less than two checkpoints take. The log has its place already.
const LEFT: u64 = 16 << 10;
const FAILURES: u64 = 20;
/// After a failure.
const PAUSE: Duration = Duration::from_millis(1);
/// SQLSTATEs: nothing was changed, because the disk is full or has failed; and it failed when the change was written.
const FULL: &str = "53100";
pub const FAILED: &str = "58030";
const UNKNOWN: &str = "08007";
const SIZE: &str = "16MiB";
/// Of the database whose checkpoints meet faults, and the log at which they begin: one is made at 512 KiB.
pub const SMALL: &str = "8MiB";
const LOG_BYTES: u64 = 448 << 10;
const RECOVERY_TIME: Duration = Duration::from_secs(60);

/// What one client knows of its account, to which it alone adds.
#[derive(Clone, Copy, Debug)]
struct Account {
    number: i64,
    /// Deposits of 1 that were acknowledged.
    told: i64,
    /// Those of which it was not told how they ended.
    doubtful: i64,
    /// Those of which it was told that they changed nothing.
    refused: u64,
}

pub struct Load {
    accounts: Vec<Account>,
    pub progress: Progress,
    socket: PathBuf,
    /// With which deposits are refused where they may fail.
    refusal: &'static str,
}

/// Ends a load, also when the test fails.
struct Stop<'a>(&'a Progress);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Load {
    pub fn new(sandbox: &Sandbox, refusal: &'static str) -> Load {
        let new = |client| Account { number: client as i64 + 1, told: 0, doubtful: 0, refused: 0 };
        let accounts = (0..CLIENTS).map(new).collect();
        let socket = sandbox.file("awase-data/.s.PGSQL.5433");
        Load { accounts, progress: Progress::default(), socket, refusal }
    }

    fn refused(&self) -> u64 {
        self.accounts.iter().map(|account| account.refused).sum()
    }

    fn open(&self) -> Terminal {
        Terminal::open(&self.socket, "bank").expect("a server")
    }

    /// All clients deposit during `task`, or until their connections end.
    pub fn during<T>(&mut self, task: impl FnOnce(&Progress) -> T) -> T {
        let Load { accounts, progress, socket, refusal } = self;
        let (progress, refusal) = (&*progress, *refusal);
        progress.resume();
        thread::scope(|scope| {
            let _stop = Stop(progress);
            for account in accounts {
                let mut terminal = Terminal::open(socket, "bank").expect("a server");
                scope.spawn(move || {
                    while !progress.is_stopped() && account.deposit(&mut terminal, progress, refusal).is_ok() {}
                });
            }
            task(progress)
        })
    }

    /// What was told is there, what was not may be, and there is nothing else.
    pub fn verify(&mut self) -> Result<(), String> {
        let mut terminal = self.open();
        let mut ask = |sql: &str| {
            let answer = terminal.ask(sql).map_err(|error| format!("{sql}: {error}"))?;
            answer.value.and_then(|value| value.parse::<i64>().ok()).ok_or(format!("{sql}: {:?}", answer.error))
        };
        let mut sum = ACCOUNTS * BALANCE;
        for account in &mut self.accounts {
            let found = ask(&format!("SELECT balance({})", account.number))? - BALANCE;
            if !(account.told..=account.told + account.doubtful).contains(&found) {
                return Err(format!("{account:?} has {found}"));
            }
            (account.told, account.doubtful) = (found, 0);
            sum += found;
        }
        match ask("SELECT total()")? {
            total if total == sum => Ok(()),
            total => Err(format!("the sum is {total} in place of {sum}")),
        }
    }
}

impl Account {
    fn deposit(&mut self, terminal: &mut Terminal, progress: &Progress, refusal: &str) -> io::Result<()> {
        self.doubtful += 1;
        let answer = terminal.ask(&format!("SELECT deposit({}, 1)", self.number))?;
        match answer.error.as_deref() {
            None => {
                self.doubtful -= 1;
                self.told += 1;
                progress.note(true);
            }
            Some(code) => {
                assert!(code == refusal || code == UNKNOWN, "a deposit fails with {code}");
                if code == refusal {
                    self.doubtful -= 1;
                    self.refused += 1;
                }
                progress.note_failure();
                thread::sleep(PAUSE);
            }
        }
        Ok(())
    }
}

/// A database with the bank that is shipped, in `file`.
pub fn configure(sandbox: &Sandbox, file: &str, size: &str) -> String {
    configure_on(sandbox, &format!("path = \"{file}\"\nsize = \"{size}\""))
}

/// The same on the medium that these keys describe.
pub fn configure_on(sandbox: &Sandbox, medium: &str) -> String {
    fs::create_dir_all(sandbox.file("programs")).expect("a directory");
    fs::write(sandbox.file("programs/bank.wasm"), BANK).expect("written");
    let text = format!("[[database]]\nname = \"bank\"\n{medium}\nprograms = \"programs\"\n");
    sandbox.write("awase.toml", &text).display().to_string()
}

/// pgbench moves money between accounts of its own, in blocks and in single calls, until the server is gone.
fn pgbench(sandbox: &Sandbox) -> io::Result<Child> {
    let draw = "\\set a random(501, 520)\n\\set b random(501, 520)\n";
    let block = "BEGIN;\nSELECT transfer(:a, :b, 1);\nSELECT transfer(:b, :a, 1);\nEND;\n";
    let scripts = [
        sandbox.write("transfer.sql", &format!("{draw}SELECT transfer(:a, :b, 1);\n")),
        sandbox.write("block.sql", &format!("{draw}{block}")),
    ];
    let mut command = Command::new("pgbench");
    command.args(["-n", "-p", "5433", "-c", "8", "-T", "600", "-M", "prepared", "--max-tries=1000", "-h"]);
    command.arg(sandbox.file("awase-data"));
    for script in &scripts {
        command.arg("-f").arg(script);
    }
    command.arg("bank").stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

#[test]
fn what_terminals_were_told_survives_kill_under_pgbench() {
    let sandbox = Sandbox::new();
    let config = configure(&sandbox, "bank.db", SIZE);
    let mut load = Load::new(&sandbox, FAILED);
    for seed in Rounds::new("what_terminals_were_told_survives_kill_under_pgbench", 3) {
        let random = &mut Random(seed);
        let chosen = ARGUMENTS[seed as usize % ARGUMENTS.len()];
        let arguments = [chosen, &["--memory", "32MiB", "--config", &config]].concat();
        let how = End::drawn(random);
        let server = sandbox.serve(&arguments);
        let mut bench = match pgbench(&sandbox) {
            Ok(bench) => bench,
            Err(error) => skip!("pgbench cannot be run: {error}"),
        };
        load.during(|progress| {
            progress.await_durable(10 + random.below(1000), LOAD_MAX);
            end(server, how);
        });
        let _ = bench.kill();
        bench.wait().expect("it was started");
        let server = sandbox.serve(&arguments);
        load.verify().unwrap_or_else(|what| panic!("{arguments:?} seed {seed} {how:?}: {what}"));
        assert_eq!(load.progress.failed(), 0, "calls failed on a sound disk");
        server.crash();
    }
}

#[test]
fn a_database_survives_a_full_disk_which_recovers() {
    let sandbox = Sandbox::new();
    let small = match Small::new(&sandbox) {
        Ok(small) => small,
        Err(reason) => skip!("no file system can be mounted: {reason}"),
    };
    let config = configure(&sandbox, "small/bank.db", SMALL);
    let arguments = ["--memory", "64MiB", "--config", &config];
    for seed in Rounds::new("a_database_survives_a_full_disk_which_recovers", 2) {
        let random = &mut Random(seed);
        let _ = fs::remove_file(sandbox.file("small/bank.db"));
        let mut load = Load::new(&sandbox, FULL);
        let mut server = sandbox.serve(&arguments);
        load.during(|_| small.fill(LEFT));
        load.during(|progress| assert!(progress.await_failures(FAILURES), "seed {seed}: nothing fails"));
        assert!(load.refused() > 0, "seed {seed}: nothing fails with {FULL}");
        if random.chance(500) {
            server.crash();
            server = sandbox.serve(&arguments);
            load.verify().unwrap_or_else(|what| panic!("seed {seed}, full: {what}"));
        }
        small.make_space();
        await_deposit(&mut load);
        let failed = load.progress.failed();
        load.during(|progress| progress.await_durable(100, LOAD_MAX));
        assert_eq!(load.progress.failed(), failed, "seed {seed}: calls fail although there is space");
        end(server, End::drawn(random));
        let server: Server = sandbox.serve(&arguments);
        load.verify().unwrap_or_else(|what| panic!("seed {seed}, recovered: {what}"));
        server.crash();
    }
}

/// Writes and flushes of the log and of a checkpoint may fail; what was told is there after the power was cut.
#[test]
fn a_database_survives_a_disk_whose_writes_and_flushes_fail() {
    let name = "a_database_survives_a_disk_whose_writes_and_flushes_fail";
    let sandbox = Sandbox::new();
    let mut failing = match mount(&sandbox, 1) {
        Ok(disk) => disk,
        Err(reason) => skip!("{reason}"),
    };
    let config = configure(&sandbox, &format!("{MOUNTED}/bank.db"), SMALL);
    let arguments = ["--memory", "32MiB", "--config", &config];
    let mut load = Load::new(&sandbox, FAILED);
    for seed in Rounds::new(name, 3) {
        let random = &mut Random(seed);
        let server = sandbox.serve(&arguments);
        let mut control = Client::connect(&sandbox.file("awase-data/control")).expect("a server");
        let mut reading = |key: &str| {
            let status = control.status().expect("a status");
            status["databases"][0][key].as_u64().unwrap_or_else(|| panic!("no {key} in {status}"))
        };
        load.during(|_| await_that("the log is long", || reading("log_bytes") >= LOG_BYTES));
        let before = reading("checkpoints");
        let (fsync_permille, write_permille) = *random.pick(&[(100, 0), (0, 100), (50, 50)]);
        failing.set_faults(Faults { fsync_permille, write_permille, ..NO_ERRORS });
        load.during(|progress| {
            assert!(progress.await_failures(FAILURES), "seed {seed}: nothing fails");
            await_that("there is a checkpoint", || reading("checkpoints") > before);
        });
        failing.set_faults(NO_ERRORS);
        await_deposit(&mut load);
        load.during(|progress| progress.await_durable(50, LOAD_MAX));
        end(server, End::drawn(random));
        cut(&mut failing, random);
        let server = sandbox.serve(&arguments);
        load.verify().unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        server.crash();
        cut(&mut failing, random);
    }
    assert!(load.refused() > 0, "nothing fails with {FAILED}");
    println!("{name}: {} acknowledged, {} failed", load.progress.durable(), load.progress.failed());
}

/// Deposits until one succeeds.
fn await_deposit(load: &mut Load) {
    let start = Instant::now();
    let mut terminal = load.open();
    let told = load.accounts[0].told;
    while load.accounts[0].told == told {
        assert!(start.elapsed() < RECOVERY_TIME, "the disk takes everything again, and calls fail");
        load.accounts[0].deposit(&mut terminal, &load.progress, load.refusal).expect("a server that lives");
    }
}
