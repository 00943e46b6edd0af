//! The command line. A flag for a key of the file becomes an entry of that key, so that both go through the same tables
//! and give the same messages.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::config::{Entry, Given, Overrides, Place, parse_bytes, parse_duration, switches_help};
use crate::control::arguments::{KEEP_HELP, KeepArguments, SET_EXAMPLES, ServerArguments, SetArguments, assignment};
use crate::mount::arguments::{MOUNT_EXAMPLES, MountArguments, UmountArguments};

/// Serves disks, directories and transactions over the network through its own I/O path in user space.
#[derive(Debug, Parser)]
#[command(name = "awase", version, max_term_width = 110, after_long_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  awase serve                                  a new disk, a directory and a database
  awase serve --export name=vm,kind=file,path=vm.img
  awase check --config /etc/awase/awase.toml   is the configuration right?
  awase mount nfs://server/home ~/home         a directory of any NFS server, without root
  awase iotest --device testdev --processes 4  the papers' device test
  awase lab run all                            what each technique is worth, on the papers' machines

Exit codes: 0 success, 1 failure while running, 2 the command line or configuration is wrong.";

const SERVE_EXAMPLES: &str = "\
Examples:
  awase serve
  awase serve --config /etc/awase/awase.toml
  awase serve --export name=vm,kind=file,path=vm.img,size=20GiB,create=true
  awase serve --export name=scratch,kind=ram,size=4GiB --nbd none --nbd-unix /run/scratch.sock
  awase serve --export name=home,kind=directory,path=/srv/home,clients=10.0.0.0/8 --nfs 0.0.0.0
  awase serve --engine threads --switch read_ahead=off --switch priority=off

Signals: SIGTERM and SIGINT finish the requests in flight, write everything to the disks and end (a second one ends at
once); SIGHUP reads the configuration again, adds, removes and changes exports, and sets the switches that changed.";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve disks over NBD, directories over NFS and databases over PostgreSQL's protocol.
    #[command(after_long_help = format!("{}\n{SERVE_EXAMPLES}", switches_help()))]
    Serve(ServeArguments),
    /// List the problems of a configuration, or what it would serve.
    Check(ServeArguments),
    /// Print the configuration in effect, as a file.
    Config(ConfigArguments),
    /// Read 4096 bytes at a time from raw devices with many processes, as the papers did (MP, figure 3).
    #[command(after_long_help = IOTEST_EXAMPLES)]
    Iotest(IotestArguments),
    /// Watch a running server and change its switches by keys.
    #[command(after_long_help = TOP_EXAMPLES)]
    Top(TopArguments),
    /// Change switches of a running server.
    #[command(after_long_help = format!("{}\n{SET_EXAMPLES}", switches_help()))]
    Set(SetArguments),
    /// Keep what was written beside a disk or database (overlay = true) of a running server: write it into its file.
    #[command(after_long_help = KEEP_HELP)]
    Keep(KeepArguments),
    /// Check, install and list the programs of a database: WebAssembly modules whose functions clients call.
    #[command(after_long_help = PROGRAM_EXAMPLES)]
    Program {
        /// What to do.
        #[command(subcommand)]
        command: ProgramCommand,
    },
    /// Show what a server did, while it runs or after its end: events, a file for Perfetto, or a breakdown of the time.
    #[command(after_long_help = TRACE_EXAMPLES)]
    Trace(TraceArguments),
    /// Mount a directory that a server exports over NFS, as an ordinary user.
    #[command(after_long_help = MOUNT_EXAMPLES)]
    Mount(MountArguments),
    /// Unmount what was mounted by awase mount.
    Umount(UmountArguments),
    /// Make a load of transactions on a database, and measure it.
    #[command(after_long_help = LOAD_EXAMPLES)]
    Load(LoadArguments),
    /// Run the papers' experiments and measure each technique (the program awase-lab, where it is installed).
    #[command(disable_help_flag = true)]
    Lab {
        /// Passed to awase-lab.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        arguments: Vec<OsString>,
    },
    /// What a server starts to guard memory that programs have mapped.
    #[command(hide = true)]
    Guard,
    /// Print shell completions.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write all of them into a directory.
    Man {
        /// Write one page for each command into this directory.
        #[arg(long, value_name = "DIR")]
        directory: Option<PathBuf>,
    },
}

