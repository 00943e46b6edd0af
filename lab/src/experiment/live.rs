//! All switches on this machine, each with one value and with another. Nothing is simulated.

use super::{Experiment, Run};
use crate::parameter::Parameters;
use crate::result::Results;

pub struct Live;

impl Experiment for Live {
    fn name(&self) -> &'static str {
        "live"
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
