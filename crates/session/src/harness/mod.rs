//! Harness adapters: what Polar must know to run an agent program it does not own.
//!
//! An adapter is data, a YAML file: how to install the program, which command line,
//! environment and files point it at the gateway, and how to tell that it failed. This
//! module reads and checks adapters, renders them for one session, installs programs
//! and judges how a run ended. It starts no sandbox and opens no session.

mod adapter;
mod check_notes;
mod install;
mod parse;
mod recipe;
mod render;
mod shipped;
mod validate;
mod verdict;

pub use adapter::{
    Argument, EnvValue, FailurePattern, FileTemplate, HarnessAdapter, OutputStream, Provider,
    Setting, SuccessRule,
};
pub use check_notes::{CheckNotes, ScenarioNotes, ToolNote};
pub use install::{InstallError, Installation, InstalledPython, Installer};
pub use parse::AdapterError;
pub use recipe::InstallRecipe;
pub use render::{RenderInput, RenderedFile, RenderedHarness};
pub use verdict::{CallFailure, OutageSeen, RunEvidence, judge};
pub(crate) use verdict::{TAIL, tail, tail_lines};