/// Arguments of `serve` and `check`.
#[derive(Args, Clone, Debug, Default)]
pub struct ServeArguments {
    /// Configuration file (TOML); flags override it.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Processors that serve: a number, or auto for one for each core.
    #[arg(long, value_name = "N")]
    pub processors: Option<String>,
    /// The most memory for the cache: a size such as 512MiB, or auto.
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// How the host is asked for I/O: auto, io_uring or threads.
    #[arg(long, value_name = "ENGINE")]
    pub engine: Option<String>,
    /// Serve NBD at this address (may be repeated); none for no address.
    #[arg(long, value_name = "ADDR")]
    pub nbd: Vec<String>,
    /// Serve NBD at this Unix socket (may be repeated); none for no socket.
    #[arg(long, value_name = "PATH")]
    pub nbd_unix: Vec<String>,
    /// Serve NFS at this address (may be repeated); none for no address.
    #[arg(long, value_name = "ADDR")]
    pub nfs: Vec<String>,
    /// Serve NFS at this Unix socket (may be repeated); none for no socket.
    #[arg(long, value_name = "PATH")]
    pub nfs_unix: Vec<String>,
    /// Let clients reach databases at this address (may be repeated); none for no address.
    #[arg(long, value_name = "ADDR")]
    pub postgres: Vec<String>,
    /// Let clients reach databases at this Unix socket (may be repeated); none for no socket.
    #[arg(long, value_name = "PATH")]
    pub postgres_unix: Vec<String>,
    /// Serve metrics and live plots over HTTP at this address (may be repeated); none for no address.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Vec<String>,
    /// Register NFS with this host's rpcbind.
    #[arg(long)]
    pub rpcbind: bool,
    /// Add an export, or change one of the file: name=NAME,kind=KIND,path=PATH,size=SIZE,... (may be repeated).
    #[arg(long, value_name = "KEY=VALUE,...", value_parser = export_entries)]
    pub export: Vec<ExportFlag>,
    /// Refuse changes to all exports; then there are no databases.
    #[arg(long)]
    pub read_only: bool,
    /// Set a switch (may be repeated); awase set --help lists them.
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    pub switch: Vec<(String, String)>,
    /// The data directory: what the server creates by itself.
    #[arg(long, value_name = "DIR")]
    pub data: Option<String>,
}

const LOAD_EXAMPLES: &str = "\
A mix is a file of transactions with their weights and the arguments to draw; see packaging/mixes.

Examples:
  awase load bank.toml                              as the mix says, at 127.0.0.1:5433
  awase load bank.toml --terminals 1000 --rate 500  an open loop: 500 transactions a second, come what may
  awase load bank.toml --server /run/awase --json   through a Unix socket; for programs
  awase load bank.toml --plot load.svg              the course and the latencies as a picture

Exit codes: 0 success, 1 a check is wrong or the load failed, 2 the command line or the mix is wrong.";

/// Arguments of `load`.
#[derive(Args, Clone, Debug)]
pub struct LoadArguments {
    /// The mix (TOML).
    pub mix: PathBuf,
    /// The server: an address with or without a port, a Unix socket or its directory (default 127.0.0.1:5433).
    #[arg(long, value_name = "ADDR")]
    pub server: Option<String>,
    /// The database, if not that of the mix.
    #[arg(long, value_name = "NAME")]
    pub database: Option<String>,
    /// The user, if not that of the mix. A password is taken from PGPASSWORD or ~/.pgpass, as by psql.
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Terminals, each a connection, if not as many as the mix says.
    #[arg(long, value_name = "N")]
    pub terminals: Option<usize>,
    /// End after so many transactions.
    #[arg(long, value_name = "N")]
    pub transactions: Option<u64>,
    /// End after this time, such as 10s.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,
    /// Transactions that arrive each second, whether the server keeps up or not.
    #[arg(long, value_name = "N")]
    pub rate: Option<f64>,
    /// Draw other transactions and arguments.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
    /// Write a picture (SVG) of the course and the latencies.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Print no progress.
    #[arg(short, long)]
    pub quiet: bool,
}

const TOP_EXAMPLES: &str = "\
Keys: up and down choose a switch; left, right and space change it; e types a value; q ends.

Examples:
  awase top                                    the server whose data directory is awase-data
  awase top --data /var/lib/awase
  awase top --once                             one frame, as text";

/// Arguments of `top`.
#[derive(Args, Clone, Debug)]
pub struct TopArguments {
    #[command(flatten)]
    pub server: ServerArguments,
    /// Print one frame as text and end.
    #[arg(long)]
    pub once: bool,
}

