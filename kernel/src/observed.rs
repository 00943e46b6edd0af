//! Observation and control of a running kernel: counters, trace, jobs, switches.

use std::sync::Arc;

use crate::counters::Counters;
use crate::job::Jobs;
use crate::switches::LiveSwitches;
use crate::trace::Tracer;

pub struct Observed {
    pub(crate) tracer: Arc<Tracer>,
    pub(crate) switches: LiveSwitches,
    pub(crate) counters: Counters,
    pub(crate) jobs: Arc<Jobs>,
}

impl Observed {
    pub(crate) fn new(tracer: Arc<Tracer>, switches: LiveSwitches, processors: u16) -> Self {
        Observed { tracer, switches, counters: Counters::new(processors), jobs: Arc::default() }
    }
}
