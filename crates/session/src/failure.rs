//! Why an attempt does not go on.

use crate::control::Control;
use polar_types::{ErrorClass, Outcome, Side};

/// Ends an attempt early.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Stop {
    /// The owner gave it up: nothing is reported.
    Abandoned,
    /// It ended like this; what there is, is reported.
    Ended(Outcome),
}

impl Stop {
    pub(crate) fn failed(side: Side, class: ErrorClass, message: impl Into<String>) -> Self {
        Self::Ended(Outcome::Failed { side, class, message: message.into() })
    }
}

impl Stop {
    /// The same with more in its message.
    #[must_use]
    pub(crate) fn with(mut self, more: &str) -> Self {
        if let Self::Ended(Outcome::Failed { message, .. }) = &mut self {
            message.push_str(more);
        }
        self
    }
}

impl From<Control> for Stop {
    fn from(order: Control) -> Self {
        match order {
            Control::Abandon => Self::Abandoned,
            Control::Go | Control::Cancel => Self::Ended(Outcome::Cancelled),
        }
    }
}
