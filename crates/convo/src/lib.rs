//! One conversation model for all client dialects.
//!
//! A dialect's request decodes to a [`Request`]; what an engine answers is a sequence
//! of [`ReplyEvent`]s closed by a [`ReplyEnd`]; a dialect's encoder turns those into
//! its stream. A unary reply is a fold of the same events. Nothing here knows HTTP,
//! sockets or time; everything is a pure function of its input.
//!
//! What a dialect says and Polar does not act on stays in a `rest` map and is carried
//! through, or is refused with an error in that dialect's own shape.

pub mod loss;
pub mod reply;
pub mod request;

pub use loss::{Loss, LossKind};
pub use reply::{FinishReason, Reply, ReplyEnd, ReplyEvent, ReplyHead, Usage};
pub use request::{
    Block, Dialect, ImageSource, Message, Request, Role, Sampling, Tool, ToolChoice,
};
