//! One module per subcommand.

pub(crate) mod doctor;
pub(crate) mod drift;
pub(crate) mod engines;
pub(crate) mod export;
pub(crate) mod follow;
pub(crate) mod harness;
mod harness_check;
mod harness_results;
pub(crate) mod logs;
pub(crate) mod quickstart;
pub(crate) mod regrade;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod simulate_engine;
pub(crate) mod status;
pub(crate) mod tasks;
pub(crate) mod trajectories;
pub(crate) mod verify;
pub(crate) mod weights;
