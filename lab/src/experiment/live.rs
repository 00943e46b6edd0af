//! The table of the papers on this machine: every switch with one value and with another. Nothing of it is simulated.

use super::{Experiment, Run};
use crate::parameter::{Origin, Parameter, Parameters};
use crate::result::Results;

pub struct Live;

impl Experiment for Live {
    fn name(&self) -> &'static str {
        "live"
    }

    fn title(&self) -> &'static str {
        "Every switch of Awase on this machine, with its default and without"
    }

    fn about(&self) -> &'static str {
        "Each technique of the papers is a switch of Awase. Here a whole server is started on this machine, as people use it, \
         and clients over a Unix socket and loopback ask it for what shows what a switch is for; the values of a switch take \
         turns on the same server. For each there are requests a second, how long requests take, the processor time and the \
         entries into the host's kernel of a request, and what the paper says where it says it.\n\n\
         Look at how many times better the default is than the other value; a difference that is less than what repetitions \
         of the same thing differ by is marked with ~. It takes some minutes, and the machine should have nothing \
         else to do. Ctrl-C ends it and leaves nothing behind."
    }

    fn paper(&self) -> &'static str {
        "All papers: each ratio's place is told with the results"
    }

    fn parameters(&self) -> Parameters {
        let parameter = |name, about, unit, default, range, why| Parameter {
            name,
            about,
            unit,
            default,
            range,
            origin: Origin::Chosen(why),
        };
        Parameters::new(
            self.name(),
            vec![
                parameter(
                    "run.seconds",
                    "time that a cell is measured, after a third of it to get warm",
                    "s",
                    0.5,
                    0.01..=60.0,
                    "long beside the requests; what is slower has longer of its own",
                ),
                parameter(
                    "run.repetitions",
                    "repetitions in turn; three of what takes seconds, more and shorter ones where a small difference matters",
                    "",
                    5.0,
                    1.0..=100.0,
                    "five that do not overlap with five others are chance once in 126 times",
                ),
                parameter(
                    "load.depth",
                    "requests of a client that are many in flight",
                    "",
                    32.0,
                    1.0..=128.0,
                    "as block devices and their benchmarks have",
                ),
                parameter(
                    "load.clients",
                    "clients where there are several",
                    "",
                    4.0,
                    1.0..=64.0,
                    "with 4 requests each, as many as the paper's server had processes, about",
                ),
                parameter(
                    "server.processors",
                    "processors of the server",
                    "",
                    1.0,
                    1.0..=64.0,
                    "one can be kept busy by clients on the other cores; access and delivery take two",
                ),
            ],
        )
    }

    fn modern(&self) -> &'static [(&'static str, f64)] {
        &[]
    }

    fn steps(&self, _parameters: &Parameters) -> u64 {
        1
    }

    fn is_simulated(&self) -> bool {
        false
    }

    fn simulate(&self, _run: &Run<'_>) -> Results {
        Results::default()
    }
}
