//! How a client may write the parts that have a short form, for the published schema
//! only. The parts themselves accept both forms when they are read (see `spec`), so no
//! value of these is ever made.

use super::{Callback, EvaluatorSpec, HarnessSpec, RuntimeSpec};
use serde::Serialize;

macro_rules! or_word {
    ($name:ident, $part:ident) => {
        /// The short form, or the full object.
        #[derive(Serialize, utoipa::ToSchema)]
        #[serde(untagged)]
        #[expect(dead_code, reason = "read by the derive alone")]
        pub(super) enum $name {
            /// The short form.
            Word(String),
            /// The full object.
            Object(Box<$part>),
        }
    };
}

or_word!(HarnessSpecOrWord, HarnessSpec);
or_word!(RuntimeSpecOrWord, RuntimeSpec);
or_word!(EvaluatorSpecOrWord, EvaluatorSpec);
or_word!(CallbackOrWord, Callback);
