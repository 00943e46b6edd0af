//! `awase iotest`: the test program of the papers (MP, figure 3). N processes, each of which reads 4096 bytes from the
//! raw device and then spins, again and again.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use kernel::Processor;
use kernel::device::{DeviceRef, Faults};
use kernel::request::{Action, Context, JobId, Request};
use machine::linux::file::{self, OpenError, OpenOptions};
use policy::unit::{BLOCK_BYTES, BlockNo, ProcessorId};
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::cli::{IotestArguments, IotestDevice};
use crate::config::{Behaviour, Config, Entry, Given, Overrides, Place, Problem, Problems};
use crate::processors::Processors;
use crate::stack::{Bottom, Layers, stack};
use crate::tell::print;

/// A process that spins lets others run so often, as the time slices of a Unix do.
const TIME_SLICE: Duration = Duration::from_millis(1);

/// Significant digits of the latencies.
const DIGITS: u8 = 3;

/// Runs the test and prints its results.
///
/// # Errors
/// When the device cannot be opened, a read fails or standard output cannot be written.
pub fn iotest(arguments: &IotestArguments) -> anyhow::Result<()> {
    let processors = Processors::start(&config(arguments)?)?;
    let device = device(&processors, arguments)?;
    let result = arguments.processes.iter().enumerate().try_for_each(|(index, &count)| {
        let run = run(&processors, &device, arguments, count)?;
        print(match index {
            _ if arguments.json => format!("{}\n", run.json(arguments)),
            0 => format!("{}\n{}\n{run}\n", title(&processors, arguments), Run::HEAD),
            _ => format!("{run}\n"),
        })
    });
    processors.stop();
    result
}

/// Through the same tables as a server's flags: the same messages for the same mistakes.
fn config(arguments: &IotestArguments) -> anyhow::Result<Config> {
    let entry = |flag: &str, key: &str, value: &str| Entry {
        key: key.to_owned(),
        given: Given::Text(value.to_owned()),
        place: Place::Flag(flag.to_owned()),
    };
    let entries = vec![
        entry("--processors", "processors", &arguments.processors),
        entry("--engine", "engine", &arguments.engine),
    ];
    Ok(Config::load(&Overrides { entries, ..Overrides::default() })?)
}

fn device(processors: &Processors, arguments: &IotestArguments) -> anyhow::Result<DeviceRef> {
    let (bottom, behaviour) = match &arguments.device {
        IotestDevice::Ramdisk => (Bottom::Ram { size: arguments.size }, Behaviour::Plain),
        IotestDevice::Testdev => (Bottom::Ram { size: arguments.size }, Behaviour::FixedLatency(arguments.latency)),
        IotestDevice::File(path) => (Bottom::File(open(path)?), Behaviour::Plain),
    };
    let layers = Layers { behaviour, access: None, delay: Duration::ZERO, faults: Faults::default() };
    let device = stack(processors.kernel(), bottom, &layers);
    anyhow::ensure!(device.facts().size >= BLOCK_BYTES, "the device is smaller than one read of {BLOCK_BYTES} bytes");
    Ok(device)
}

fn open(path: &Path) -> anyhow::Result<machine::OpenFile> {
    let place = Place::Flag("--device".to_owned());
    let refused = |error: OpenError| Problems::from(Problem::new(&place, "", error.to_string()));
    Ok(file::open(path, OpenOptions::default()).map_err(refused)?)
}

fn title(processors: &Processors, arguments: &IotestArguments) -> String {
    let order = if arguments.random { "random" } else { "sequential" };
    let device = match &arguments.device {
        IotestDevice::Ramdisk => "ramdisk".to_owned(),
        IotestDevice::Testdev => format!("testdev of {:?}", arguments.latency),
        IotestDevice::File(path) => path.display().to_string(),
    };
    format!(
        "{device}: {} {order} reads of {BLOCK_BYTES} bytes by each process, wait {} x {:?}; {}",
        arguments.count,
        arguments.wait,
        arguments.wait_unit,
        processors.description()
    )
}

/// What one run came to.
struct Run {
    processes: u32,
    reads: u64,
    elapsed: Duration,
    /// User and system time of the whole program.
    cpu: Duration,
    latency: Histogram<u64>,
}

