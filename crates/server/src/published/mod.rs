//! The HTTP API of the published Polar, for clients that were written for it.
//!
//! ```text
//! request (its schema) ─► translate ─► TaskRequest ─► the same store as POST /api/tasks
//! result (its schema)  ◄─ stored trajectories, task and sessions as they are
//! ```
//!
//! It owns nothing but the names of tasks that were cancelled before they came. It must not
//! have rules of its own about tasks: a task that came in here is one like all others, and the
//! rest of the API shows it. `docs/published-api.md` says what is the same and what is not.

mod evaluator;
mod request;
mod result;
pub(crate) mod routes;
mod runs;
mod runtime;
mod tasks;
mod tombstones;
mod translate;
mod uploads;

pub(crate) use tasks::callback;
pub(crate) use tombstones::Tombstones;
