//! Sessions: an agent program in a sandbox, run, graded, and its trajectory built.
//!
//! [`SessionRunner`] takes one leased session through the stages prepare → ready → run →
//! grade and gives back its report; whoever holds the lease delivers it. The harness is
//! described by data, see [`harness`]. Nothing here speaks to the server.
//!
//! Invariants:
//! - Each stage has its own places and its own budget; the agent's budget starts when
//!   the harness does.
//! - However an attempt ends, its proxy session is closed, its sandbox destroyed and its
//!   places given back; only an abandoned one gives no report. A report does not wait for
//!   the sandbox to be gone; see [`Removal`].
//! - The journal is complete before anything is graded or built from it.

mod attempt;
pub mod check;
mod control;
mod evaluator;
mod failure;
mod folder;
mod grade;
pub mod harness;
mod hints;
mod images;
mod maker;
mod outage;
mod pools;
mod prepare;
mod removal;
mod report;
mod room;
mod warm_pool;
mod warming;

pub use attempt::{Ended, RunnerConfig, SessionRunner};
pub use control::{Control, Progress};
pub use folder::{ARTIFACTS, AttemptFolder};
pub use harness::HarnessAdapter;
pub use polar_trajectory::BuildOptions;
pub use removal::Removal;
pub use report::{Rebuilt, rebuild, salvage};
pub use room::{DiskRoom, Reservation, RoomChanges, RoomLimits};
pub use warm_pool::{RuntimeImage, WarmImage};