fn run(
    processors: &Processors,
    device: &DeviceRef,
    arguments: &IotestArguments,
    processes: u32,
) -> anyhow::Result<Run> {
    let cpu_before = cpu_time();
    let start = Instant::now();
    let results: Vec<_> = (0..processes)
        .map(|number| {
            let processor = ProcessorId((number % u32::from(processors.kernel().processors())) as u16);
            let process = Process::new(device, arguments, number, processes);
            processors.start_task(processor, move |cpu| process.run(cpu))
        })
        .collect();
    let mut latency = Histogram::new(DIGITS)?;
    for result in results {
        let of_one = result.recv().context("a process disappeared")?;
        latency.add(of_one.context("a read failed")?)?;
    }
    let elapsed = start.elapsed();
    let cpu = cpu_time().saturating_sub(cpu_before);
    Ok(Run { processes, reads: latency.len(), elapsed, cpu, latency })
}

/// One process of the test.
struct Process {
    device: DeviceRef,
    count: u64,
    wait: Duration,
    random: bool,
    /// State of the generator, or the next block.
    next: u64,
    blocks: u64,
    job: JobId,
}

impl Process {
    fn new(device: &DeviceRef, arguments: &IotestArguments, number: u32, processes: u32) -> Self {
        let blocks = device.facts().size / BLOCK_BYTES;
        let part = u64::from(number) * (blocks / u64::from(processes)).max(1);
        Process {
            device: Arc::clone(device),
            count: arguments.count,
            wait: arguments.wait_unit.saturating_mul(arguments.wait),
            random: arguments.random,
            next: if arguments.random { arguments.seed.wrapping_add(u64::from(number) << 32) } else { part },
            blocks,
            job: JobId(number),
        }
    }

    async fn run(mut self, cpu: Processor) -> anyhow::Result<Histogram<u64>> {
        let mut latency = Histogram::new(DIGITS)?;
        for _ in 0..self.count {
            let range = self.next_block().run(1).bytes();
            let frames = cpu.kernel().allocate(&cpu, 1).await;
            let request = Request { action: Action::Read(range, frames), context: Context::synchronous(self.job) };
            let start = cpu.now();
            self.device.perform(&cpu, request).await?.required()?;
            latency.record(cpu.now().since(start).as_nanos() as u64)?;
            self.spin(&cpu).await;
        }
        Ok(latency)
    }

    fn next_block(&mut self) -> BlockNo {
        if !self.random {
            let block = self.next % self.blocks;
            self.next += 1;
            return BlockNo(block);
        }
        // splitmix64 (Steele, Lea, Flood 2014).
        self.next = self.next.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.next;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        BlockNo((z ^ (z >> 31)) % self.blocks)
    }

    /// Uses the processor for as long as the wait, a time slice at once.
    async fn spin(&self, cpu: &Processor) {
        let mut left = self.wait;
        while !left.is_zero() {
            let slice = left.min(TIME_SLICE);
            let end = cpu.now() + slice;
            while cpu.now() < end {
                std::hint::spin_loop();
            }
            left -= slice;
            cpu.yield_now().await;
        }
    }
}

/// User and system time of the whole program until now.
fn cpu_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(tv_sec as u64, tv_nsec as u32)
}

impl Run {
    const HEAD: &str =
        "processes    reads/s    p50 us    p90 us    p99 us  p99.9 us    max us  elapsed s    CPU s  CPU us/read";

    fn rate(&self) -> f64 {
        self.reads as f64 / self.elapsed.as_secs_f64()
    }

    fn cpu_us_a_read(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.reads as f64
    }

    fn quantile_us(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1e3
    }

    fn json(&self, arguments: &IotestArguments) -> String {
        let q = |quantile| self.quantile_us(quantile);
        format!(
            "{{\"processes\":{},\"wait\":{},\"reads\":{},\"reads_per_s\":{:.1},\"latency_us\":{{\"p50\":{:.1},\
             \"p90\":{:.1},\"p99\":{:.1},\"p99_9\":{:.1},\"max\":{:.1}}},\"elapsed_s\":{:.6},\"cpu_s\":{:.6}}}",
            self.processes,
            arguments.wait,
            self.reads,
            self.rate(),
            q(0.5),
            q(0.9),
            q(0.99),
            q(0.999),
            q(1.0),
            self.elapsed.as_secs_f64(),
            self.cpu.as_secs_f64()
        )
    }
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let q = |quantile| self.quantile_us(quantile);
        write!(f, "{:>9} {:>10.0}", self.processes, self.rate())?;
        write!(f, " {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1}", q(0.5), q(0.9), q(0.99), q(0.999), q(1.0))?;
        write!(f, " {:>10.3} {:>8.3}", self.elapsed.as_secs_f64(), self.cpu.as_secs_f64())?;
        write!(f, " {:>12.2}", self.cpu_us_a_read())
    }
}