const PROGRAM_EXAMPLES: &str = "\
Examples:
  awase program check bank.wasm                  is it right, and which functions has it?
  awase program install bank.wasm                into the database bank; a running server takes it at once
  awase program install --database shop orders.wasm
  awase program list --data /var/lib/awase";

#[derive(Debug, Subcommand)]
pub enum ProgramCommand {
    /// Check programs, and show their functions.
    Check {
        /// The modules (WebAssembly, *.wasm).
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
    /// Check programs and copy them to those of a database, in place of former versions; a running server takes them at once.
    Install(InstallArguments),
    /// List the functions of a database's programs.
    List(ProgramArguments),
}

/// Arguments of `program list`, and some of `program install`.
#[derive(Args, Clone, Debug)]
pub struct ProgramArguments {
    #[command(flatten)]
    pub server: ServerArguments,
    /// The database; its programs are in the directory of its name in `programs` of the data directory.
    #[arg(long, value_name = "NAME", default_value = "bank")]
    pub database: String,
    /// The directory of its programs, if it is another.
    #[arg(long, value_name = "DIR")]
    pub programs: Option<PathBuf>,
}

/// Arguments of `program install`.
#[derive(Args, Clone, Debug)]
pub struct InstallArguments {
    #[command(flatten)]
    pub program: ProgramArguments,
    /// The modules (WebAssembly, *.wasm); a file's name is the program's.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

const TRACE_EXAMPLES: &str = "\
Examples:
  awase trace --last 10ms                      what happened in the last ten milliseconds
  awase trace --event nbd. --slower 5ms        requests over NBD that took longer
  awase trace --export vm1 --event device.     the requests to vm1's disk
  awase trace --client 10.0.0.7 --breakdown    where the time of that client's requests went
  awase trace --breakdown --slower 5ms         where the time of the slow requests went
  awase trace --perfetto trace.json            for https://ui.perfetto.dev

The trace is in memory (/dev/shm); `trace` in the server's data directory is a link to it. It survives the server's
death by any signal; when the next server starts with this data directory, `trace.previous` becomes the link to it,
until a third one starts. Filters may be combined: events that pass all are shown. Names and contents of files are not
recorded.";

/// Arguments of `trace`.
#[derive(Args, Debug)]
pub struct TraceArguments {
    /// The trace of a running server, or of one that was killed.
    #[arg(default_value = "awase-data/trace", value_name = "FILE")]
    pub file: PathBuf,
    /// Only events whose name contains this, such as nbd. or device.read.
    #[arg(long, value_name = "TEXT")]
    pub event: Option<String>,
    /// Only events for this client: its number as events show it (c17), or its address.
    #[arg(long, value_name = "CLIENT")]
    pub client: Option<String>,
    /// Only events of this export: the name of a disk, or the path by which a directory is mounted.
    #[arg(long, value_name = "NAME")]
    pub export: Option<String>,
    /// Only events of at least this duration, such as 1ms.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub slower: Option<Duration>,
    /// Only events of this last period, such as 100ms.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub last: Option<Duration>,
    /// Write a file that Perfetto opens (Trace Event Format).
    #[arg(long, value_name = "FILE", conflicts_with = "breakdown")]
    pub perfetto: Option<PathBuf>,
    /// Show where the time of requests went, by stage.
    #[arg(long)]
    pub breakdown: bool,
}

/// Arguments of `config`.
#[derive(Args, Debug)]
pub struct ConfigArguments {
    #[command(flatten)]
    pub serve: ServeArguments,
    /// Print the reference of all keys (Markdown) instead.
    #[arg(long)]
    pub reference: bool,
}

#[derive(Clone, Debug)]
pub struct ExportFlag(Vec<Entry>);

impl ServeArguments {
    pub fn overrides(&self) -> Overrides {
        let mut entries = Vec::new();
        let single = [
            ("--processors", "processors", &self.processors),
            ("--memory", "memory", &self.memory),
            ("--engine", "engine", &self.engine),
            ("--data", "data", &self.data),
        ];
        for (flag, key, value) in single {
            entries.extend(value.as_ref().map(|value| entry(flag, key, Given::Text(value.clone()))));
        }
        let lists = [
            ("--nbd", "listen.nbd", &self.nbd),
            ("--nbd-unix", "listen.nbd_unix", &self.nbd_unix),
            ("--nfs", "listen.nfs", &self.nfs),
            ("--nfs-unix", "listen.nfs_unix", &self.nfs_unix),
            ("--postgres", "listen.postgres", &self.postgres),
            ("--postgres-unix", "listen.postgres_unix", &self.postgres_unix),
            ("--metrics", "listen.metrics", &self.metrics),
        ];
        for (flag, key, values) in lists {
            if !values.is_empty() {
                let values = values.iter().filter(|value| *value != "none").cloned().map(Given::Text);
                entries.push(entry(flag, key, Given::List(values.collect())));
            }
        }
        if self.rpcbind {
            entries.push(entry("--rpcbind", "listen.rpcbind", Given::Boolean(true)));
        }
        for (name, value) in &self.switch {
            entries.push(entry("--switch", &format!("switches.{name}"), Given::Text(value.clone())));
        }
        Overrides {
            file: self.config.clone(),
            entries,
            exports: self.export.iter().map(|export| export.0.clone()).collect(),
            read_only: self.read_only,
        }
    }
}

fn entry(flag: &str, key: &str, given: Given) -> Entry {
    Entry { key: key.to_owned(), given, place: Place::Flag(flag.to_owned()) }
}

fn export_entries(text: &str) -> Result<ExportFlag, String> {
    let mut entries: Vec<Entry> = Vec::new();
    for part in text.split(',') {
        let (name, value) = assignment(part)?;
        if entries.iter().any(|entry| entry.key == name) {
            return Err(format!("{name} is given twice"));
        }
        entries.push(entry("--export", &name, Given::Text(value)));
    }
    Ok(ExportFlag(entries))
}

const IOTEST_EXAMPLES: &str = "\
Examples:
  awase iotest --device ramdisk --processes 8 --count 100000
  awase iotest --device testdev --processes 1,2,4,9 --wait 100
  awase iotest --device /dev/nvme0n1 --processes 32 --random --json";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IotestDevice {
    Ramdisk,
    /// Fixed latency over memory.
    Testdev,
    /// A file or block device.
    File(PathBuf),
}

/// Arguments of `iotest`.
#[derive(Args, Clone, Debug)]
pub struct IotestArguments {
    /// ramdisk, testdev, or the path of a file or block device.
    #[arg(long, value_name = "DEVICE", default_value = "ramdisk", value_parser = device)]
    pub device: IotestDevice,
    /// Processes (tasks) that read at the same time; several numbers make several runs.
    #[arg(short = 'n', long, value_name = "N,...", default_value = "1", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub processes: Vec<u32>,
    /// Number of reads of each process.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: u64,
    /// Units of time that a process spins after each read; 10 were about 20 ms on the papers' machine.
    #[arg(short, long, value_name = "UNITS", default_value_t = 0)]
    pub wait: u32,
    /// Length of one unit of --wait.
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = duration)]
    pub wait_unit: Duration,
    /// Read in random order rather than sequentially.
    #[arg(long)]
    pub random: bool,
    /// Seed of the random order.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Latency of the testdev.
    #[arg(long, value_name = "TIME", default_value = "17ms", value_parser = duration)]
    pub latency: Duration,
    /// Size of devices in memory.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size)]
    pub size: u64,
    /// Processors that run the processes: a number, or auto for one for each core.
    #[arg(long, value_name = "N", default_value = "auto")]
    pub processors: String,
    /// How the host is asked for I/O: auto, io_uring or threads.
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    pub engine: String,
    /// Print JSON, one object for each run.
    #[arg(long)]
    pub json: bool,
}

fn device(text: &str) -> Result<IotestDevice, String> {
    Ok(match text {
        "ramdisk" | "ram" => IotestDevice::Ramdisk,
        "testdev" => IotestDevice::Testdev,
        "mechanical" => return Err(crate::config::MECHANICAL.to_owned()),
        path => IotestDevice::File(path.into()),
    })
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "a time such as 17ms, 500us or 2s is needed".to_owned())
}

fn size(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text).ok_or_else(|| "a size such as 64MiB is needed".to_owned())?;
    if bytes == 0 || !bytes.is_multiple_of(policy::unit::BLOCK_BYTES) {
        return Err("a multiple of 4KiB is needed".to_owned());
    }
    Ok(bytes)
}

/// The whole command line, for completions and manual pages.
pub fn command() -> clap::Command {
    Cli::command()
}
