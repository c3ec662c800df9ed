//! Ctrl-C and SIGTERM.

use anyhow::{Context, Result};
use std::fmt;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both signals, listened for as long as this lives: they no longer end the process by
/// themselves.
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    pub(crate) fn listen() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("listen for Ctrl-C")?,
            terminate: signal(SignalKind::terminate()).context("listen for SIGTERM")?,
        })
    }

    /// Returns when one comes.
    pub(crate) async fn next(&mut self) -> Interrupted {
        tokio::select! {
            _ = self.interrupt.recv() => Interrupted { by: By::CtrlC, again: false },
            _ = self.terminate.recv() => Interrupted { by: By::Sigterm, again: false },
        }
    }

    /// Does `work` unless a signal comes first; then `work` is dropped, and the error is an
    /// [`Interrupted`].
    pub(crate) async fn unless<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            done = work => done,
            interrupted = self.next() => Err(interrupted.into()),
        }
    }

    /// Takes things down unless a signal comes once more; what is left then is left.
    pub(crate) async fn unless_again(&mut self, ending: impl Future<Output = ()>) -> Result<()> {
        tokio::select! {
            () = ending => Ok(()),
            again = self.next() => Err(again.again())
                .context("gave up removing sandboxes, which the next start does"),
        }
    }
}

/// The end that a signal asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interrupted {
    by: By,
    /// It came while things were taken down because of an earlier one, and stopped that.
    again: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    CtrlC,
    Sigterm,
}

impl Interrupted {
    /// The same, as one that stopped what an earlier one had begun.
    pub(crate) fn again(self) -> Self {
        Self { again: true, ..self }
    }

    pub(crate) fn is_again(self) -> bool {
        self.again
    }

    /// What a shell says of a process that a signal ended.
    pub(crate) fn exit_code(self) -> u8 {
        match self.by {
            By::CtrlC => 128 + 2,
            By::Sigterm => 128 + 15,
        }
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.by {
            By::CtrlC => "Ctrl-C",
            By::Sigterm => "SIGTERM",
        };
        write!(f, "interrupted by {by}")
    }
}

impl std::error::Error for Interrupted {}
