//! The papers' experiments on the papers' machines, simulated: what each technique is worth, there and beyond.
//!
//! An [`Experiment`] is one published table or figure: one file in `experiment/`. It builds its machine from the models
//! of `crate::model` and from [`Parameters`], each with its source; the policies of crate `policy` make the decisions
//! that the table is about; and it returns [`Results`]: tables with the published next to the simulated number, plots,
//! and findings that hold or do not. The same parameters and seed give the same results, to the last bit.

pub mod agreement;
pub mod drive;
pub mod experiment;
pub mod model;
pub mod order;
pub mod parameter;
pub mod recorded;
pub mod report;
pub mod result;
pub mod sensitivity;
pub mod speed;

pub use experiment::{Experiment, Run, experiments, named, simulated};
pub use order::{DEFAULT_SEED, Failed, Order, Outcome, Progress, Setting};
pub use parameter::{Origin, Parameter, ParameterError, Parameters};
pub use result::{Axis, Cell, Drawing, Finding, Plot, Results, Series, Source, Table};
