//! Costs on the mainframe, from the experiment's parameters.

use super::super::Run;
use super::account::{PATHS, Path};
use super::devices::{DeviceTimes, Kind};
use super::modules;
use super::trace::RecordCost;
use super::workload::Mix;

/// All costs, in nanoseconds; times of paths without their trace records.
#[derive(Clone, Debug)]
pub struct Costs {
    /// Of each path. I/O requests: without the pass over the channels. I/O completions: see [`Costs::completion_ns`].
    pub own_ns: [u64; PATHS],
    /// Trace records that each path leaves, in thousandths.
    pub records: [u64; PATHS],
    pub record: RecordCost,
    /// One pass over the channels, to issue waiting requests.
    pub pass_ns: u64,
    /// Trace records of such a pass, in thousandths.
    pub pass_records: u64,
    /// The call for supervisor mode, if it is tested for first.
    pub mode_first_ns: u64,
    /// To test whether the next instruction is a call.
    pub look_ns: u64,
    /// To compare a terminal's name with one of the table.
    pub compare_ns: u64,
    pub terminals: u64,
    /// Table searches for an incoming message.
    pub searches_in: u64,
    /// Table searches for an outgoing answer.
    pub searches_out: u64,
    /// Rare supervisor calls of a transaction.
    pub other_calls: u64,
    /// Applications that can run concurrently.
    pub regions: usize,
    pub disks: usize,
    pub devices: DeviceTimes,
    pub modules: modules::Config,
    completion_min_ns: u64,
    completion_max_ns: u64,
}

impl Costs {
    pub fn of(run: &Run<'_>) -> Self {
        let us = |name: &str| (run.get(name) * 1000.0) as u64;
        let steps_us = run.get("cpu.speed");
        let step_ns = |steps: f64| (steps * 1000.0 / steps_us) as u64;
        let record =
            RecordCost { central_ns: step_ns(run.get("trace.central")), direct_ns: step_ns(run.get("trace.direct")) };
        // A record at regular distances: subtracting the records' time from a path's published time leaves its own.
        let spacing_ns = step_ns(run.get("trace.spacing")) + record.central_ns;
        let split = |total_ns: u64| {
            let records = total_ns * 1000 / spacing_ns.max(1);
            (total_ns.saturating_sub(records * record.central_ns / 1000), records)
        };
        let (mut own_ns, mut records) = ([0; PATHS], [0; PATHS]);
        let mut set = |path: Path, of: (u64, u64)| (own_ns[path as usize], records[path as usize]) = of;
        let save_ns = us("io.save");
        let (request, pass) = (us("io.request"), us("io.pass").min(us("io.request")));
        let completion = |name: &str| us(name).saturating_sub(save_ns);
        let (completion_min, completion_max) = (completion("io.completion.min"), completion("io.completion.max"));
        let completion_records = split((completion_min + completion_max) / 2).1;
        set(Path::Edit, (us("oltp.edit"), 0));
        set(Path::Ask, split(us("call.ask")));
        set(Path::SubDispatch, split(us("call.subdispatch")));
        set(Path::ModeSwitch, split(us("call.mode")));
        set(Path::OtherCalls, split(us("call.other")));
        set(Path::IoRequest, split(request - pass));
        set(Path::IoCompletion, (0, completion_records));
        set(Path::StateSave, (save_ns, 0));
        set(Path::Dispatch, split(us("dispatch")));
        set(Path::ExitRoutine, split(us("exit")));
        let (pass_ns, pass_records) = split(pass);
        let without_records = |ns: u64| ns.saturating_sub(completion_records * record.central_ns / 1000);
        Costs {
            own_ns,
            records,
            record,
            pass_ns,
            pass_records,
            mode_first_ns: step_ns(run.get("call.mode.first")),
            look_ns: step_ns(run.get("look.ahead")),
            compare_ns: step_ns(run.get("names.compare")),
            terminals: run.get("names.terminals") as u64,
            searches_in: 2,
            searches_out: 3,
            other_calls: run.get("tx.others") as u64,
            regions: run.get("regions") as usize,
            disks: run.get("disks") as usize,
            devices: DeviceTimes {
                seek_ns: us("disk.seek"),
                rotation_ns: us("disk.rotation"),
                transfer_ns: us("disk.transfer"),
                front_end_ns: us("frontend.message"),
                tape_ns: us("tape.record"),
            },
            modules: modules::Config {
                count: run.get("modules.count") as u64,
                // Where the paper has its rates, loads count as I/O of the transactions.
                resident: u64::MAX,
                area: run.get("modules.area") as usize,
            },
            completion_min_ns: without_records(completion_min),
            completion_max_ns: without_records(completion_max),
        }
    }

    /// The completion of an I/O, without saved state and records: it depends on the device.
    pub fn completion_ns(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Tape => self.completion_min_ns,
            Kind::Disk => (self.completion_min_ns + self.completion_max_ns) / 2,
            Kind::FrontEnd => self.completion_max_ns,
        }
    }
}

pub fn mix(run: &Run<'_>, name: &str) -> Mix {
    let get = |what| run.get(&format!("tx.{name}.{what}"));
    let user_ns = get("user") * 1000.0;
    Mix {
        calls: get("calls"),
        ios: get("ios"),
        consecutive: run.get("tx.consecutive"),
        application_ns: (user_ns - 2000.0 * run.get("oltp.edit")).max(0.0),
    }
}
