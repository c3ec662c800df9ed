//! Trajectories as files for trainers: Parquet rows of tokens, OpenAI messages, ATIF.
//!
//! ```text
//! Trajectory ─► Selection (which traces, and why not the others) ─► a writer ─► io::Write
//! ```
//!
//! Pure: what is read and where it is written is the caller's. Nothing is kept but the rows of
//! one row group and, where repeats are left out, a hash of each row. It must not invent: a
//! logprob that is missing is null in every format, and what a format has no field for goes
//! where that format has room for more.

mod atif;
mod counts;
mod messages;
mod parquet_rows;
mod selection;

pub use atif::AtifWriter;
pub use counts::{Counts, LeftOut};
pub use messages::MessagesWriter;
pub use parquet_rows::{ParquetWriter, columns};
pub use selection::{Filters, Selection, Side};

use polar_types::{Trace, Trajectory};

/// Why something could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The trajectory does not hold together.
    #[error("the trajectory of session {session} does not hold together: {what}")]
    Broken {
        /// Which.
        session: String,
        /// Why.
        what: String,
    },
    /// A number has no place in the format.
    #[error("session {session} has the token id {id}, and ids are signed numbers of 32 bits here")]
    Id {
        /// Which session.
        session: String,
        /// The id.
        id: u32,
    },
    /// The file cannot be written.
    #[error("write the file: {0}")]
    Write(#[from] std::io::Error),
    /// The Parquet file cannot be written.
    #[error("write the Parquet file: {0}")]
    Parquet(#[from] parquet::errors::ParquetError),
    /// Something could not be spelled as JSON.
    #[error("write JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// A trace that was selected, with the trajectory that it is of.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The whole session.
    pub trajectory: &'a Trajectory,
    /// One of its traces; of a tree, one of those that it stands for.
    pub trace: &'a Trace,
    /// Its place among them.
    pub index: u32,
}

impl Row<'_> {
    /// Positions with mask 1.
    pub fn trained(&self) -> u64 {
        self.trace.loss_mask.iter().map(|mask| u64::from(*mask)).sum()
    }
}

/// Takes the rows that were selected.
pub trait RowWriter {
    /// Writes one.
    fn write(&mut self, row: Row<'_>) -> Result<(), ExportError>;

    /// Writes what is still held, and what belongs at the end.
    fn finish(&mut self) -> Result<(), ExportError>;
}
